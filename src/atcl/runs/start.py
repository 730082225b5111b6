"""Start runs, alone or several at once: their data, the checks before training, their engine."""

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atcl.core.device import repeatable, resolve
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json, sole_writer, write_json
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
from atcl.recipes.names import OWN
from atcl.recipes.schema import Recipe
from atcl.runs import layout
from atcl.runs.checks import check_model, check_rules
from atcl.runs.execute import Running, carry_out
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run, folder_of
from atcl.runs.spec import Execution, RunSpec, check_different
from atcl.runs.watcher import Watcher
from atcl.training.transitions import estimated_transition


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
    """Train a recipe, or resume a run that was stopped.

    Args:
        what: a recipe, or its name, `dataset/method`.
        name: the name of the run; by default that of the recipe.
        seed: labels, initial weights and batches follow from it.
        out: the folder of the run; by default `runs/NAME/seed-SEED`.
        problem: your own data, in place of the recipe's dataset.
        build: a function that returns your own model, in place of the recipe's.
        watcher: receives what happens; by default nothing is printed.
        execution: device, engine, folder of the data and more.

    Returns:
        The finished run, with its model and result.

    Raises:
        AtclError: recipe, data, model and device do not fit together, or the folder holds another run.

    Examples:
        Eight images, one epoch:

        >>> import torch
        >>> from dataclasses import replace
        >>> from tempfile import TemporaryDirectory
        >>> from atcl.data.weak import WeakData, rule_out
        >>> from atcl.recipes.catalogue import recipe
        >>> data = WeakData(torch.rand(8, 1, 4, 4), rule_out(8, 3, [0, 1, 2, 0, 1, 2, 0, 1]))
        >>> wanted = recipe("digits/direct-log")
        >>> wanted = replace(wanted, model="mlp", stages=(replace(wanted.stages[0], epochs=1),))
        >>> cpu = Execution(device="cpu")
        >>> with TemporaryDirectory() as folder:
        ...     run = train(wanted, out=folder, problem=Problem(data), execution=cpu)
        ...     run.model()(data.x).shape
        torch.Size([8, 3])
    """
    spec = RunSpec.of(what, name=name, seed=seed, out=out, problem=problem, build=build)
    (run,) = train_together([spec], execution, [watcher or Watcher()])
    return run


def train_together(
    specs: Sequence[RunSpec], execution: Execution | None = None, watchers: Sequence[Watcher] | None = None
) -> list[Run]:
    """Train several runs at once on one device; each gives the results that it would give alone.

    Args:
        specs: the runs, each with another seed, name or recipe.
        execution: device, engine, folder of the data and more, for all of them.
        watchers: one for each run; by default nothing is printed.

    Returns:
        The finished runs, in the same order.

    Raises:
        AtclError: two runs are the same, or one of them cannot be trained.

    Examples:
        >>> specs = [RunSpec.of("kuzushiji/warmup-pla", seed=seed) for seed in (1, 2, 3)]
        >>> runs = train_together(specs)  # doctest: +SKIP
        >>> train_together(specs[:1] * 2)
        Traceback (most recent call last):
        atcl.core.errors.AtclError: give different seeds, at least one, not [1, 1]
    """
    check_different(specs)
    execution = execution or Execution()
    device = resolve(execution.device)
    watchers = [Watcher() for _ in specs] if watchers is None else watchers
    # refuse an engine that cannot run here before anything is written
    engine_of(execution.engine, device, 0, deterministic=execution.deterministic)
    execution.observing.check_names()
    runs = [
        _Start(spec, execution, device, watcher, len(specs))
        for spec, watcher in zip(specs, watchers, strict=True)
    ]
    several = len({spec.name for spec in specs}) > 1
    tasks = [_named(run, several) if len(runs) > 1 else run.steps() for run in runs]
    compiles = device.type == "cuda" or execution.engine == "compiled"
    with repeatable(execution.deterministic), room_to_compile(len(specs)) if compiles else nullcontext():
        return interleave(tasks, device)


def repeatable_form(wanted: Recipe) -> Recipe:
    """Return the recipe with all its stages in fp32, as deterministic runs need it."""
    return replace(wanted, stages=tuple(replace(stage, precision=Precision()) for stage in wanted.stages))


def _named(start: "_Start", several: bool) -> Generator[None, None, Run]:
    """Carry out one of several runs, and put its name into its error.

    The watcher receives the error of a run in training at once; it is raised when the other runs have ended.
    """
    task, begun = start.steps(), False
    try:
        next(task)
        begun = True
        yield
        return (yield from task)
    except StopIteration as end:  # nothing was left to train
        finished: Run = end.value
        return finished
    except AtclError as error:
        if begun:
            start.watcher.notify(f"stopped: {error}")
        raise AtclError(f"{start.spec if several else f'seed {start.spec.seed}'}: {error}") from None
    finally:
        task.close()  # releases the lock on its folder


@dataclass(frozen=True)
class _Start:
    """A run that is about to start, alone or beside others."""

    spec: RunSpec
    execution: Execution
    device: torch.device
    watcher: Watcher
    together: int  # runs that share the device

    def steps(self) -> Generator[None, None, Run]:
        """Carry out the run; pause once before training, and then after each batch."""
        spec, execution, watcher = self.spec, self.execution, self.watcher
        wanted, name, problem = self._on_its_data()
        if spec.build is not None:  # the initial weights of the official code are for its models alone
            wanted = with_derived_weights(replace(wanted, model=getattr(spec.build, "__name__", OWN)))
        check_rules(wanted, problem)
        execution.observing.check(problem)
        folder = spec.out or Path("runs", *folder_of(name, wanted), f"seed-{spec.seed}")
        run = Run(folder, name, spec.seed, wanted, problem.train.classes, wanted.shape, problem.names)
        check_model(run, problem, spec.build)
        with sole_writer(folder):
            run.claim(problem)
            if (folder / layout.RESULT).exists() and (folder / layout.MODEL).exists():
                watcher.notify("this run is finished: nothing is trained again")
                if execution.observing.names:
                    watcher.notify(f"nothing was observed: `atcl observe {folder}` analyses its checkpoints")
                watcher.end(run)
                return run
            problem = problem.to(self.device)
            engine = engine_of(
                execution.engine,
                self.device,
                passes(wanted, len(problem.train)),
                deterministic=execution.deterministic,
                waits=_waits(run, problem, spec.build),
                notify=watcher.notify,
            )
            watcher.engine(f"{engine.about} on {self.device.type}")
            yield
            if wanted.transition == "estimated":
                problem = _with_estimated_transition(run, problem, spec.build, watcher)
            yield from carry_out(
                Running(run, problem, engine, watcher, execution.observing, spec.build, self.together)
            )
        watcher.end(run)
        return run

    def _on_its_data(self) -> tuple[Recipe, str, Problem]:
        """Return the recipe and the name, adapted to the run's data, and the data."""
        spec, execution = self.spec, self.execution
        wanted = repeatable_form(spec.recipe) if execution.deterministic else spec.recipe
        if spec.problem is None:
            return wanted, spec.name, problem_of(wanted, spec.seed, execution.data_dir)
        wanted, problem = _on_own_data(wanted, spec.problem), spec.problem
        if wanted.holdout and problem.held is None:
            problem = problem.held_out(wanted.holdout, derive(spec.seed, "holdout"))
        return wanted, f"{OWN}/{spec.name.rpartition('/')[2]}", problem


def problem_of(wanted: Recipe, seed: int, data_dir: Path | None = None) -> Problem:
    """Return the data of a recipe: its dataset, with labels and a held-out part that follow from the seed.

    Args:
        wanted: the recipe.
        seed: the seed of the run.
        data_dir: folder of the dataset's files.

    Raises:
        AtclError: the recipe is for data of your own, or its labels or its shape do not fit the dataset.
    """
    if wanted.dataset == OWN:
        raise AtclError(
            "this recipe learns from data of your own: give them as `problem` "
            "(from the shell: --images FOLDER --labels FILE.csv)"
        )
    dataset = pick(DATASETS, wanted.dataset, "dataset")(data_dir)
    wanted.labels.check(dataset.classes)
    if dataset.shape != wanted.shape:
        raise AtclError(
            f"{wanted.dataset} has images of shape {dataset.shape}, but the recipe says {wanted.shape}: "
            "set shape"
        )
    problem = Problem(
        weaken(dataset.train, wanted.labels, derive(seed, "labels")), dataset.train.truth, dataset.test
    )
    return problem.held_out(wanted.holdout, derive(seed, "holdout")) if wanted.holdout else problem


def _on_own_data(wanted: Recipe, problem: Problem) -> Recipe:
    channels, height, width = problem.train.x.shape[1:]
    return with_derived_weights(replace(wanted, dataset=OWN, labels=Given(), shape=(channels, height, width)))


def _with_estimated_transition(run: Run, problem: Problem, build: Build | None, watcher: Watcher) -> Problem:
    """Return the problem with a transition matrix that is estimated from its complementary labels.

    The matrix is kept in the folder of the run, so that a resumed run does not estimate it again.
    """
    path = run.folder / layout.TRANSITION
    origin = {"seed": run.seed, "recipe": digest(run.recipe), **problem.fingerprints()}
    stored = read_json(path) if path.exists() else {}
    if stored.get("made") != origin:  # the file may be of an earlier start with other settings
        watcher.notify("estimating the transition matrix from the complementary labels")
        matrix = estimated_transition(
            problem.train, lambda: run.fresh_model(build), seed=derive(run.seed, "transition")
        )
        stored = {"made": origin, "matrix": matrix.tolist()}
        write_json(path, stored)
    transition = torch.tensor(stored["matrix"], device=problem.train.device)
    held = None if problem.held is None else replace(problem.held, transition=transition)
    return replace(problem, train=replace(problem.train, transition=transition), held=held)


def _waits(run: Run, problem: Problem, build: Build | None) -> bool:
    """Return whether a step makes the host wait for the GPU, which no CUDA graph can record.

    The model may do so, and so do images that stay in the memory of the host.
    """
    data = problem.train
    if data.device.type != "cuda" or data.x.device != data.device:
        return data.x.device != data.device
    with forked_rng():
        return waits(run.fresh_model(build).to(data.device), as_float(data.images(data.some())))
