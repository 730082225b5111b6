"""Starting runs: what they learn from, whether all fits together, which engine carries them out; alone or several at once."""

import copy
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from atcl import observing
from atcl.attacks import evaluating
from atcl.batches import as_float
from atcl.data import DATASETS
from atcl.engines import engine_of, room_to_compile, waits
from atcl.environment import repeatable, resolve
from atcl.errors import AtclError, pick
from atcl.files import read_json, sole_writer, write_json
from atcl.heldout import check_invertible
from atcl.labels import Given, weaken
from atcl.packing import together
from atcl.precisions import Precision
from atcl.recipes import Recipe, recipe, with_derived_weights
from atcl.runs import Build, Problem, Run, folder_of, name_of
from atcl.seeds import derive, forked_rng
from atcl.settings import digest
from atcl.stages import Means, Watcher, carry_out
from atcl.tasks import OWN
from atcl.transitions import NATURAL, estimated_transition


def train(
    what: Recipe | str, *, name: str | None = None, seed: int = 1, out: Path | str | None = None, device: str = "auto", data_dir: Path | None = None,
    problem: Problem | None = None, build: Build | None = None, watcher: Watcher | None = None, engine: str = "auto", deterministic: bool = False,
    observe: Sequence[str] = (), every: int | None = None,
) -> Run:  # fmt: skip
    """Train by a recipe, or go on with a run that was stopped; return it with its result.

    `problem` brings your own data, `build` a function that returns your own model; the run's recipe then names them instead of its own.
    `engine` is a name from `atcl list engines`, or auto; `deterministic` takes fp32 and algorithms that repeat to the last bit.
    `observe` names what onlookers write to `analysis.jsonl`, `every` so many epochs (by default they are meant to take less than 5% of the time).
    """
    (run,) = train_together(
        what, seeds=[seed], name=name, outs=None if out is None else [out], device=device, data_dir=data_dir, problem=problem, build=build,
        watchers=[watcher or Watcher()], engine=engine, deterministic=deterministic, observe=observe, every=every,
    )  # fmt: skip
    return run


def train_together(
    what: Recipe | str, *, seeds: Sequence[int], name: str | None = None, outs: Sequence[Path | str] | None = None, device: str = "auto",
    data_dir: Path | None = None, problem: Problem | None = None, build: Build | None = None, watchers: Sequence[Watcher] | None = None,
    engine: str = "auto", deterministic: bool = False, observe: Sequence[str] = (), every: int | None = None,
) -> list[Run]:  # fmt: skip
    """Train a model for each seed, all at once on one device; each is the run that `train` would make of its seed alone."""
    for seed in seeds:
        if not isinstance(seed, int) or seed < 0:
            raise AtclError(f"a seed is a whole number of at least 0, not {seed!r}")
    if len(set(seeds)) != len(seeds) or not seeds:
        raise AtclError(f"give different seeds, at least one, not {list(seeds)}")
    wanted = recipe(what) if isinstance(what, str) else what
    name = name or (what if isinstance(what, str) else name_of(what))
    folders = [None] * len(seeds) if outs is None else [Path(out) for out in outs]
    heard = [Watcher() for _ in seeds] if watchers is None else watchers
    way = Way(resolve(device), data_dir, problem, build, engine, deterministic, tuple(observe), every)
    return train_all([Order(wanted, name, *one) for one in zip(seeds, folders, heard, strict=True)], way)


def repeatable_form(wanted: Recipe) -> Recipe:
    """Return the recipe in fp32 throughout."""
    return replace(wanted, stages=tuple(replace(stage, precision=Precision()) for stage in wanted.stages))


@dataclass(frozen=True)
class Order:
    """A run that is to be made."""

    wanted: Recipe
    name: str
    seed: int
    out: Path | None = None  # None: the folder that follows from its name
    watcher: Watcher = field(default_factory=Watcher)


@dataclass(frozen=True)
class Way:
    """How runs are carried out, and what on where that is not their recipe's to say."""

    device: torch.device
    data_dir: Path | None = None
    problem: Problem | None = None  # None: the recipe's own dataset
    build: Build | None = None
    engine: str = "auto"
    deterministic: bool = False
    observe: tuple[str, ...] = ()
    every: int | None = None


def train_all(orders: Sequence[Order], way: Way) -> list[Run]:
    """Train by several orders, of one recipe or of many, all at once on one device; each is the run that it would be alone."""
    engine_of(way.engine, way.device, 0, deterministic=way.deterministic)  # one that cannot be had is refused before anything is written
    observing.check_names(way.observe, way.every)
    tasks = [_running(order, way, len(orders)) for order in orders]
    if len(orders) > 1:
        several = len({order.name for order in orders}) > 1
        tasks = [_named(task, order, several) for task, order in zip(tasks, orders, strict=True)]
    compiles = way.device.type == "cuda" or way.engine == "compiled"
    with repeatable(way.deterministic), room_to_compile(len(orders)) if compiles else nullcontext():
        return together(tasks, way.device)


def _named(task: Generator[None, None, Run], order: Order, several: bool) -> Generator[None, None, Run]:
    """Return the task, whose error says at once, and again at the end, which of several it was; one before anything is trained stops all."""
    begun = False
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
            order.watcher.say(f"stopped: {error}")
        raise AtclError(f"{f'{order.name}, ' if several else ''}seed {order.seed}: {error}") from None
    finally:
        task.close()  # it may hold its folder


def _running(order: Order, way: Way, number: int) -> Generator[None, None, Run]:
    """Carry out one of a number of runs, pausing after each batch, and first of all before anything is trained."""
    wanted, name, seed, watcher = order.wanted, order.name, order.seed, order.watcher
    problem, build = way.problem, way.build
    if way.deterministic:
        wanted = repeatable_form(wanted)
    if problem is None:
        problem = problem_of(wanted, seed, way.data_dir)
    else:
        wanted, name = _on_own_data(wanted, problem), f"{OWN}/{name.partition('/')[2]}"
        if wanted.holdout and problem.held is None:
            problem = problem.held_out(wanted.holdout, derive(seed, "holdout"))
    if build is not None:
        wanted = with_derived_weights(replace(wanted, model=getattr(build, "__name__", OWN)))  # whoever builds a model knows how it starts
    if problem.test is None and "test" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch on a test set, and there is none: set selection and teacher to last, or to a rule on held-out labels"
        )
    if problem.held is None and "held" in wanted.needs:
        raise AtclError("this recipe chooses an epoch by held-out labels, and there are none: set holdout, such as 0.1, or selection to last")
    if problem.held is not None:
        check_invertible(problem.held)
    observing.check(way.observe, problem, way.every)
    folder = order.out or Path("runs", *folder_of(name, wanted), f"seed-{seed}")
    run = Run(folder, name, seed, wanted, problem.train.classes, wanted.shape, problem.names)
    _probe(run, problem, build)
    with sole_writer(folder):
        run.claim(problem)
        if (folder / "result.json").exists() and (folder / "model.safetensors").exists():
            watcher.say("this run is finished: nothing is trained again")
            if way.observe:
                watcher.say(f"and nothing was observed: `atcl observe {folder}` looks at the checkpoints that it left")
            return run
        there = problem.to(way.device)
        size, waiting = passes(wanted, len(there.train)), _waits(run, there, build)
        chosen = engine_of(way.engine, way.device, size, deterministic=way.deterministic, waits=waiting, say=watcher.say)
        watcher.engine(f"{chosen.about} on {way.device.type}")
        yield
        if wanted.transition == "estimated":
            there = _estimated(run, there, build, watcher)
        yield from carry_out(run, there, Means(chosen, watcher, build, number, way.observe, way.every))
    return run


def passes(wanted: Recipe, images: int) -> int:
    """Return how often a model goes through its layers, forth or back, in a run: the size of the job."""
    return sum(
        (3 + 2 * stage.phase(epoch).budget.steps) * -(-images // stage.batch_size) for stage in wanted.stages for epoch in range(1, stage.epochs + 1)
    )


def problem_of(wanted: Recipe, seed: int, data_dir: Path | None = None) -> Problem:
    """Return what a recipe learns from: its dataset, with labels and a held-out part that follow from the seed."""
    if wanted.dataset == OWN:
        raise AtclError("this recipe learns from data of your own: give them as `problem` (from the shell: --images FOLDER --labels FILE.csv)")
    dataset = pick(DATASETS, wanted.dataset, "dataset")(data_dir)
    wanted.labels.check(dataset.classes)
    if dataset.shape != wanted.shape:
        raise AtclError(f"{wanted.dataset} has images of shape {dataset.shape}, but the recipe says {wanted.shape}: set shape")
    problem = Problem(weaken(dataset.train, wanted.labels, derive(seed, "labels")), dataset.train.truth, dataset.test)
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
            raise AtclError(f"the model {run.recipe.model} does not take images of shape {run.shape}: {str(error).splitlines()[0]}") from None
        _check_batches(run, model, problem)
    if logits.shape != (min(2, len(problem.train)), run.classes):
        raise AtclError(f"the model {run.recipe.model} returns {tuple(logits.shape)} for two images, and there are {run.classes} classes")


def _check_copies(run: Run, model: Module) -> None:
    """Refuse a model that keeps tensors worked out from its parameters: attacks and onlookers look at copies of it."""
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        remedy = "weight_norm of torch.nn.utils.parametrizations can be, that of torch.nn.utils cannot"
        raise AtclError(f"the model {run.recipe.model} cannot be copied, as attacks need ({remedy}): {str(error).split('.')[0]}") from None


def _check_batches(run: Run, model: Module, problem: Problem) -> None:
    """Refuse a batch of one image, such as the last may be, where the model's batch statistics need more; those of maps of pixels do not."""
    n, sizes = len(problem.train), [stage.batch_size for stage in run.recipe.stages]
    alone = next((number for number, size in enumerate(sizes) if size == 1 or n % size == 1), None)
    halves = {n // 2 % NATURAL.batch_size, (n + 1) // 2 % NATURAL.batch_size} if run.recipe.transition == "estimated" else set()
    if (alone is None and 1 not in halves) or not any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(as_float(problem.train.x[:1].cpu()))  # a copy: who builds it may keep it, and it would remember the image
    except ValueError:
        if alone is None:
            raise AtclError(
                f"to estimate a transition matrix, halves of {n} images are learnt in batches of {NATURAL.batch_size}, which leaves a batch of one, "
                f"on which the batch norm of {run.recipe.model} cannot learn: take two images less"
            ) from None
        others = [size for size in range(sizes[alone] + 1, sizes[alone] + n + 1) if n % size != 1]
        remedy = f"give --stages.{alone}.batch-size {others[0]}, or one image more or less" if others else "give more images"
        raise AtclError(
            f"{n} images in batches of {sizes[alone]} leave a batch of one, on which the batch norm of {run.recipe.model} cannot learn: {remedy}"
        ) from None


def _estimated(run: Run, problem: Problem, build: Build | None, watcher: Watcher) -> Problem:
    """Return the problem with a transition matrix estimated from its weak labels, which a resumed run finds in its folder."""
    path, made = run.folder / "transition.json", {"seed": run.seed, "recipe": digest(run.recipe), **problem.fingerprints()}
    kept = read_json(path) if path.exists() else {}
    if kept.get("made") != made:  # of a start that was given up for another
        watcher.say("estimating the transition matrix from the complementary labels")
        found = estimated_transition(problem.train, lambda: run.fresh_model(build), seed=derive(run.seed, "transition"))
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
