"""Folders that one process at a time writes to, on every system."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

from atcl.core.device import available_cores
from atcl.core.errors import AtclError
from atcl.core.files import Held, is_held, sole_writer, sync_folder, write_whole

HOLD = """
import sys
from pathlib import Path
from atcl.core.files import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process write to a folder until the block ends, or until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_a_second_process_is_refused_with_one_line_that_names_the_first_and_writes_nothing(
    tmp_path: Path,
) -> None:
    def content() -> dict[str, tuple[int, bytes]]:
        readable = [path for path in tmp_path.iterdir() if sys.platform != "win32" or path.name != ".lock"]
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in readable}

    (tmp_path / "weights").write_bytes(b"1")
    with another_writer(tmp_path) as process:
        before = content()
        with pytest.raises(Held) as refusal, sole_writer(tmp_path):
            pytest.fail("two processes write to one folder")
        assert content() == before
        message = str(refusal.value)
        assert f"({process.pid} on {socket.gethostname()}) is writing to {tmp_path}" in message
        assert "\n" not in message
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with another_writer(tmp_path) as process:
        assert is_held(tmp_path)
        process.kill()
        process.wait(60)
        assert not is_held(tmp_path)
        with sole_writer(tmp_path):
            assert is_held(tmp_path)


def test_the_holder_that_is_named_is_the_last_one(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b" 123456789 on a-machine-with-a-long-name\n" * 3)
    refused = f"another process ({os.getpid()} on {socket.gethostname()})"
    with sole_writer(tmp_path), pytest.raises(Held) as refusal, sole_writer(tmp_path):
        pass
    assert str(refusal.value).startswith(refused)


def test_an_error_inside_the_block_ends_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), sole_writer(tmp_path):
        raise ValueError("mine")
    assert not is_held(tmp_path)


def test_checking_a_lock_keeps_no_writer_from_the_folder(tmp_path: Path) -> None:
    lock = filelock.FileLock(tmp_path / ".lock", thread_local=False, preserve_lock_file=True)
    lock.acquire()  # as `is_held` does, if only for a moment
    threading.Timer(0.1, lock.release).start()
    with sole_writer(tmp_path):
        assert is_held(tmp_path)


def test_many_checks_at_once_do_not_take_each_other_for_a_writer(tmp_path: Path) -> None:
    with sole_writer(tmp_path):
        pass
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(is_held, [tmp_path] * 200))
        assert not any(answers)
        checks = [pool.submit(is_held, tmp_path) for _ in range(200)]
        with sole_writer(tmp_path):
            assert is_held(tmp_path)
        for answer in checks:
            answer.result()


def test_checking_a_lock_makes_no_folder(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "none")
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows locks files by another call")

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(AtclError, match=os.strerror(errno.ENOSYS)), sole_writer(tmp_path):
        pytest.fail("nothing keeps a second process away")


def test_a_folder_is_not_synced_where_it_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> int:
        raise PermissionError(errno.EACCES, "a folder")

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", closed)
    sync_folder(tmp_path)
    monkeypatch.undo()
    write_whole(tmp_path / "file", "±".encode())
    assert (tmp_path / "file").read_bytes() == "±".encode()


def test_cores_are_counted_where_no_process_can_be_bound_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 6, raising=False)
    assert available_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    assert available_cores() == 1
