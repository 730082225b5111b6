"""Every figure: drawn from records, without overlaps, with what is missing named."""

import csv
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from atcl.analysis.observers import OBSERVATIONS
from atcl.cli.commands.train import Train
from atcl.cli.entry import main
from atcl.core.journal import to_lines
from atcl.core.settings import overridden, parse, to_data
from atcl.recipes.catalogue import recipe
from atcl.reproduce.figures.canvas import DrawnPanel, curve_rows, draw_curves
from atcl.reproduce.figures.catalogue import FIGURES
from atcl.reproduce.figures.making import make, train_small
from atcl.reproduce.figures.plan import DIGITS_SETTING, PAPER_SETTING, SMALL, Need, Setting, curve_of, needs
from atcl.reproduce.figures.records import Recorded, mean_of, recorded_in
from atcl.reproduce.figures.style import SERIES, STYLES
from atcl.runs.layout import ANALYSIS

CURVES = {name: drawing for name, drawing in FIGURES.items() if not drawing.images}
NOTE = f"{DIGITS_SETTING.about}; mean and standard error over 3 seeds"
SETTINGS = {"paper": PAPER_SETTING, "digits": DIGITS_SETTING}


def invented(setting: Setting, keep: float = 1.0) -> list[Recorded]:
    """A record for each run that any figure needs, with numbers that depend on seed and epoch."""
    wanted = needs(FIGURES.values(), setting)
    keys = {
        (curve.key, curve.part is not None)
        for one in FIGURES.values()
        for panel in one.drawable(setting)
        for curve in panel.curves
        if curve.key
    }

    def record(need: Need, stage: int, epoch: int) -> dict[str, Any]:
        value = 0.1 + need.seed * epoch / 100 + len(need.words) + len(need.name) / 10
        four = [value, value + 1, value + 2, value + 3]
        return {"stage": stage, "epoch": epoch, **{key: four if many else value for key, many in keys}}

    found = []
    for need in wanted[: math.ceil(len(wanted) * keep)]:
        records = tuple(
            record(need, number, epoch)
            for number, stage in enumerate(need.recipe.stages)
            for epoch in range(1, stage.epochs + 1)
        )
        found.append(Recorded(need.recipe, need.seed, Path("nowhere"), records, ()))
    return found


def drawn(name: str, setting: Setting, runs: list[Recorded]) -> list[DrawnPanel]:
    return [
        DrawnPanel(
            panel,
            setting.defaults[panel.dataset].dataset,
            tuple((curve, curve_of(curve, panel, setting, runs)[0]) for curve in panel.curves),
            len(setting.seeds[: panel.seeds]),
        )
        for panel in FIGURES[name].drawable(setting)
    ]


def overlap(one: Bbox, two: Bbox) -> bool:
    shared = Bbox.intersection(one, two)
    return shared is not None and shared.width > 1 and shared.height > 1


@pytest.mark.parametrize("name", CURVES)
# keep: the share of the runs that exist
@pytest.mark.parametrize(("setting", "keep"), [("digits", 1.0), ("paper", 0.5)])
def test_no_text_lies_over_another_and_no_legend_over_a_curve(name: str, setting: str, keep: float) -> None:
    panels = drawn(name, SETTINGS[setting], invented(SETTINGS[setting], keep))
    figure = draw_curves(panels, FIGURES[name].columns, NOTE)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    shown = [ax for ax in figure.axes if ax.get_visible()]
    legends = [*(legend for ax in shown if (legend := ax.get_legend())), *figure.legends]
    for ax in shown:
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.lines or [text.get_text() for text in ax.texts] == ["no run yet"]
    for legend, ax in itertools.product(legends, shown):
        assert not overlap(legend.get_window_extent(), ax.get_window_extent())
    boxes = {text: text.get_window_extent() for text in printed(figure) if text.get_text().strip()}
    page = figure.bbox.padded(1)
    assert len(boxes) > 5
    for text, box in boxes.items():
        assert page.contains(box.x0, box.y0), text
        assert page.contains(box.x1, box.y1), text
    for (one, a), (two, b) in itertools.combinations(boxes.items(), 2):
        assert not overlap(a, b), (one, two)


def printed(figure: Figure) -> list[Text]:
    """All text that a reader sees: of ticks, those within the limits."""
    found = list(figure.texts)
    for legend in figure.legends:
        found += legend.get_texts()
    for ax in (ax for ax in figure.axes if ax.get_visible()):
        own = ax.get_legend()
        found += own.get_texts() if own else []
        found += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [
                tick.label1
                for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
                if low <= tick.get_loc() <= high
            ]
    return [*found, *([figure._suptitle] if getattr(figure, "_suptitle", None) else [])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CURVES)
def test_the_data_of_a_figure_hold_every_curve(name: str) -> None:
    panels = drawn(name, DIGITS_SETTING, invented(DIGITS_SETTING))
    heading, *rows = curve_rows(panels)
    assert heading == ("dataset", "panel", "axis", "curve", "epoch", "mean", "standard_error", "seeds")
    assert {row[0] for row in rows} == {"digits"}
    expected = {(one.panel.title, curve.label) for one in panels for curve, _ in one.curves}
    assert {(row[1], row[3]) for row in rows} == expected


def test_a_figure_is_written_whole_and_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    runs = invented(DIGITS_SETTING)
    paths, lacking = make("trades", FIGURES["trades"], DIGITS_SETTING, runs, tmp_path)
    assert [path.name for path in paths] == ["trades.png", "trades.pdf", "trades.csv"]
    assert not lacking
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(b"\x89PNG")
    assert contents[1].startswith(b"%PDF")
    make("trades", FIGURES["trades"], DIGITS_SETTING, runs, tmp_path)
    assert [path.read_bytes() for path in paths] == contents


def test_the_data_are_means_and_standard_errors_over_seeds() -> None:
    mean = mean_of([{1: 1.0, 2: 5.0, 3: 9.0}, {1: 2.0, 2: 5.0}, {1: 6.0, 2: 5.0}])
    assert mean.epochs == (1, 2)  # the third was recorded by one seed alone
    assert mean.means == (3.0, 5.0)
    assert list(mean.errors) == pytest.approx([math.sqrt(14 / 3) / math.sqrt(3), 0.0])
    assert mean.seeds == 3


def test_epochs_are_counted_through_the_stages_and_the_fuller_file_is_read() -> None:
    two_stage = recipe("digits/two-stage")
    second = ({"stage": 1, "epoch": 1, "test_pgd20": 30.0},)
    both = (
        {"stage": 0, "epoch": 50, "test_pgd20": 20.0},
        {"stage": 1, "epoch": 1, "test_pgd20": 31.0},
        {"stage": 1, "epoch": 2, "test_pgd20": None},
    )
    assert Recorded(two_stage, 1, Path(), second, both).points("test_pgd20") == {50: 20.0, 51: 31.0}
    assert Recorded(two_stage, 1, Path(), second, ()).points("test_pgd20") == {51: 30.0}


def test_all_methods_differ_in_colour_and_in_marker() -> None:
    for styles in (list(STYLES.values()), list(SERIES)):
        assert len({style.colour for style in styles}) == len(styles)
        assert len({style.marker for style in styles}) == len(styles)
    for drawing in FIGURES.values():
        for setting in SETTINGS.values():
            for panel in drawing.drawable(setting):
                assert len({curve.look for curve in panel.curves}) == len(panel.curves)
                assert len({curve.label for curve in panel.curves}) == len(panel.curves)


def test_a_method_has_one_colour_everywhere() -> None:
    found: dict[str, set[str]] = {}
    for panel in (panel for drawing in FIGURES.values() for panel in drawing.drawable(PAPER_SETTING)):
        for curve in panel.curves:
            found.setdefault(curve.label, set()).add(curve.look.colour)
    assert all(len(colours) == 1 for colours in found.values()), found


def test_the_command_that_is_printed_makes_the_run_that_is_missing() -> None:
    for need in needs(FIGURES.values(), PAPER_SETTING):
        words = need.command(Path("runs"), taken=False).split()
        assert words[:2] == ["atcl", "train"]
        command, unknown = parse(Train, words[2:], "atcl train", return_unknown_args=True)
        assert command.seed == need.seed
        assert set(command.observe) == need.observe <= set(OBSERVATIONS)
        plain = recipe(command.recipe)
        assert (overridden(plain, unknown, "") if unknown else plain) == need.recipe


def test_a_run_that_was_not_observed_is_made_again_beside_it() -> None:
    need = Need("digits/oracle", recipe("digits/oracle"), (), 1, frozenset({"gradients"}))
    again = "--observe gradients --out runs/digits/oracle/seed-1-observed"
    assert need.command(Path("runs"), taken=True).endswith(again)
    assert need.command(Path("other"), taken=False).endswith("--out other/digits/oracle/seed-1")


def test_figures_are_read_from_runs_and_from_the_ledger(tmp_path: Path) -> None:
    one, two = tmp_path / "runs/any/name", tmp_path / "results/digits/oracle-0/seed-2"
    for folder in (one, two):
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_bytes(to_lines([{"stage": 0, "epoch": 1, "loss": 0.5}]))
    (one / ANALYSIS).write_bytes(to_lines([{"stage": 0, "epoch": 1, "gradient.variance": 0.9}]))
    settings = {"recipe": to_data(recipe("digits/oracle")), "seed": 1}
    (one / "recipe.json").write_text(json.dumps(settings), encoding="utf-8")
    messages: list[str] = []
    assert recorded_in(tmp_path / "runs", tmp_path / "results", messages.append) == []  # neither is finished
    (one / "result.json").write_text("{}", encoding="utf-8")
    (two / "result.json").write_text(json.dumps({**settings, "seed": 2}), encoding="utf-8")
    found = recorded_in(tmp_path / "runs", tmp_path / "results", messages.append)
    assert [(run.seed, run.points("loss"), run.points("gradient.variance")) for run in found] == [
        (1, {1: 0.5}, {1: 0.9}),
        (2, {1: 0.5}, {}),
    ]
    (two / "result.json").write_text("{}", encoding="utf-8")
    assert len(recorded_in(tmp_path / "runs", tmp_path / "results", messages.append)) == 1
    assert "is passed over" in messages[-1]


def test_a_figure_without_runs_is_named_with_the_commands_that_make_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {"--runs": "runs", "--results": "results", "--out": "figures"}
    words = [word for option, name in folders.items() for word in (option, str(tmp_path / name))]
    (tmp_path / "results").mkdir()
    assert main(["figure", "warmup", *words]) == 0
    printed = capsys.readouterr().out
    assert "warmup: no run yet" in printed
    assert "atcl train kuzushiji/warmup-pla-k --seed 3" in printed
    assert not (tmp_path / "figures").exists()
    assert main(["figure", "warmpu", *words]) == 2
    assert "did you mean 'warmup'" in capsys.readouterr().err


def test_small_runs_are_trained_observed_and_drawn_with_their_images(tmp_path: Path) -> None:
    budget = replace(SMALL.budget, steps=2)
    defaults = replace(SMALL, epochs=2, opening=1, scheduling=1, batch_size=350, budget=budget)
    setting = Setting({"kuzushiji": defaults}, (1,))
    names = ("attacks", "adversarial-images", "gradients")
    all_needs = needs([FIGURES[name] for name in names], setting)
    wanted = [need for need in all_needs if need.name == "digits/oracle"]
    assert [need.observe for need in wanted] == [{"attacks", "gradients"}]
    progress: list[int] = []
    train_small(wanted, tmp_path / "runs", progress.append)
    assert progress == [1]
    runs = recorded_in(tmp_path / "runs", tmp_path / "results", pytest.fail)
    for name in ("attacks", "gradients"):
        for panel in FIGURES[name].drawable(setting):
            for curve in panel.curves:
                mean, lacking = curve_of(curve, panel, setting, runs)
                assert (mean is not None) == (curve.source.method == "oracle") == (not lacking)
    paths, missing = make("adversarial-images", FIGURES["adversarial-images"], setting, runs, tmp_path)
    assert not missing
    rows = list(csv.DictReader(paths[2].read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 4 * 10
    oracle = [row for row in rows if row["attack"] == "oracle"]
    assert {row["l1_to_oracle"] for row in oracle} == {"0.0"}


def without_variance(run: Recorded) -> Recorded:
    def rest(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key != "gradient.variance"}

    return replace(run, records=tuple(map(rest, run.records)))


# where all seeds lack it, the panel shows that, not the legend
@pytest.mark.parametrize(("lacking", "note"), [((), ""), ((1,), " (2 to 3 of 3 seeds)"), ((1, 2, 3), "")])
def test_a_legend_counts_the_seeds_of_its_curves(lacking: tuple[int, ...], note: str) -> None:
    runs = [without_variance(run) if run.seed in lacking else run for run in invented(PAPER_SETTING)]
    figure = draw_curves(drawn("gradients", PAPER_SETTING, runs), 3, "")
    entries = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert entries == [f"{name}{note}" for name in ("oracle", "LOG", "warm-up + PLA")]


@pytest.mark.parametrize(
    ("option", "name"),
    [("--out", "file"), ("--runs", "file"), ("--results", "file"), ("--results", "nowhere")],
)
def test_what_is_no_folder_is_refused_in_one_line(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["figure", "warmup", option, str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / name) in line
    assert option in line


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "docs" / "images").glob("*.csv")), ids=lambda path: path.stem
)
def test_figures_in_the_pages_are_drawn_from_the_ledger(path: Path, tmp_path: Path) -> None:
    """The data are compared: how a picture is compressed may change with a library."""
    assert path.with_suffix(".png").exists()
    runs = recorded_in(tmp_path / "none", path.parents[2] / "results", pytest.fail)
    make(path.stem, FIGURES[path.stem], PAPER_SETTING, runs, tmp_path)
    same = (tmp_path / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    assert same, f"stale: atcl figure {path.stem} --out docs/images"
