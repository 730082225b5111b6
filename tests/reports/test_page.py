"""The page as data and as HTML: what it shows and leaves out, and that no name becomes part of its code."""

import ast
import json
import re
import shlex
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from atcl.analysis.observers import Observers
from atcl.attacks.threat import Threat
from atcl.cli.entry import main
from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json
from atcl.core.settings import options, overridden, to_data
from atcl.datasets.labels import Complementary, FromFile, weaken
from atcl.evaluation.masking import CHECKS
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.recipes.methods import METHODS
from atcl.reports.curves import DARK, DASHES, PANELS, columns_of, contrast, drawn, on_dark
from atcl.reports.gathering import METHOD_TITLES, RunSummary, grouped, overrides, rerun
from atcl.reports.looking import (
    Predictions,
    calibration,
    calibration_error,
    chosen,
    confusion,
    cost,
    outcomes,
    picture,
    predict_and_attack,
    side_for,
)
from atcl.reports.markup import Markup, el, embedded
from atcl.reports.scenes import scenes
from atcl.reports.writing import GALLERY_IMAGES, LIMIT, PICTURE_BYTES, report
from atcl.reproduce.figures.style import SERIES, STYLES
from atcl.runs.problem import Problem
from atcl.runs.run import Run, open_run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from atcl.training.optimizers import Sgd
from atcl.training.schedules import CosineRise
from tests import tiny
from tests.cli.test_cli import SMALL

NASTY = "</script><script>alert('&')</script>"


def go(folder: Path, name: str = "digits/warmup-pla", seed: int = 1, **more: Any) -> Run:
    wanted = tiny.RECIPES[name]
    given = {"problem": tiny.problem(wanted.labels), "build": tiny.TinyNet, **more}
    return train(wanted, name=name, seed=seed, out=folder, **{"execution": tiny.ON_CPU, **given})


class Reader(HTMLParser):
    """Counts elements, and collects the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.inside: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.inside[-1:]):
            self.words.append(data)


def read(path: Path) -> tuple[dict[str, int], str]:
    """Return how often each element comes in a page, and its text."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.counts, " ".join(" ".join(reader.words).split())


def test_whatever_is_not_markup_is_escaped() -> None:
    assert el("b", NASTY, title=NASTY) == f'<b title="{html(NASTY)}">{html(NASTY)}</b>'
    assert el("p", Markup("<i></i>"), None, ["a<", 3], hidden=True, id=None) == "<p hidden><i></i>a&lt;3</p>"
    text = embedded({NASTY: [NASTY, "\u2028"]})
    assert "<" not in text
    assert json.loads(text) == {NASTY: [NASTY, "\u2028"]}


def html(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("'", "&#x27;").replace('"', "&quot;")


def test_names_of_classes_folders_and_runs_are_text_on_the_page(tmp_path: Path) -> None:
    plain = tiny.problem(tiny.RECIPES["digits/warmup-pla"].labels)
    problem = replace(plain, names=(NASTY, "b", "c", "d", "e"))
    folder = tmp_path / "<script>alert(1)"
    run = replace(go(folder, problem=problem), name=f"own/{NASTY}")
    path = report(run, test=tiny.split(40), build=tiny.TinyNet)
    assert path == folder / "report.html"
    counts, words = read(path)
    assert counts["script"] == 2  # the data and the page's own
    assert NASTY in words
    assert str(folder) in words
    source = re.sub(r'"data:image/png;base64,[^"]*"', "", path.read_text(encoding="utf-8"))
    for name in ("http-equiv", "http://www.w3.org/2000/svg"):  # names, which nothing fetches
        source = source.replace(name, "")
    assert "http" not in source


def test_seeds_of_one_recipe_become_a_mean_and_others_lines_of_their_own(tmp_path: Path) -> None:
    seeds = [go(tmp_path / f"a{seed}", seed=seed) for seed in (1, 2)]
    runs = [*seeds, go(tmp_path / "b", "digits/two-stage")]
    groups = grouped(runs)
    assert [(group.label, len(group.members)) for group in groups] == [("warm-up + PLA", 2), ("two-stage", 1)]
    assert [group.style for group in groups] == [STYLES["warm-up + PLA"], STYLES["two-stage"]]
    (loss,) = [panel for panel in drawn(groups)["panels"] if panel["id"] == "loss"]
    values = [[record["loss"] for record in run.journal] for run in runs[:2]]
    means = [sum(pair) / 2 for pair in zip(*values, strict=True)]
    assert loss["lines"][0]["y"] == pytest.approx(means, rel=1e-4)
    singles = [single["y"] for single in loss["lines"][0]["singles"]]
    assert singles == [pytest.approx(one, rel=1e-4) for one in values]
    assert "singles" not in loss["lines"][1]
    cell = groups[0].cell("natural")
    assert cell.values == tuple(run.result.metrics["natural"].accuracy for run in runs[:2])
    _, words = read(report(runs, tmp_path / "all.html", gallery=False))
    assert "2 methods" in words
    assert "asked for without images" in words


def test_two_variants_of_a_method_have_their_own_labels_and_styles(tmp_path: Path) -> None:
    first = open_variant(tmp_path / "1", "digits/warmup-pla")
    second = open_variant(tmp_path / "2", "digits/warmup-pla", "--stages.0.epochs", "70")
    groups = grouped([first, second, open_variant(tmp_path / "3", "digits/warmup-pla-mcl")])
    assert len({group.label for group in groups}) == 3
    assert len({group.style for group in groups}) == 3
    assert groups[1].label == "warm-up + PLA (stages.0.epochs 70)"
    assert groups[0].style == STYLES["warm-up + PLA"] != groups[1].style
    assert groups[0].style.dash != groups[1].style.dash
    # the unchanged recipe keeps it, whichever comes first
    assert grouped([second, first])[1].style == STYLES["warm-up + PLA"]


def open_variant(folder: Path, name: str, *words: str) -> Run:
    """A run that has a recipe, and nothing else yet."""
    wanted = overridden(recipe(name), words, "atcl") if words else recipe(name)
    run = Run(folder, name, 1, wanted, 10, wanted.shape)
    folder.mkdir()
    facts = {"name": name, "seed": 1, "classes": 10, "shape": list(wanted.shape), "names": None, "test": None}
    write_json(folder / "recipe.json", {**facts, "recipe": to_data(wanted)})
    return run


def after(folder: Path, seed: int, epochs: int) -> Run:
    """A run like `finished` of another seed, which has come to an epoch; at 100 it has its result."""
    run = replace(finished(folder), seed=seed)
    lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(lines[:epochs]), encoding="utf-8")
    if epochs < len(lines):
        (folder / "result.json").unlink()
    return run


def test_a_young_seed_does_not_cut_the_curves_of_its_group(tmp_path: Path) -> None:
    epochs_of = ((1, 100), (2, 100), (3, 2))
    groups = grouped([after(tmp_path / str(seed), seed, epochs) for seed, epochs in epochs_of])
    (line,) = next(panel for panel in drawn(groups)["panels"] if panel["id"] == "loss")["lines"]
    assert line["x"] == list(range(1, 101))
    assert line["n"] == [3, 3] + 98 * [2]
    assert line["y"] == pytest.approx([1 / epoch for epoch in range(1, 101)], rel=1e-4)
    assert "n" not in drawn(grouped([after(tmp_path / "4", 4, 100)]))["panels"][0]["lines"][0]


def test_seeds_recorded_now_and_then_are_averaged_where_they_meet() -> None:
    found = columns_of([{2: 1.0, 4: 2.0, 6: 3.0}, {1: 7.0, 2: 8.0, 3: 9.0, 4: 10.0}])
    assert found == {2: [1.0, 8.0], 4: [2.0, 10.0], 6: [3.0]}
    assert columns_of([{1: 1.0, 3: 2.0}, {2: 7.0}]) == {3: [2.0]}  # never empty, without a common epoch too


def test_a_repeated_seed_stands_apart(tmp_path: Path) -> None:
    seeds = {"seed-1": 1, "seed-2": 2, "seed-1-again": 1}
    groups = grouped([after(tmp_path / name, seed, 100) for name, seed in seeds.items()])
    assert [[one.run.seed for one in group.members] for group in groups] == [[1, 2], [1]]
    assert [group.label for group in groups] == ["warm-up + PLA (seed-1, …)", "warm-up + PLA (seed-1-again)"]
    assert len({group.style for group in groups}) == 2


def test_runs_on_data_of_ones_own_are_grouped_by_their_data_wherever_they_lie(tmp_path: Path) -> None:
    wanted = tiny.RECIPES["own/warmup-pla"]
    other = replace(own(wanted), train=weaken(tiny.split(seed=5), Complementary(), seed=3))
    runs = [
        train(
            wanted,
            name="own/warmup-pla",
            seed=seed,
            out=tmp_path / folder,
            problem=problem,
            build=tiny.TinyNet,
            execution=tiny.ON_CPU,
        )
        for folder, seed, problem in (
            ("cats", 1, own(wanted)),
            ("dogs", 2, other),
            ("far/cats", 2, own(wanted)),
        )
    ]
    groups = grouped(runs)
    folders = [[one.run.folder.name for one in group.members] for group in groups]
    assert folders == [["cats", "cats"], ["dogs"]]
    assert [group.label for group in groups] == ["warm-up + PLA (cats, …)", "warm-up + PLA (dogs)"]
    values = [100 * run.result.held["robust"].mean for run in (runs[0], runs[2])]
    _, words = read(report([runs[0], runs[2]], tmp_path / "page.html", gallery=False))
    tile = words[words.index("estimated robust") : words.index("Results")]
    assert f"{statistics.fmean(values):.1f} ± {statistics.pstdev(values):.1f} %" in tile
    assert "standard error" not in tile
    _, words = read(report(runs[0], gallery=False))
    assert "by held-out labels, ± standard error" in words
    assert "after what held-out labels tell of one run, it is a standard error" in words


def test_runs_that_are_not_finished_do_not_count_as_measured(tmp_path: Path) -> None:
    runs = [after(tmp_path / str(seed), seed, epochs) for seed, epochs in ((1, 100), (2, 100), (3, 2))]
    (group,) = grouped(runs)
    assert group.seeds == "seeds 1, 2 (1 not finished)"
    assert grouped(runs[2:])[0].seeds == "seed 3 (not finished)"
    _, words = read(report(runs, tmp_path / "one.html", gallery=False))
    assert "warm-up + PLA, seeds 1, 2 (1 not finished): accuracy on the test set" in words
    other = open_variant(tmp_path / "other", "kuzushiji/oracle")
    page = report([*runs, other], tmp_path / "many.html", gallery=False)
    assert "<td>2 (1 not finished)</td>" in page.read_text(encoding="utf-8")
    assert "4 runs, 2 not finished" in read(page)[1]


def test_an_attack_that_was_not_run_on_all_seeds_counts_those_it_was_run_on(tmp_path: Path) -> None:
    runs = [after(tmp_path / str(seed), seed, 100) for seed in (1, 2)]
    result = runs[1].result.to_json()
    del result["metrics"]["cw30"]
    write_json(runs[1].folder / "result.json", result)
    assert "83.70 (1 of 2 seeds)" in read(report(runs, tmp_path / "page.html", gallery=False))[1]


@pytest.mark.parametrize(
    ("threads", "before"), [(8, "OMP_NUM_THREADS=8 "), ("8; touch broken;", ""), (None, "")]
)
def test_only_a_number_of_threads_comes_into_the_command(
    tmp_path: Path, threads: object, before: str
) -> None:
    run = finished(tmp_path / "run")
    environment = {"device": "a CPU", "threads": threads}
    write_json(run.folder / "result.json", {**run.result.to_json(), "environment": environment})
    assert rerun(RunSummary.of(run)).startswith(f"{before}atcl train kuzushiji/warmup-pla ")


def test_no_name_of_a_model_comes_into_python_as_code(tmp_path: Path) -> None:
    run = open_variant(tmp_path / "run", "digits/warmup-pla")
    wild: Any = {"seed": "1)\nbroken(", "recipe": replace(run.recipe, model="Net)\nbroken(")}
    tree = ast.parse(rerun(RunSummary.of(replace(run, **wild))))
    assert len(tree.body) == 2
    assert {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} == {"atcl", "MODEL"}


def test_a_path_with_an_apostrophe_is_quoted(tmp_path: Path) -> None:
    run = open_variant(tmp_path / "run", "digits/warmup-pla")
    path = "it's mine/not these.npy"
    run = replace(run, recipe=replace(run.recipe, labels=FromFile(path)))
    (line,) = [line for line in options(run.recipe) if line.startswith("--labels.path ")]
    assert shlex.split(line) == ["--labels.path", path]
    assert "atcl.open_run(" in rerun(RunSummary.of(run))  # options cannot choose another kind of labels


def test_a_setting_that_no_shell_would_read_leaves_out_the_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_variant(tmp_path / "run", "digits/warmup-pla", "--stages.0.epochs", "3")
    unquoted: Any = lambda settings: [f"--labels.path it's {settings.stages[0].epochs}"]  # noqa: E731
    monkeypatch.setattr("atcl.reports.gathering.options", unquoted)
    assert overrides(run) is None


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--stages.0.epochs", "3"),
        ("--labels.number", "3", "--threat.epsilon", "0.1", "--selection", "test_pgd20"),
    ],
)
def test_the_command_on_the_page_gives_the_same_recipe(tmp_path: Path, words: tuple[str, ...]) -> None:
    run = open_variant(tmp_path / "run 1", "digits/warmup-pla", *words)
    command = shlex.split(rerun(RunSummary.of(run)))
    assert command[:3] == ["atcl", "train", "digits/warmup-pla"]
    assert command[command.index("--out") + 1] == str(tmp_path / "run 1-again")
    given = overrides(run)
    assert given is not None
    assert (overridden(recipe(run.name), given, "atcl") if given else recipe(run.name)) == run.recipe
    assert command[3 : 3 + len(given)] == given


def test_own_pictures_are_named_in_the_command(tmp_path: Path) -> None:
    run = open_variant(tmp_path / "run", "own/warmup-pla", "--shape", "3", "64", "64")
    command = rerun(RunSummary.of(run))
    assert "own/warmup-pla --shape 3 64 64 --images FOLDER --labels FILE.csv --seed 1" in command


def test_a_recipe_that_no_options_can_give_is_written_in_python(tmp_path: Path) -> None:
    run = open_variant(tmp_path / "run", "digits/warmup-pla")
    other = replace(run.recipe.stages[0], optimizer=Sgd(), lr=CosineRise(0.1, over=3))
    assert "atcl.open_run(" in rerun(RunSummary.of(replace(run, recipe=replace(run.recipe, stages=(other,)))))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_command(name: str, tmp_path: Path) -> None:
    wanted = recipe(name)
    assert overrides(Run(tmp_path, name, 1, wanted, 10, wanted.shape)) == []


def test_methods_have_the_colours_of_the_figures() -> None:
    assert set(METHOD_TITLES) <= set(METHODS)
    assert set(METHOD_TITLES.values()) <= set(STYLES)
    for style in (*STYLES.values(), *SERIES):
        assert contrast(on_dark(style.colour), DARK) >= 3
        assert style.dash in DASHES
    css = (Path(__file__).parents[2] / "src/atcl/reports/page.css").read_text(encoding="utf-8")
    assert css.count(f"--ground: {DARK};") == 2


def test_a_run_that_is_not_finished_shows_its_curves_and_a_note(tmp_path: Path) -> None:
    class Stop(Watcher):
        def epoch(self, record: dict[str, Any]) -> None:
            if record["epoch"] == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", watcher=Stop())
    messages: list[str] = []
    path = report(tmp_path / "run", notify=messages.append)
    counts, words = read(path)
    assert "training has not ended (epoch 3 of 5)" in words
    assert "There is no result yet" in words
    assert counts.get("img", 0) == 0
    assert '"id":"loss"' in path.read_text(encoding="utf-8")
    assert len(messages) == 1


def test_own_data_without_truth_leave_out_what_cannot_be_known(tmp_path: Path) -> None:
    wanted = tiny.RECIPES["own/warmup-pla"]
    problem = replace(tiny.problem(wanted.labels), truth=None, test=None)
    run = train(
        wanted,
        name="own/warmup-pla",
        out=tmp_path / "run",
        problem=problem,
        build=tiny.TinyNet,
        execution=tiny.ON_CPU,
    )
    _, words = read(report(run))
    assert "there is no test set with true classes" in words
    assert "estimated from held-out complementary labels" in words
    assert "learnt from data of your own" in words
    assert "problem=PROBLEM, build=TinyNet" in words  # no command could bring them
    assert "Signs of false robustness" not in words
    assert "--observe test" not in words  # there is no test set to observe


def test_a_missing_dataset_leaves_out_the_gallery_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished(tmp_path / "run")
    options = ["--data-dir", str(tmp_path / "nowhere"), "--out", str(tmp_path / "page.html")]
    assert main(["report", str(run.folder), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert "no images on the page" in printed[0]
    assert printed[1] == f"the page is in {tmp_path / 'page.html'}"
    _, words = read(tmp_path / "page.html")
    assert "No images, calibration and confusion" in words


def finished(folder: Path, flags: list[dict[str, Any]] | None = None) -> Run:
    """The files of a run of the paper's recipe on Kuzushiji, with the epoch chosen on the test set."""
    run = open_variant(folder, "kuzushiji/warmup-pla")
    names = None if flags is None else [flag["name"] for flag in flags]
    one: dict[str, Any] = {"images": 10_000, "seconds": 1.0, "flags": names, "attack": {}}
    accuracies = {"natural": 91.7, "pgd20": 70.0, "cw30": 83.7}
    metrics = {name: {**one, "accuracy": value} for name, value in accuracies.items()}
    records = [
        {
            **{"stage": 0, "epoch": epoch, "epsilon": 0.3, "gamma": 0.0, "lr": 0.01, "steps": 40},
            **{"loss": 1 / epoch, "inside": 0.9, "agreement": 0.9, "pseudo_label_accuracy": 0.9},
            **{"test_natural": 90.0 + epoch / 100, "test_pgd20": 80.0 + epoch / 100},
            **{"crafted": "bf16", "seconds": 2.0},
        }
        for epoch in range(1, 101)
    ]
    (folder / "journal.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
    )
    (folder / "model.safetensors").write_bytes(b"")
    result = {
        **{"recipe": to_data(run.recipe), "seed": run.seed, "training_seconds": 200.0},
        "selection": {"rule": "test_pgd20", "stage": 0, "epoch": 72, "crafted": "bf16"},
        **{"metrics": metrics, "flags": flags, "held": {}, "last_epoch": {"metrics": metrics}},
        "environment": {"device": "NVIDIA H200", "threads": 8},
        **{"engine": {"name": "captured"}, "data": {"test": "0123"}},
        "model": {"sha256": "f" * 64, "bytes": 5},
    }
    write_json(folder / "result.json", result)
    return run


def test_published_numbers_flags_rule_and_precision_are_shown(tmp_path: Path) -> None:
    flags = [{"name": "noise", "value": 3.0, "says": "9 draws of noise break 12 of 200 right images"}]
    _, words = read(report(finished(tmp_path / "run", flags), gallery=False))
    for text in ("91.60 ± 0.49", "+0.10", "-15.88", "outside", "crafted in bf16", "test_pgd20"):
        assert text in words
    assert "epoch 72, chosen for the best PGD20 on the test set" in words
    for text in ("radius ε = 0.3", "20 ascents of cross-entropy", "--device cuda"):
        assert text in words
    for text in ("9 draws of noise break", str(CHECKS["noise"].__doc__)):
        assert text in words
    assert words.count("outside") == 2  # PGD20 alone, and what the word means
    _, unchecked = read(report(finished(tmp_path / "other"), gallery=False))
    assert "Not looked for yet" in unchecked


def test_a_worst_case_is_shown_with_the_attacks_that_it_was_taken_over(tmp_path: Path) -> None:
    def evaluated(seed: int, *attacks: str) -> Path:
        folder = finished(tmp_path / str(seed)).folder
        write_json(folder / "recipe.json", {**read_json(folder / "recipe.json"), "seed": seed})
        result = read_json(folder / "result.json")
        attack = {"about": f"for each image the worst of {', '.join(attacks)}"}
        one = {**result["metrics"]["pgd20"], "attack": attack}
        metrics = {**dict.fromkeys(attacks, one), "worst": one}
        write_json(folder / "result.json", {**result, "metrics": metrics})
        return folder

    usual, strong = ("natural", "pgd20", "cw30"), ("natural", "pgd20", "cw30", "autoattack")
    folders = [evaluated(seed, *attacks) for seed, attacks in ((1, usual), (2, strong), (3, usual))]

    def words(*shown: Path) -> str:
        return read(report(shown, tmp_path / "page.html", gallery=False))[1]

    assert "withstands all of them" in words(folders[0], folders[2])
    assert "withstands all of them" in words(folders[1])
    mixed = words(*folders)
    of_two = "PGD20 + CW30 (warm-up + PLA, seeds 1, 3)"
    of_three = "PGD20 + CW30 + AutoAttack (warm-up + PLA, seed 2)"
    assert f"withstands {of_two}; {of_three}" in mixed
    assert "cannot be compared" in mixed
    result = read_json(folders[1] / "result.json")
    result["metrics"]["worst"]["attack"] = read_json(folders[0] / "result.json")["metrics"]["worst"]["attack"]
    write_json(folders[1] / "result.json", result)
    # AutoAttack stands in the table, but the worst case was taken without it
    assert "withstands PGD20 + CW30 " in words(folders[1])


def test_a_page_on_many_long_runs_stays_small(tmp_path: Path) -> None:
    runs = [finished(tmp_path / str(number)) for number in range(12)]
    path = report(runs, tmp_path / "page.html", gallery=False)
    assert path.stat().st_size < 1_000_000


def test_pictures_of_any_size_and_number_fit_the_page(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(48, 3, 160, 160, generator=rng)
    probabilities = torch.rand(48, 5, generator=rng).softmax(1)
    true = torch.arange(48) % 5
    index, adv, attacked = torch.arange(48), (x + 0.1).clamp(0, 1), probabilities.flip(1)
    seen = Predictions(index, true, probabilities, x, adv, attacked, 48, Threat(0.1, 0.01))
    for number in (GALLERY_IMAGES, 48):
        assert len(scenes(seen, tuple("abcde"), number, PICTURE_BYTES)) < 0.8 * LIMIT
    assert side_for(3 * GALLERY_IMAGES, 3, PICTURE_BYTES) == 128
    for channels in (1, 2, 3, 4):
        assert picture(x[0, :1].expand(channels, -1, -1), 32).startswith("data:image/png;base64,")


def test_a_hundred_classes_give_the_mistakes_made_most_often() -> None:
    n, classes = 300, 100
    true = torch.arange(n) % classes
    predicted = torch.nn.functional.one_hot((true + (true == 7)) % classes, classes).float()
    x = torch.rand(n, 1, 4, 4)
    seen = Predictions(torch.arange(n), true, predicted, x, x, predicted, n, Threat(0.1, 0.01))
    text = scenes(seen, [f"class {one}" for one in range(classes)], 3, PICTURE_BYTES)
    assert "The mistakes made most often" in text
    assert re.search(r'<th scope="row">class 7</th><td>class 8</td><td>3</td><td>3</td>', text)


def test_calibration_counts_each_prediction_once_and_weighs_bins_by_images() -> None:
    probabilities = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.65, 0.35], [1.0, 0.0]], dtype=torch.float64)
    true = torch.tensor([0, 0, 0, 0])
    bins = calibration(probabilities, true)
    found = [(one.low, one.images, one.accuracy) for one in bins]
    assert found == [(0.6, 1, 1.0), (0.9, 3, pytest.approx(2 / 3))]
    assert bins[1].confidence == pytest.approx(2.9 / 3)
    assert calibration_error(bins) == pytest.approx((0.35 + 3 * (2.9 / 3 - 2 / 3)) / 4)


def test_confusion_has_true_classes_in_its_rows() -> None:
    found = confusion(torch.tensor([1, 1, 0, 2]), torch.tensor([0, 0, 0, 2]), 3)
    assert found.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_a_gallery_spreads_over_classes_and_outcomes() -> None:
    outcome = ["stays"] * 30 + ["turned"] * 30 + ["wrong"] * 5
    true = [place % 3 for place in range(65)]
    found = chosen(outcome, true, 12)
    assert len(set(found)) == 12
    assert [outcome[place] for place in found].count("stays") == 6
    assert [sum(true[place] == one for place in found) for one in range(3)] == [4, 4, 4]
    # where none is turned, those that were wrong before come last
    assert chosen(["stays"] * 2 + ["wrong"] * 3, [0] * 5, 4) == [0, 1, 2, 3]
    assert chosen([], [], 4) == []


def test_adversarial_copies_stay_in_the_ball_and_give_the_accuracy_of_record(tmp_path: Path) -> None:
    run = go(tmp_path)
    test = tiny.split(10, seed=1)
    seen = predict_and_attack(run.model(build=tiny.TinyNet), test, run.recipe.threat)
    assert float((seen.adv - seen.x).abs().max()) <= run.recipe.threat.epsilon + 1e-6
    right = (seen.attacked.argmax(1) == seen.true) & (seen.natural.argmax(1) == seen.true)
    assert [one == "stays" for one in outcomes(seen)] == right.tolist()
    correct = int((seen.attacked.argmax(1) == seen.true).sum())
    assert 10.0 * correct == run.result.metrics["pgd20"].accuracy  # of ten images


def test_the_cost_of_a_forward_pass_counts_weights_by_the_pixels_they_serve() -> None:
    conv, linear = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Linear(144, 5)
    model = torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(), linear)
    assert cost(model, tiny.split(2)) == 2 * (4 * 9 * 36 + 144 * 5)
    assert not model[0]._forward_hooks


def test_training_ends_with_the_page_unless_it_is_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "--out", str(out), *SMALL]) == 0
    assert f"the page is in {out / 'report.html'}" in capsys.readouterr().out
    counts, words = read(out / "report.html")
    assert counts["img"] == 3 * GALLERY_IMAGES
    assert "warm-up + PLA on digits" in words
    assert "--model mlp" in words  # in the command that makes it again
    assert main(["train", "--out", str(tmp_path / "other"), "--no-report", *SMALL]) == 0
    assert not (tmp_path / "other/report.html").exists()


def test_measuring_a_run_makes_its_pages_anew_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path), "--seeds", "1", "10", "2", *SMALL]) == 0
    names = ("seed-2/report.html", "report.html", "seed-1/report.html")
    own, shared, other = (tmp_path / name for name in names)
    before = {path: path.read_bytes() for path in (own, shared, other)}
    capsys.readouterr()
    words = ["evaluate", str(own.parent), "--attacks", "natural", "pgd20_restarts", "--no-checks"]
    assert main([*words, "--no-report"]) == 0
    assert "written again" not in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in before}
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines[0] == f"written again: {own}"
    assert "PGD20, 10 starts" in read(own)[1]
    assert other.read_bytes() == before[other]
    assert shared.read_bytes() == before[shared]  # a page on several runs is its user's
    remedy = re.search("`atcl (.*)`", lines[1])
    assert remedy
    assert main(shlex.split(remedy[1])) == 0
    assert "PGD20, 10 starts" in read(shared)[1]
    assert re.search(r"seeds? [\d, ]+", read(shared)[1])[0].strip(" ,") == "seeds 1, 2, 10"  # type: ignore[index]
    capsys.readouterr()
    own.unlink()
    shared.unlink()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 2
    assert not own.exists()
    assert not shared.exists()


@pytest.mark.parametrize("error", [AtclError("no room"), RuntimeError("something\nelse"), MemoryError()])
def test_a_page_that_fails_never_fails_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("atcl.cli.pages.page", fail)
    assert main(["train", "--out", str(tmp_path / "run"), *SMALL]) == 0
    printed = capsys.readouterr().out
    assert len([line for line in printed.splitlines() if line.startswith("no page was written (")]) == 1
    assert (tmp_path / "run/result.json").exists()


def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(finished(tmp_path / "run").folder)
    for words, message in (
        ([str(tmp_path)], "is not the folder of a run"),
        ([run, run], "the same run is named twice"),
        ([run, "--out", str(tmp_path)], "is a folder: give the page a name"),
        ([run, "--out", str(tmp_path / "no/page.html")], "is no folder"),
        ([run, "--images", "-1"], "at least 0 images"),
        ([run, "--device", "abacus"], "unknown device 'abacus'"),
    ):
        before = sorted(tmp_path.rglob("*"))
        assert main(["report", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(AtclError, match="at least one run"):
        report([])


def test_a_result_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    result = run.result.to_json()
    del result["last_epoch"]
    write_json(run.folder / "result.json", result)
    with pytest.raises(AtclError, match=r"result\.json has no last_epoch"):
        report(run, gallery=False)


def test_an_evaluation_that_fails_leaves_a_page_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr("atcl.reports.writing.predictions_for", full)
    messages: list[str] = []
    _, words = read(report(finished(tmp_path / "run"), notify=messages.append))
    assert messages == [f"{tmp_path / 'run'}: no images on the page: CUDA out of memory"]
    assert "No images, calibration and confusion: CUDA out of memory." in words


def test_a_page_that_would_be_too_large_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atcl.reports.writing.LIMIT", 1000)
    with pytest.raises(AtclError, match="name fewer runs"):
        report(finished(tmp_path / "run"), tmp_path / "page.html", gallery=False)
    assert not (tmp_path / "page.html").exists()


def test_another_test_set_is_not_evaluated(tmp_path: Path) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--no-report", *SMALL]) == 0
    recorded = read_json(tmp_path / "run/recipe.json")
    write_json(tmp_path / "run/recipe.json", {**recorded, "test": "another"})
    messages: list[str] = []
    report(open_run(tmp_path / "run"), notify=messages.append)
    assert "not the one that the run was made with" in messages[0]


def test_every_panel_reads_a_number_that_runs_record(tmp_path: Path) -> None:
    run = go(tmp_path / "a", execution=Execution(device="cpu", observing=Observers(("gradients", "test"), 1)))
    wanted = tiny.RECIPES["own/warmup-pla"]
    held = train(
        wanted,
        name="own/warmup-pla",
        out=tmp_path / "b",
        problem=own(wanted),
        build=tiny.TinyNet,
        execution=tiny.ON_CPU,
    )
    recorded = [RunSummary.of(one).recorded for one in (run, held)]
    keys = {key for one in recorded for record in (*one.records, *one.observed) for key in record}
    assert {panel.key for panel in PANELS} <= keys


def own(wanted: Any) -> Problem:
    return replace(tiny.problem(wanted.labels), truth=None, test=None)
