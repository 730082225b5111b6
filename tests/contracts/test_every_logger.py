"""What holds for every logger in the registry."""

from pathlib import Path

import pytest

from atcl.cli.entry import main
from atcl.core.journal import Record
from atcl.loggers.registry import LOGGERS
from atcl.runs import layout
from atcl.runs.run import Run
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from tests import tiny

RECIPE = tiny.RECIPES["digits/warmup-pla"]
EVERY = pytest.mark.parametrize("name", LOGGERS)


class Notes(Watcher):
    """Records its calls and messages, and stops the run after an epoch."""

    def __init__(self, stop_after: int = 0) -> None:
        self.calls: list[str] = []
        self.messages: list[str] = []
        self.stop_after = stop_after

    def engine(self, about: str) -> None:
        self.calls.append("engine")

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        self.calls.append("begin")

    def epoch(self, record: Record) -> None:
        self.calls.append("epoch")
        if record["epoch"] == self.stop_after:
            raise KeyboardInterrupt

    def notify(self, text: str) -> None:
        self.messages.append(text)

    def end(self, run: Run) -> None:
        self.calls.append("end")


def go(folder: Path, watcher: Watcher) -> Run:
    problem = tiny.problem(RECIPE.labels)
    return train(
        RECIPE, out=folder, problem=problem, build=tiny.TinyNet, watcher=watcher, execution=tiny.ON_CPU
    )


def written(folder: Path, name: str) -> set[str]:
    """Return the entries of a run's folder that only a logger has made."""
    go(folder / "plain", Watcher())
    go(folder / "logged", LOGGERS[name](Watcher()))
    plain, logged = ({path.name for path in (folder / kind).iterdir()} for kind in ("plain", "logged"))
    return logged - plain


@EVERY
def test_it_changes_nothing_that_is_trained_and_writes_something(name: str, tmp_path: Path) -> None:
    assert written(tmp_path, name)
    weights = [(tmp_path / kind / layout.MODEL).read_bytes() for kind in ("plain", "logged")]
    assert weights[0] == weights[1]


@EVERY
def test_it_passes_everything_on(name: str, tmp_path: Path) -> None:
    plain, behind = Notes(), Notes()
    go(tmp_path / "plain", plain)
    go(tmp_path / "logged", LOGGERS[name](behind))
    assert behind.calls == plain.calls == ["engine", "begin", *["epoch"] * 5, "end"]
    logger = LOGGERS[name](behind)
    logger.notify("a message")
    assert behind.messages[-1] == "a message"


@EVERY
def test_where_it_cannot_write_training_goes_on_and_gives_one_message(name: str, tmp_path: Path) -> None:
    entries = written(tmp_path, name)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for entry in entries:  # what it writes is a file or a folder: the other is in its way
        if (tmp_path / "logged" / entry).is_dir():
            (blocked / entry).write_text("in the way", encoding="utf-8")
        else:
            (blocked / entry).mkdir()
    notes = Notes()
    run = go(blocked, LOGGERS[name](notes))
    assert len(run.journal) == 5
    assert len(notes.messages) == 1


@EVERY
def test_a_stopped_run_goes_on_with_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, LOGGERS[name](Notes(stop_after=2)))
    run = go(tmp_path, LOGGERS[name](Watcher()))
    assert [record["epoch"] for record in run.journal] == [1, 2, 3, 4, 5]


@EVERY
def test_the_command_line_accepts_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--stages.0.epochs", "1", "--device", "cpu", "--no-report"]
    assert main(["train", "--out", str(tmp_path / "run"), "--log", name, *short]) == 0
    entries = {path.name for path in (tmp_path / "run").iterdir()}
    assert main(["train", "--out", str(tmp_path / "other"), *short]) == 0
    assert entries - {path.name for path in (tmp_path / "other").iterdir()}


def test_an_unknown_logger_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--log", "tensorbord"]) == 2
    assert "unknown logger 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_table_of_the_journal_has_a_row_for_each_epoch_also_after_a_stop(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, LOGGERS["csv"](Notes(stop_after=3)))
    run = go(tmp_path, LOGGERS["csv"](Watcher()))
    header, *rows = (tmp_path / layout.JOURNAL_TABLE).read_text(encoding="utf-8").splitlines()
    assert header.split(",")[:2] == ["stage", "epoch"]
    losses = [float(row.split(",")[header.split(",").index("loss")]) for row in rows]
    assert losses == [record["loss"] for record in run.journal]
