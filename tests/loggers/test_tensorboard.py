"""Event files for TensorBoard: the journal's numbers, each step once, and a run that stays the same."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atcl.analysis.observers import Observers
from atcl.cli.entry import main
from atcl.core import journal
from atcl.loggers import tensorboard as boards
from atcl.runs import layout
from atcl.runs.layout import ANALYSIS
from atcl.runs.run import Run, open_run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.runs.watcher import Watcher
from tests import tiny
from tests.cli.test_cli import SMALL


def go(
    folder: Path,
    name: str = "digits/warmup-pla",
    watcher: Watcher | None = None,
    observe: tuple[str, ...] = (),
) -> Run:
    recipe = tiny.RECIPES[name]
    problem = tiny.problem(recipe.labels)
    return train(
        recipe,
        out=folder,
        problem=problem,
        build=tiny.TinyNet,
        watcher=watcher,
        execution=Execution(device="cpu", observing=Observers(observe, 2)),
    )


def logged(run: Run) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run.folder / layout.TENSORBOARD))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(run: Run) -> dict[str, list[tuple[int, float]]]:
    """What the journal and the observers hold, by name, each at its epoch counted through all stages."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in [*run.journal, *journal.read(run.folder / ANALYSIS)]:
        step = sum(stage.epochs for stage in run.recipe.stages[: record["stage"]]) + record["epoch"]
        for name, value in boards.scalars(record).items():
            found.setdefault(name, []).append((step, value))
    return found


def close_to(wanted: dict[str, list[tuple[int, float]]]) -> dict[str, object]:
    def rounded(points: list[tuple[int, float]]) -> list[tuple[int, object]]:
        return [(step, pytest.approx(value, rel=1e-6)) for step, value in points]

    return {name: rounded(points) for name, points in wanted.items()}  # events hold single precision


class Stop(boards.TensorBoardLogger):
    def epoch(self, record: journal.Record) -> None:
        super().epoch(record)
        if record["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["digits/warmup-pla", "digits/two-stage", "mnist/warmup-pla"])
def test_the_log_holds_what_the_journal_holds_and_the_run_is_the_same(name: str, tmp_path: Path) -> None:
    log = boards.TensorBoardLogger(Watcher())
    run, alone = go(tmp_path / "logged", name, log, ("gradients",)), go(tmp_path / "alone", name)
    assert logged(run) == close_to(expected(run))
    assert {"loss", "epsilon", "gradient/first_norm"} <= logged(run).keys()
    weights = [(one.folder / "model.safetensors").read_bytes() for one in (run, alone)]
    assert weights[0] == weights[1]


def test_a_resumed_run_repeats_no_step(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, watcher=Stop(Watcher()), observe=("gradients",))
    log = boards.TensorBoardLogger(Watcher())
    run = go(tmp_path, watcher=log, observe=("gradients",))
    assert [step for step, _ in logged(run)["loss"]] == [1, 2, 3, 4, 5]
    assert logged(run) == close_to(expected(run))
    assert len(list((run.folder / layout.TENSORBOARD).iterdir())) == 1


def test_a_log_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    class Listener(Watcher):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def notify(self, text: str) -> None:
            self.messages.append(text)

    (tmp_path / layout.TENSORBOARD).write_text("a file in the way", encoding="utf-8")
    listener = Listener()
    run = go(tmp_path, watcher=boards.TensorBoardLogger(listener))
    assert len(run.journal) == 5
    assert [text for text in listener.messages if "TensorBoard" in text]


def test_a_log_that_has_failed_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: boards.EventFile, record: journal.Record, when: float | None = None) -> None:
        raise OSError("no space left")

    log = boards.TensorBoardLogger(Watcher())
    with monkeypatch.context() as patched:
        patched.setattr(boards.EventFile, "add", full)
        run = go(tmp_path, watcher=log)
    log.end(run)  # by now there would be room
    assert logged(run) == {}


def test_the_flag_logs_also_a_run_that_is_finished(tmp_path: Path) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--no-report", *SMALL]) == 0
    assert not (tmp_path / "run" / layout.TENSORBOARD).exists()
    assert main(["train", "--out", str(tmp_path / "run"), "--no-report", "--tensorboard", *SMALL]) == 0
    run = open_run(tmp_path / "run")
    assert logged(run) == close_to(expected(run))


def test_without_tensorboard_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", "--out", str(tmp_path / "run"), "--tensorboard", *SMALL]) == 2
    assert "pip install 'atcl[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
