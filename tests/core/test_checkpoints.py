import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atcl.core import checkpoints, journal
from atcl.core.errors import AtclError
from atcl.core.files import sole_writer, write_whole
from atcl.runs.run import Run
from atcl.runs.start import train
from tests import tiny

RECIPE = tiny.RECIPES["digits/warmup-pla"]
EPOCHS = RECIPE.stages[0].epochs


def go(folder: Path) -> Run:
    return train(
        RECIPE,
        seed=1,
        out=folder,
        problem=tiny.problem(RECIPE.labels),
        build=tiny.TinyNet,
        execution=tiny.ON_CPU,
    )


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was cut off after its last epoch, before its result."""
    folder = go(tmp_path / "run").folder
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    return folder


def test_the_last_two_are_kept(stopped: Path) -> None:
    epochs = [int(path.name.split("-")[3]) for path in checkpoints.stored(stopped / "checkpoints")]
    assert epochs == [EPOCHS, EPOCHS - 1]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "empty":
        content.clear()
    else:
        content[len(content) - 5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "empty", "one bit flipped"])
def test_a_damaged_one_is_named_and_the_one_before_it_used(stopped: Path, how: str) -> None:
    newest, before = checkpoints.stored(stopped / "checkpoints")
    expected = checkpoints.from_bytes(newest.read_bytes(), newest)
    damage(newest, how)
    messages: list[str] = []
    found = checkpoints.newest(stopped / "checkpoints", messages.append)
    assert found is not None
    assert int(found["epoch"]) == EPOCHS - 1
    assert len(messages) == 1
    assert newest.name in messages[0]
    assert "damaged" in messages[0]
    go(stopped)  # and the run ends as it would have
    again = checkpoints.newest(stopped / "checkpoints", pytest.fail)
    assert again is not None
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    records = journal.read(stopped / "journal.jsonl")
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    assert before.name not in {path.name for path in checkpoints.stored(stopped / "checkpoints")[2:]}


def test_where_none_is_whole_it_refuses_and_touches_nothing(stopped: Path) -> None:
    for path in checkpoints.stored(stopped / "checkpoints"):
        damage(path, "truncated")
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(AtclError, match=r"no checkpoint in .* is whole"):
        go(stopped)
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_a_torn_last_line_of_the_journal_is_dropped(stopped: Path) -> None:
    path = stopped / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"stage": 0, "epo')
    assert len(journal.read(path)) == EPOCHS
    go(stopped)
    assert path.read_bytes() == whole


def test_a_failed_write_leaves_the_old_content_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_append_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal.append(path, {"stage": 0, "epoch": 1})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(path, {"stage": 0, "epoch": 2})
    assert path.read_bytes() == before


def test_two_threads_that_write_one_file_leave_one_of_both_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the other before it renames its file: with one name for both, the second would fail."""
    both = threading.Barrier(2, timeout=10)
    rename = os.replace

    def replace_late(part: Path, path: Path) -> None:
        both.wait()
        rename(part, path)

    monkeypatch.setattr("os.replace", replace_late)
    contents = [b"a" * 1000, b"b" * 1000]
    with ThreadPoolExecutor(2) as threads:
        written = threads.map(lambda content: write_whole(tmp_path / "file", content), contents)
        assert list(written) == [None, None]
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with sole_writer(tmp_path), pytest.raises(AtclError, match="another process"), sole_writer(tmp_path):
        pass


def test_our_leftovers_are_cleared_and_nothing_else(stopped: Path) -> None:
    ours = [
        stopped / ".model.safetensors.123.part",
        stopped / "checkpoints/.stage-0-epoch-0003-0.safetensors.77-0a1b2c3d.part",
    ]
    theirs = [stopped / ".thesis.part", stopped / ".thesis.1-final.part", stopped / "deep/.file.9.part"]
    theirs[-1].parent.mkdir()
    for path in ours + theirs:
        path.write_bytes(b"half")
    go(stopped)
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in theirs)


def test_a_redone_epoch_replaces_its_damaged_checkpoint(tmp_path: Path) -> None:
    """On a GPU an epoch that is done again may differ in its last bits, and so in its name."""
    for epoch in (3, 4, 5):
        checkpoints.save(tmp_path, 0, epoch, {"epoch": torch.tensor(epoch)})
    damage(checkpoints.stored(tmp_path)[0], "truncated")
    checkpoints.save(tmp_path, 0, 5, {"epoch": torch.tensor(5), "other": torch.tensor(1)})
    states = [checkpoints.from_bytes(path.read_bytes(), path) for path in checkpoints.stored(tmp_path)]
    assert [int(state["epoch"]) for state in states] == [5, 4]


def test_what_is_written_later_is_what_was_there_when_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = threading.Event(), write_whole

    def waiting(path: Path, content: bytes) -> None:
        assert gate.wait(10)
        real(path, content)

    monkeypatch.setattr(checkpoints, "write_whole", waiting)
    weights = torch.ones(3)
    with checkpoints.Writer(tmp_path) as writer:
        writer.save(0, 1, {"weights": weights})
        weights.zero_()
        assert not checkpoints.stored(tmp_path)  # training goes on before it is written
        gate.set()
    (path,) = checkpoints.stored(tmp_path)
    assert checkpoints.from_bytes(path.read_bytes(), path)["weights"].tolist() == [1, 1, 1]


def test_a_write_that_fails_is_raised_at_the_next_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_whole", full)

    def write(epochs: int, wrong: Exception | None = None) -> None:
        with checkpoints.Writer(tmp_path) as writer:
            for epoch in range(epochs):
                began.append(epoch)
                writer.save(0, epoch, {"epoch": torch.tensor(epoch)})
            if wrong:
                raise wrong

    began: list[int] = []
    with pytest.raises(OSError, match="No space"):
        write(5)
    assert began == [0, 1]
    with pytest.raises(OSError, match="No space"):
        write(1)
    with pytest.raises(KeyError) as raised:  # the error that ended the run, with a note of the other
        write(1, KeyError())
    assert "No space" in raised.value.__notes__[0]


class PowerCut(BaseException):
    """Nothing catches it, as nothing runs after a power cut."""


@pytest.mark.parametrize("verb", ["fsync", "replace", "unlink"])
def test_cut_off_at_every_single_write_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    recipe = tiny.RECIPES["mnist/two-stage-test-teacher"]
    stages = [replace(stage, epochs=1 + (stage.teacher == "none")) for stage in recipe.stages]
    recipe = replace(recipe, stages=tuple(stages))

    def run(folder: Path) -> None:
        train(
            recipe,
            seed=1,
            out=folder,
            problem=tiny.problem(recipe.labels),
            build=tiny.TinyNet,
            execution=tiny.ON_CPU,
        )

    def outcome(folder: Path) -> tuple[list[journal.Record], bytes]:
        records = [
            {key: value for key, value in record.items() if key != "seconds"}
            for record in journal.read(folder / "journal.jsonl")
        ]
        return records, (folder / "model.safetensors").read_bytes()

    run(tmp_path / "whole")
    real, calls, lock = getattr(os, verb), 0, threading.Lock()

    def failing(*words: object, **more: object) -> object:
        nonlocal calls
        with lock:  # checkpoints are written in a thread of their own
            calls += 1
            if calls >= fatal:  # nothing is written after a power cut, by whichever thread
                raise PowerCut
        return real(*words, **more)

    # a file is synced before and after it is renamed: with `replace` every file has its turn
    for fatal in range(1, 200, 3 if verb == "fsync" else 1):
        folder, calls = tmp_path / str(fatal), 0
        with monkeypatch.context() as patched:
            patched.setattr(os, verb, failing)
            try:
                run(folder)
            except PowerCut:
                pass
            else:
                break
        run(folder)
        assert outcome(folder) == outcome(tmp_path / "whole"), f"cut at {verb} number {fatal}"
    assert fatal >= (2 if verb == "unlink" else 8)


def test_a_full_disk_keeps_the_checkpoints_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(tmp_path / "whole")
    real, left = os.fsync, 14  # enough for two epochs and a bit

    def filling(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", filling)
        with pytest.raises(AtclError, match="No space left on device; make room"):
            go(tmp_path / "full")
    assert checkpoints.stored(tmp_path / "full/checkpoints")
    assert checkpoints.newest(tmp_path / "full/checkpoints", pytest.fail) is not None
    assert not list(tmp_path.rglob("*.part"))
    go(tmp_path / "full")
    models = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "full", whole.folder)]
    assert models[0] == models[1]


def test_nothing_that_is_loaded_can_carry_code(tmp_path: Path) -> None:
    path = tmp_path / "stage-0-epoch-0001-0000000000000000.safetensors"
    torch.save({"weights": torch.ones(2)}, path)  # a pickle in disguise
    with pytest.raises(AtclError, match="not a whole safetensors file"):
        checkpoints.from_bytes(path.read_bytes(), path)
