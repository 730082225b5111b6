"""Tables from a ledger: means, differences, marks, formats and pages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from atcl.cli.entry import main
from atcl.core.errors import AtclError
from atcl.core.files import read_json, write_json
from atcl.core.journal import to_lines
from atcl.core.settings import to_data
from atcl.reproduce.cells import Cell, explained_by_seeds
from atcl.reproduce.experiments import EXPERIMENTS, narrowed
from atcl.reproduce.ledger import UNOFFICIAL, result_path
from atcl.reproduce.published import Value, recipe_ref
from atcl.reproduce.tables import TABLE_FORMATS, check_place, markdown, places, rewritten, tables_of

TABLE = narrowed(EXPERIMENTS["table1"], ["kuzushiji"], ["warmup-pla", "direct-log"])


def metric(accuracy: float, flags: list[str] | None = None) -> dict[str, Any]:
    return {"accuracy": accuracy, "flags": flags, "seconds": 1.0}


def put(
    results: Path,
    cell: str,
    seed: int,
    chosen: dict[str, dict[str, Any]],
    last: float = 80.0,
    rule: str = "test_pgd20",
) -> Path:
    """Write what a table reads of a result."""
    what = recipe_ref(cell)
    path = result_path(results, what, seed)
    path.parent.mkdir(parents=True)
    of_last = dict.fromkeys(("natural", "pgd20", "cw30"), metric(last))
    measured = {"selection": {"rule": rule}, "metrics": chosen, "last_epoch": {"metrics": of_last}}
    made = {"seed": seed, "recipe": to_data(what.recipe), "training_seconds": 1.0, "environment": {}}
    write_json(path, {**measured, **made})
    return path


def three(natural: float, pgd20: float, cw30: float) -> dict[str, dict[str, Any]]:
    return {"natural": metric(natural), "pgd20": metric(pgd20), "cw30": metric(cw30)}


@pytest.mark.parametrize(("deviation", "seeds"), [(0.48, 3), (0.48, 1), (25.5, 2)])
def test_the_margin_is_that_of_a_prediction_interval(deviation: float, seeds: int) -> None:
    spread = deviation * (3 / 2) ** 0.5
    expected = stats.t.ppf(0.975, df=2) * spread * (1 / 3 + 1 / seeds) ** 0.5
    assert explained_by_seeds(deviation, seeds) == pytest.approx(expected)


def test_the_margin_covers_95_of_100_differences() -> None:
    """Three seeds of the paper and two of ours are drawn from one distribution."""
    draws = stats.norm.rvs(50, 7, size=(20_000, 5), random_state=0)
    inside = [abs(one[3:].mean() - one[:3].mean()) <= explained_by_seeds(one[:3].std(), 2) for one in draws]
    assert sum(inside) / len(inside) == pytest.approx(0.95, abs=0.01)


def test_the_margin_is_never_narrower_than_rounding() -> None:
    assert explained_by_seeds(0.0, 3) == 0.3
    assert Cell((10.3,), (), Value(10.0, 0.0)).outside is False
    assert Cell((10.31,), (), Value(10.0, 0.0)).outside is True
    assert Cell((), (), Value(10.0, 0.0)).outside is None
    assert Cell((10.0,), (), None).outside is None


@pytest.mark.parametrize(
    ("digest", "note"), [(next(iter(UNOFFICIAL)), " (reconstructed data)"), ("0123456789abcdef", "")]
)
def test_numbers_on_files_that_are_not_the_official_ones_have_a_note(
    tmp_path: Path, digest: str, note: str
) -> None:
    for row in ("oracle", "warmup-pla"):
        path = put(tmp_path, f"svhn/{row}", 1, three(91.0, 85.0, 83.0))
        write_json(path, {**read_json(path), "data": {"test": digest}})
    (table,) = tables_of(narrowed(EXPERIMENTS["table1"], ["svhn"], ["oracle"]), tmp_path)
    numbers = [f"{number}{note}" for number in ("91.00", "85.00", "83.00")]
    assert table.rows[0][2:] == (*numbers, "—", *[f"80.00{note}"] * 3, "1")
    (claims,) = tables_of(EXPERIMENTS["claims"], tmp_path)
    assert [row[1] for row in claims.rows if row[1] != "—"] == [f"svhn{note}"]


def broken(result: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return a copy of a result with another value in one place; ... removes it."""
    result = json.loads(json.dumps(result))
    *keys, last = place.split(".")
    inner = result
    for key in keys:
        inner = inner[key]
    inner[last] = value
    if value is ...:
        del inner[last]
    return result


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("metrics.cw30", ..., "lacks cw30"),
        ("metrics", 3, "is not the result of a run"),
        ("metrics.pgd20.accuracy", None, "no accuracy of pgd20"),
        ("metrics.pgd20.accuracy", float("nan"), "no accuracy of pgd20"),
        ("metrics.pgd20.accuracy", 150.0, "between 0 and 100"),
        ("metrics.pgd20.accuracy", "x", "between 0 and 100"),
        ("metrics.natural.seconds", None, "no time that it took"),
        ("last_epoch", None, "has no last_epoch"),
        ("last_epoch.metrics.cw30.accuracy", -1, "no accuracy of cw30"),
        ("engine.together", 0, "has no valid engine"),
        ("training_seconds", "long", "how long it trained"),
        ("seed", 2, "is of seed 2"),
        ("recipe.model", "mlp", "other settings"),
        ("recipe", ..., "by which recipe"),
        ("selection.rule", None, "by which recipe and rule"),
        ("metrics.pgd20.machine", None, "by which machine"),
        ("metrics.pgd20.flags", 3, "which flags"),
        ("engine.together", "x", "no valid engine"),
        ("environment", None, "how long it trained, and where"),
        ("data", None, "on which data"),
        ("engine", 3, "has no valid engine"),
    ],
)
def test_a_result_that_no_run_writes_is_refused_in_one_line(
    place: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = put(tmp_path, "kuzushiji/warmup-pla", 1, three(91.0, 85.0, 83.0))
    whole = {**read_json(path), "seed": 1, "engine": {"together": 1, "peak_gpu_bytes": 10}}
    for experiment in (TABLE, EXPERIMENTS["claims"], EXPERIMENTS["times"]):
        write_json(path, whole)
        tables_of(experiment, tmp_path)
        path.write_text(json.dumps(broken(whole, place, value)), encoding="utf-8")
        with pytest.raises(AtclError, match=rf"{message}.*: remove it, and it is made again"):
            tables_of(experiment, tmp_path)
    for engine in (..., None):  # of an earlier version, without a choice of engines
        write_json(path, broken(whole, "engine", engine))
        assert markdown(tables_of(EXPERIMENTS["times"], tmp_path))
    path.write_text("{", encoding="utf-8")
    with pytest.raises(AtclError, match=r"cannot be read.*: remove it, and it is made again"):
        tables_of(TABLE, tmp_path)


def test_one_run_is_not_taken_for_several_seeds(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = put(tmp_path, "kuzushiji/warmup-pla", seed, three(91.0, 85.0, 83.0))
        write_json(path, {**read_json(path), "model": {"sha256": "0" * 64, "bytes": 3}})
    message = r"seed-2/result.json speaks of the same model as .*seed-1/result.json: remove it"
    with pytest.raises(AtclError, match=message):
        tables_of(TABLE, tmp_path)


def test_autoattack_does_not_show_the_flag_of_a_search_that_it_runs_itself(tmp_path: Path) -> None:
    names = ("natural", "pgd20", "cw30", "autoattack")
    flagged = {name: metric(50.0, ["constant", "square"]) for name in names}
    put(tmp_path, "kuzushiji/warmup-pla", 1, flagged)
    (table,) = tables_of(narrowed(TABLE, rows=["warmup-pla"]), tmp_path)
    assert table.rows[0][3:6] == ("50.00 (constant, square)", "50.00 (constant, square)", "50.00 (constant)")


def test_ours_stand_beside_the_published_and_rules_never_share_a_column(tmp_path: Path) -> None:
    put(tmp_path, "kuzushiji/warmup-pla", 1, three(91.0, 85.0, 83.0) | {"autoattack": metric(60.0)})
    put(tmp_path, "kuzushiji/warmup-pla", 3, three(92.0, 86.0, 84.0), last=79.0)
    (table,) = tables_of(TABLE, tmp_path)
    attacks = ("natural", "PGD20", "CW30")
    by_rule = [f"{name} (test_pgd20)" for name in (*attacks, "AutoAttack")]
    assert table.headings == ("method", "", *by_rule, *(f"{name} (last)" for name in attacks), "seeds")
    ours = ("91.50 ± 0.50", "85.50 ± 0.50", "83.50 ± 0.50", "60.00 (1 of 2 seeds)", *["79.50 ± 0.50"] * 3)
    of_log = ("32.66 ± 25.50", "26.87 ± 22.66", "24.90 ± 21.20", "18.78 ± 16.95", *["—"] * 3)
    of_pla = ("91.60 ± 0.49", "85.88 ± 0.48", "83.74 ± 0.35", "68.75 ± 0.68", *["—"] * 3)
    assert table.rows == (
        ("LOG", "ours", *["—"] * 8),
        ("", "published", *of_log, "3"),
        ("**warm-up + PLA**", "ours", *ours, "2"),
        ("", "published", *of_pla, "3"),
        ("", "difference", "-0.10", "-0.38", "-0.24", "-8.75 outside", *[""] * 4),
    )


def test_one_seed_has_no_deviation_and_flags_of_false_robustness_are_shown(tmp_path: Path) -> None:
    metrics = three(80.0, 70.0, 60.0) | {"pgd20": metric(70.0, ["step_size"])}
    put(tmp_path, "digits/warmup-pla", 1, metrics, last=80.0, rule="last")
    text = markdown(tables_of(narrowed(TABLE, ["digits"], ["warmup-pla"]), tmp_path))
    assert "| **warm-up + PLA** | 80.0 | 70.0 (step_size) | 60.0 | 1 |" in text
    assert "published" not in text
    assert "AutoAttack" not in text


def test_a_result_with_other_settings_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "kuzushiji/warmup-pla", 1, three(91.0, 85.0, 83.0))
    result = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**result, "recipe": to_data(recipe_ref("kuzushiji/oracle").recipe)})
    with pytest.raises(AtclError, match="other settings than kuzushiji/warmup-pla"):
        tables_of(TABLE, tmp_path)


def test_json_holds_all_that_is_known_of_a_cell(tmp_path: Path) -> None:
    put(tmp_path, "kuzushiji/warmup-pla", 2, three(91.0, 95.0, 83.0))
    cells = json.loads(TABLE_FORMATS["json"](tables_of(TABLE, tmp_path)))
    assert len(cells) == 2 * 7
    wanted = ("warmup-pla", "pgd20", "test_pgd20")
    (cell,) = [one for one in cells if (one["row"], one["metric"], one["rule"]) == wanted]
    assert cell["recipe"] == "kuzushiji/warmup-pla"
    assert (cell["seeds"], cell["values"], cell["mean"], cell["outside"]) == ([2], [95.0], 95.0, True)
    assert cell["published"] == {"mean": 85.88, "deviation": 0.48}
    assert cell["difference"] == pytest.approx(9.12)


def test_latex_escapes_what_latex_would_read(tmp_path: Path) -> None:
    put(tmp_path, "kuzushiji/warmup-pla", 1, three(91.0, 85.0, 83.0))
    text = TABLE_FORMATS["latex"](tables_of(TABLE, tmp_path))
    assert r"\textbf{warm-up + PLA} & ours & 91.00 & " in text
    assert r"91.60 $\pm$ 0.49" in text
    assert r"natural (test\_pgd20)" in text
    assert text.count("{") == text.count("}")
    assert not {"±", "—", "*"} & set(text)


def test_pseudo_labels_are_read_from_the_journals(tmp_path: Path) -> None:
    experiment = narrowed(EXPERIMENTS["pseudo-labels"], rows=["pseudo-labels-slow"])
    for seed, right in ((1, 0.12), (2, 0.13)):
        path = put(tmp_path, "kuzushiji/pseudo-labels-slow", seed, three(1.0, 1.0, 1.0))
        records = [
            {"stage": 0, "epoch": epoch, "pseudo_label_accuracy": right + (epoch - 1) / 100}
            for epoch in range(1, 11)
        ]
        path.with_name("journal.jsonl").write_bytes(to_lines(records))
    (table,) = tables_of(experiment, tmp_path)
    assert table.headings[2:4] == ("epoch 1", "epoch 2")
    assert table.rows[0][:4] == ("epsilon rises slowly, E_s = 50", "ours", "12.50 ± 0.50", "13.50 ± 0.50")
    assert table.rows[2][1:4] == ("difference", "-0.02", "-11.94 outside")


PAGE = """# Page
<!-- table: table1 datasets=kuzushiji rows=warmup-pla -->
old
<!-- end -->
between
<!-- table: digits -->
<!-- end -->
"""


def test_a_page_gets_all_its_tables_and_keeps_its_text(tmp_path: Path) -> None:
    assert places(PAGE) == ["table1", "digits"]
    made = rewritten(PAGE, tmp_path)
    assert "old" not in made
    assert "| **warm-up + PLA** | ours |" in made
    assert "oracle" in made.partition("between")[2]
    assert "oracle" not in made.partition("between")[0]
    assert rewritten(made, tmp_path) == made
    put(tmp_path, "kuzushiji/warmup-pla", 1, three(91.0, 85.0, 83.0))
    assert rewritten(made, tmp_path) != made  # a stale page is noticed


@pytest.mark.parametrize("page", ["", PAGE.replace("<!-- end -->", ""), PAGE.replace("digits", "selection")])
def test_a_page_without_a_place_is_refused(page: str) -> None:
    with pytest.raises(AtclError, match="no place for the table"):
        check_place(page, "digits")


def test_a_wrong_name_on_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="unknown experiment 'tabel1'"):
        rewritten(PAGE.replace("table1", "tabel1"), tmp_path)


def test_each_dataset_has_its_own_heading(tmp_path: Path) -> None:
    text = markdown(tables_of(replace(TABLE, datasets=("mnist", "svhn")), tmp_path))
    assert [line for line in text.splitlines() if line.startswith("**")] == ["**mnist**", "**svhn**"]


def test_times_divide_runs_that_share_a_gpu_and_count_gpus_alone(tmp_path: Path) -> None:
    (empty,) = tables_of(EXPERIMENTS["times"], tmp_path)
    assert empty.rows == ()
    for cell, seed, together, peak in [
        ("kuzushiji/oracle", 1, 4, 2**32),
        ("kuzushiji/warmup-pla", 2, 1, 2**31),
        ("mnist/oracle", 1, 1, None),
    ]:
        path = put(tmp_path, cell, seed, {**three(90, 80, 70), "worst": metric(60)})
        result = read_json(path)
        device = "a GPU" if peak else "a CPU"
        for name, one in result["metrics"].items():
            elsewhere = name == "cw30" and seed == 2
            one |= {"seconds": 60.0, "machine": {"device": "a CPU" if elsewhere else device}}
        engine = {"together": together, "peak_gpu_bytes": peak}
        made = {"training_seconds": 480.0, "engine": engine, "environment": {"device": device}}
        write_json(path, {**result, **made})
    (table,) = tables_of(EXPERIMENTS["times"], tmp_path)
    assert table.rows == (
        ("kuzushiji", "2", "10.0", "5.0", "15.0", "2.00"),
        ("all", "2", "10.0", "5.0", "15.0", "2.00"),
    )


@pytest.mark.parametrize("name", ["claims", "times"])
def test_a_table_that_only_shows_runs_of_others_makes_none(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--dry-run", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{name} only shows runs of other tables\n"
