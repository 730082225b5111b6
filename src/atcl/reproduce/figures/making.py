"""Making a figure: training its runs if they are small, and drawing it from the runs that there are."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from atcl.analysis.attacks import attack_qualities, paper_attack_losses
from atcl.analysis.observers import INSTANCES, Observers, attack_sample, seed_of
from atcl.attacks.pgd import pgd
from atcl.attacks.threat import Budget
from atcl.core.device import available_cores
from atcl.core.seeds import generator
from atcl.evaluation.attacks import cross_entropy_of
from atcl.losses import PAPER
from atcl.recipes.catalogue import with_derived_weights
from atcl.reproduce.figures.canvas import (
    DrawnPanel,
    ImageRow,
    curve_rows,
    draw_curves,
    draw_images,
    save_figure,
)
from atcl.reproduce.figures.plan import Drawing, FigurePanel, Need, Setting, curve_of
from atcl.reproduce.figures.records import Recorded
from atcl.runs import layout
from atcl.runs.problem import Problem
from atcl.runs.run import open_run
from atcl.runs.spec import Execution
from atcl.runs.start import problem_of, train

FIGURE_TITLES = {"mnist": "MNIST", "kuzushiji": "Kuzushiji-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
Missing = set[tuple[object, int]]  # recipes and seeds


def train_small(wanted: Sequence[Need], runs: Path, notify: Callable[[int], None]) -> None:
    """Train small runs, as many at once as there are cores; the same call continues after an interruption.

    Args:
        wanted: the runs.
        runs: the folder of all runs.
        notify: called with the number of finished runs after each.
    """
    workers = min(available_cores(), len(wanted))
    if workers < 2:  # no second process for one run
        for number, need in enumerate(wanted, 1):
            _train_one(need, runs)
            notify(number)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            waiting = [pool.submit(_train_one, need, runs) for need in wanted]
            for number, done in enumerate(as_completed(waiting), 1):
                done.result()
                notify(number)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _train_one(need: Need, runs: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads do not help with small tensors, and one gives the same numbers
    try:
        execution = Execution(device="cpu", observing=Observers(tuple(sorted(need.observe)), 2))
        train(need.recipe, name=need.name, seed=need.seed, out=need.folder(runs), execution=execution)
    finally:
        torch.set_num_threads(before)


def make(
    name: str,
    drawing: Drawing,
    setting: Setting,
    runs: Sequence[Recorded],
    out: Path,
    data_dir: Path | None = None,
) -> tuple[list[Path], Missing]:
    """Draw a figure from the runs that there are.

    Returns:
        The paths of its files, none if there is no run, and the recipes and seeds that are missing.
    """
    panels = drawing.drawable(setting)
    if drawing.images:
        return _make_images(name, panels, setting, runs, out, data_dir)
    drawn, lacking = [], Missing()
    for panel in panels:
        curves = []
        for curve in panel.curves:
            mean, missing = curve_of(curve, panel, setting, runs)
            curves.append((curve, mean))
            lacking |= set(missing)
        drawn.append(
            DrawnPanel(
                panel,
                setting.defaults[panel.dataset].dataset,
                tuple(curves),
                len(setting.seeds[: panel.seeds]),
            )
        )
    if not any(mean and not curve.planned for one in drawn for curve, mean in one.curves):
        return [], lacking
    asked = drawn[0].seeds if len({one.seeds for one in drawn}) == 1 else len(setting.seeds)
    fewer = ", or as many of them as were run" if lacking else ""
    note = _note(
        setting, panels, "one seed" if asked == 1 else f"mean and standard error over {asked} seeds{fewer}"
    )
    return save_figure(draw_curves(drawn, drawing.columns, note), curve_rows(drawn), out, name), lacking


def _make_images(
    name: str,
    panels: Sequence[FigurePanel],
    setting: Setting,
    runs: Sequence[Recorded],
    out: Path,
    data_dir: Path | None,
) -> tuple[list[Path], Missing]:
    """Draw training images, natural and attacked with each loss, on the model of each panel's first run."""
    lacking, grid = Missing(), list[ImageRow]()
    rows: list[tuple[object, ...]] = [
        ("dataset", "image", "attack", "p_true", "l1_to_oracle", "cosine_to_oracle", "lowered")
    ]
    headings = ("natural", "oracle", *(loss.upper() for loss in PAPER), "PLA")
    for panel in panels:
        recipe, seed = panel.curves[0].source.recipe(setting.defaults[panel.dataset]), setting.seeds[0]
        like = with_derived_weights(recipe), seed  # however its weights were drawn: this is no mean
        found = [
            one
            for one in runs
            if (with_derived_weights(one.recipe), one.seed) == like and (one.folder / layout.MODEL).exists()
        ]
        if not found:
            lacking.add((recipe, seed))
            continue
        run = open_run(found[0].folder)
        made, numbers = _attacked(
            run.model(),
            problem_of(recipe, seed, data_dir),
            recipe.stages[0].budget,
            seed_of(run, 0),
            panel.title,
        )
        grid += made
        rows += [(recipe.dataset, *line) for line in numbers]
    if not grid:
        return [], lacking
    note = _note(
        setting, panels, "attacks on the oracle's model; below each image the probability of its true class"
    )
    return save_figure(draw_images(grid, headings, note), rows, out, name), lacking


def _attacked(
    model: torch.nn.Module, problem: Problem, budget: Budget, seed: int, title: str
) -> tuple[list[ImageRow], list[tuple[object, ...]]]:
    """Return the rows of the grid and their numbers, for the images that are also observed one by one."""
    x, candidates, true = (part[:INSTANCES] for part in attack_sample(problem, seed))
    attack_losses = paper_attack_losses(model, x, candidates)
    quality = attack_qualities(model, x, attack_losses, true, budget, generator(x.device, seed, "images"))
    made = {
        name: pgd(
            model,
            x,
            attack_loss,
            epsilon=budget.epsilon,
            step_size=budget.step_size,
            steps=budget.steps,
            norm=budget.norm,
            start=budget.start,
            rng=generator(x.device, seed, "images"),
        )
        for name, attack_loss in {"oracle": cross_entropy_of(true), **attack_losses}.items()
    }
    rows, numbers = list[ImageRow](), list[tuple[object, ...]]()
    for number in range(len(x)):
        ruled_out = ", ".join(map(str, (~candidates[number]).nonzero()[:, 0].tolist()))
        about = f"{title}\nclass {int(true[number])}, not {ruled_out}"
        before = float(quality["oracle"].natural[number])
        after = [float(quality[name].attacked[number]) for name in made]
        rows.append(
            ImageRow(
                (x[number], *(adv[number] for adv in made.values())),
                tuple(f"{value:.2f}" for value in (before, *after)),
                about,
            )
        )
        numbers.append((number + 1, "natural", before, "", "", ""))
        for name in made:
            one = quality[name]
            numbers.append(
                (
                    number + 1,
                    name,
                    float(one.attacked[number]),
                    float(one.l1[number]),
                    float(one.cosine[number]),
                    bool(one.lowered[number]),
                )
            )
    return rows, numbers


def _note(setting: Setting, panels: Sequence[FigurePanel], text: str) -> str:
    """Return the heading of a figure: its data, and how they were combined."""
    datasets = " and ".join(dict.fromkeys(FIGURE_TITLES[panel.dataset] for panel in panels))
    return f"{setting.about or datasets}; {text}"
