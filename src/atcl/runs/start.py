"""Starting runs: what they learn from, whether all fits together, which engine carries them out; alone or several at once."""

import copy
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from atcl.core.device import repeatable, resolve
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json, sole_writer, write_json
from atcl.core.modules import evaluating
from atcl.core.precisions import Precision
from atcl.core.seeds import derive, forked_rng
from atcl.core.settings import digest
from atcl.data.images import as_float
from atcl.datasets.labels import Given, weaken
from atcl.datasets.sources import DATASETS
from atcl.engine.engines import engine_of, room_to_compile, waits
from atcl.engine.interleaving import interleave
from atcl.recipes.catalogue import with_derived_weights
from atcl.recipes.costs import passes
from atcl.recipes.schema import OWN, Recipe
from atcl.runs import layout
from atcl.runs.execute import Running, carry_out
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run, folder_of
from atcl.runs.spec import Execution, RunSpec, check_different
from atcl.runs.watcher import Watcher
from atcl.training.transitions import NATURAL, estimated_transition
from atcl.training.weak_validation import check_invertible


def train(
    what: Recipe | str,
    *,
    name: str | None = None,
    seed: int = 1,
    out: Path | str | None = None,
    problem: Problem | None = None,
    build: Build | None = None,
    watcher: Watcher | None = None,
    execution: Execution | None = None,
) -> Run:
    """Train by a recipe, or go on with a run that was stopped.

    Args:
        what: a recipe, or its name, `dataset/method`.
        name: the name of the run; by default that of the recipe.
        seed: labels, first weights and batches follow from it.
        out: the folder of the run; by default `runs/NAME/seed-SEED`.
        problem: your own data, in the place of the recipe's dataset.
        build: a function that returns your own model, in the place of the recipe's.
        watcher: is told what happens; by default nothing is printed.
        execution: device, engine, folder of the data and the like.

    Returns:
        The finished run, with its model and result.

    Raises:
        AtclError: something does not fit together; one line says what to do.
    """
    spec = RunSpec.of(what, name=name, seed=seed, out=out, problem=problem, build=build)
    (run,) = train_together([spec], execution, [watcher or Watcher()])
    return run


def train_together(
    specs: Sequence[RunSpec], execution: Execution | None = None, watchers: Sequence[Watcher] | None = None
) -> list[Run]:
    """Train several runs at once on one device; each is the run that it would be alone."""
    check_different(specs)
    execution = execution or Execution()
    device = resolve(execution.device)
    watchers = [Watcher() for _ in specs] if watchers is None else watchers
    # an engine that cannot be had is refused before anything is written
    engine_of(execution.engine, device, 0, deterministic=execution.deterministic)
    execution.observing.check_names()
    runs = [
        _Start(spec, execution, device, watcher, len(specs))
        for spec, watcher in zip(specs, watchers, strict=True)
    ]
    several = len({spec.name for spec in specs}) > 1
    tasks = [_named(one, several) if len(runs) > 1 else one.steps() for one in runs]
    compiles = device.type == "cuda" or execution.engine == "compiled"
    with repeatable(execution.deterministic), room_to_compile(len(specs)) if compiles else nullcontext():
        return interleave(tasks, device)


def repeatable_form(wanted: Recipe) -> Recipe:
    """Return the recipe in fp32 throughout."""
    return replace(wanted, stages=tuple(replace(stage, precision=Precision()) for stage in wanted.stages))


def _named(start: "_Start", several: bool) -> Generator[None, None, Run]:
    """Carry out one of several runs. Its error names it, at once and again at the end; one before training stops all."""
    task, begun = start.steps(), False
    try:
        next(task)
        begun = True
        yield
        return (yield from task)
    except StopIteration as end:  # there was nothing left to train
        done: Run = end.value
        return done
    except AtclError as error:
        if begun:
            start.watcher.notify(f"stopped: {error}")
        raise AtclError(f"{start.spec if several else f'seed {start.spec.seed}'}: {error}") from None
    finally:
        task.close()  # it may hold its folder


@dataclass(frozen=True)
class _Start:
    """A run that is about to be carried out, beside others."""

    spec: RunSpec
    execution: Execution
    device: torch.device
    watcher: Watcher
    together: int  # runs that share the device

    def steps(self) -> Generator[None, None, Run]:
        """Carry the run out, pausing after each batch, and first of all before anything is trained."""
        spec, execution, watcher = self.spec, self.execution, self.watcher
        wanted, name, problem = self._on_its_data()
        if spec.build is not None:  # whoever builds a model knows how it starts
            wanted = with_derived_weights(replace(wanted, model=getattr(spec.build, "__name__", OWN)))
        _check_rules(wanted, problem)
        execution.observing.check(problem)
        folder = spec.out or Path("runs", *folder_of(name, wanted), f"seed-{spec.seed}")
        run = Run(folder, name, spec.seed, wanted, problem.train.classes, wanted.shape, problem.names)
        _probe(run, problem, spec.build)
        with sole_writer(folder):
            run.claim(problem)
            if (folder / layout.RESULT).exists() and (folder / layout.MODEL).exists():
                watcher.notify("this run is finished: nothing is trained again")
                if execution.observing.names:
                    watcher.notify(
                        f"nothing was observed: `atcl observe {folder}` analyses the checkpoints that it left"
                    )
                return run
            there = problem.to(self.device)
            size, waiting = passes(wanted, len(there.train)), _waits(run, there, spec.build)
            engine = engine_of(
                execution.engine,
                self.device,
                size,
                deterministic=execution.deterministic,
                waits=waiting,
                notify=watcher.notify,
            )
            watcher.engine(f"{engine.about} on {self.device.type}")
            yield
            if wanted.transition == "estimated":
                there = _estimated(run, there, spec.build, watcher)
            yield from carry_out(
                Running(run, there, engine, watcher, execution.observing, spec.build, self.together)
            )
        return run

    def _on_its_data(self) -> tuple[Recipe, str, Problem]:
        """Return the recipe and the name as they are on the run's data, and the data."""
        spec, execution = self.spec, self.execution
        wanted = repeatable_form(spec.recipe) if execution.deterministic else spec.recipe
        if spec.problem is None:
            return wanted, spec.name, problem_of(wanted, spec.seed, execution.data_dir)
        wanted, problem = _on_own_data(wanted, spec.problem), spec.problem
        if wanted.holdout and problem.held is None:
            problem = problem.held_out(wanted.holdout, derive(spec.seed, "holdout"))
        return wanted, f"{OWN}/{spec.name.partition('/')[2]}", problem


def _check_rules(wanted: Recipe, problem: Problem) -> None:
    """Refuse a recipe that chooses an epoch by data that are not there."""
    if problem.test is None and "test" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch on a test set, and there is none: set selection and teacher to last, or to a rule on held-out labels"
        )
    if problem.held is None and "held" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch by held-out labels, and there are none: set holdout, such as 0.1, or selection to last"
        )
    if problem.held is not None:
        check_invertible(problem.held)


def problem_of(wanted: Recipe, seed: int, data_dir: Path | None = None) -> Problem:
    """Return what a recipe learns from: its dataset, with labels and a held-out part that follow from the seed."""
    if wanted.dataset == OWN:
        raise AtclError(
            "this recipe learns from data of your own: give them as `problem` (from the shell: --images FOLDER --labels FILE.csv)"
        )
    dataset = pick(DATASETS, wanted.dataset, "dataset")(data_dir)
    wanted.labels.check(dataset.classes)
    if dataset.shape != wanted.shape:
        raise AtclError(
            f"{wanted.dataset} has images of shape {dataset.shape}, but the recipe says {wanted.shape}: set shape"
        )
    problem = Problem(
        weaken(dataset.train, wanted.labels, derive(seed, "labels")), dataset.train.truth, dataset.test
    )
    return problem.held_out(wanted.holdout, derive(seed, "holdout")) if wanted.holdout else problem


def _on_own_data(wanted: Recipe, problem: Problem) -> Recipe:
    channels, height, width = problem.train.x.shape[1:]
    return with_derived_weights(replace(wanted, dataset=OWN, labels=Given(), shape=(channels, height, width)))


def _probe(run: Run, problem: Problem, build: Build | None) -> None:
    """Pass two images through a new model, so that one that does not fit is refused before anything is written."""
    with forked_rng():
        model = run.fresh_model(build)
        if next(model.parameters(), None) is None:
            raise AtclError(f"the model {run.recipe.model} has no parameters to train")
        _check_copies(run, model)
        try:
            with evaluating(model), torch.no_grad():
                logits = model(as_float(problem.train.x[:2].cpu()))
        except RuntimeError as error:
            raise AtclError(
                f"the model {run.recipe.model} does not take images of shape {run.shape}: {str(error).splitlines()[0]}"
            ) from None
        _check_batches(run, model, problem)
    if logits.shape != (min(2, len(problem.train)), run.classes):
        raise AtclError(
            f"the model {run.recipe.model} returns {tuple(logits.shape)} for two images, and there are {run.classes} classes"
        )


def _check_copies(run: Run, model: Module) -> None:
    """Refuse a model that keeps tensors worked out from its parameters: attacks and onlookers look at copies of it."""
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        remedy = "weight_norm of torch.nn.utils.parametrizations can be, that of torch.nn.utils cannot"
        raise AtclError(
            f"the model {run.recipe.model} cannot be copied, as attacks need ({remedy}): {str(error).split('.')[0]}"
        ) from None


def _check_batches(run: Run, model: Module, problem: Problem) -> None:
    """Refuse a batch of one image, such as the last may be, where the model's batch statistics need more; those of maps of pixels do not."""
    n, sizes = len(problem.train), [stage.batch_size for stage in run.recipe.stages]
    alone = next((number for number, size in enumerate(sizes) if size == 1 or n % size == 1), None)
    halves = (
        {n // 2 % NATURAL.batch_size, (n + 1) // 2 % NATURAL.batch_size}
        if run.recipe.transition == "estimated"
        else set()
    )
    if (alone is None and 1 not in halves) or not any(
        isinstance(layer, _BatchNorm) for layer in model.modules()
    ):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(
                as_float(problem.train.x[:1].cpu())
            )  # a copy: who builds it may keep it, and it would remember the image
    except ValueError:
        if alone is None:
            raise AtclError(
                f"to estimate a transition matrix, halves of {n} images are learnt in batches of {NATURAL.batch_size}, which leaves a batch of one, "
                f"on which the batch norm of {run.recipe.model} cannot learn: take two images less"
            ) from None
        others = [size for size in range(sizes[alone] + 1, sizes[alone] + n + 1) if n % size != 1]
        remedy = (
            f"give --stages.{alone}.batch-size {others[0]}, or one image more or less"
            if others
            else "give more images"
        )
        raise AtclError(
            f"{n} images in batches of {sizes[alone]} leave a batch of one, on which the batch norm of {run.recipe.model} cannot learn: {remedy}"
        ) from None


def _estimated(run: Run, problem: Problem, build: Build | None, watcher: Watcher) -> Problem:
    """Return the problem with a transition matrix estimated from its weak labels, which a resumed run finds in its folder."""
    path, made = (
        run.folder / layout.TRANSITION,
        {"seed": run.seed, "recipe": digest(run.recipe), **problem.fingerprints()},
    )
    kept = read_json(path) if path.exists() else {}
    if kept.get("made") != made:  # of a start that was given up for another
        watcher.notify("estimating the transition matrix from the complementary labels")
        found = estimated_transition(
            problem.train, lambda: run.fresh_model(build), seed=derive(run.seed, "transition")
        )
        kept = {"made": made, "matrix": found.tolist()}
        write_json(path, kept)
    transition = torch.tensor(kept["matrix"], device=problem.train.device)
    held = None if problem.held is None else replace(problem.held, transition=transition)
    return replace(problem, train=replace(problem.train, transition=transition), held=held)


def _waits(run: Run, problem: Problem, build: Build | None) -> bool:
    """Tell whether a step would make the host wait for the GPU: by its model, or for images in the host's memory."""
    data = problem.train
    if data.device.type != "cuda" or data.x.device != data.device:
        return data.x.device != data.device
    with forked_rng():
        return waits(run.fresh_model(build).to(data.device), as_float(data.images(data.some())))
