from pathlib import Path

import pytest
import torch

from atcl import checkpoints, journal
from atcl.errors import AtclError
from atcl.files import sole_writer, write_whole
from atcl.runs import Run, train
from tests import tiny

RECIPE = tiny.RECIPES["digits/warmup-pla"]
EPOCHS = RECIPE.stages[0].epochs


def go(folder: Path) -> Run:
    return train(RECIPE, seed=1, out=folder, device="cpu", problem=tiny.problem(RECIPE.labels), build=tiny.TinyNet)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was cut off after its last epoch, before its result."""
    folder = go(tmp_path / "run").folder
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    return folder


def test_the_last_two_are_kept(stopped: Path) -> None:
    assert [path.name.split("-")[3] for path in checkpoints.stored(stopped / "checkpoints")] == [f"{EPOCHS:04d}", f"{EPOCHS - 1:04d}"]


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
    expected = checkpoints.unpacked(newest.read_bytes(), newest)
    damage(newest, how)
    said: list[str] = []
    found = checkpoints.newest(stopped / "checkpoints", said.append)
    assert found is not None
    assert int(found["epoch"]) == EPOCHS - 1
    assert len(said) == 1
    assert newest.name in said[0]
    assert "damaged" in said[0]
    go(stopped)  # and the run ends as it would have
    again = checkpoints.newest(stopped / "checkpoints", pytest.fail)
    assert again is not None
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    assert [record["epoch"] for record in journal.read(stopped / "journal.jsonl")] == list(range(1, EPOCHS + 1))
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


def test_a_failed_write_leaves_the_old_content_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_append_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal.append(path, {"stage": 0, "epoch": 1})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(path, {"stage": 0, "epoch": 2})
    assert path.read_bytes() == before


def test_a_second_writer_is_refused_and_leftovers_are_cleared(tmp_path: Path) -> None:
    (tmp_path / ".model.safetensors.123.part").write_bytes(b"half")
    with sole_writer(tmp_path):
        assert not list(tmp_path.glob(".*.part"))
        with pytest.raises(AtclError, match="another process"), sole_writer(tmp_path):
            pass


def test_nothing_that_is_loaded_can_carry_code(tmp_path: Path) -> None:
    path = tmp_path / "stage-0-epoch-0001-0000000000000000.safetensors"
    torch.save({"weights": torch.ones(2)}, path)  # a pickle in disguise
    with pytest.raises(AtclError, match="not a whole safetensors file"):
        checkpoints.unpacked(path.read_bytes(), path)
