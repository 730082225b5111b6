"""Files that are whole or not there, and folders that one process at a time writes to."""

import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from atcl.core.errors import AtclError, one_line


class Held(AtclError):
    """Another process is writing to the folder."""


ASKING = 0.5  # seconds that someone who merely asks whether a folder is held may hold it

_PART = re.compile(r"\..+\.\d+(-[0-9a-f]+)?\.part")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a power cut, finds the old content or the new, never a part."""
    # threads share a number of the process, machines that share the folder may
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def clear_parts(folder: Path) -> None:
    """Remove what `write_whole` left in a folder when it was killed."""
    for left in folder.glob(".*.part"):
        if _PART.fullmatch(left.name):
            left.unlink()


def write_json(path: Path, data: Any) -> None:
    """Write data as a readable JSON file, whole."""
    write_whole(path, (json.dumps(data, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise AtclError(f"{path} cannot be read: {one_line(error)}") from error


def check_readable(folder: Path, option: str) -> None:
    """Refuse a place that is no folder, or one that is closed; one that is not there yet is empty."""
    there = _nearest(folder)
    if not os.path.isdir(there) or not os.access(there, os.R_OK | os.X_OK):
        raise AtclError(f"{folder} cannot be read: {_obstacle(there)}; give {option} a folder")


def check_writable(folder: Path, advice: str) -> None:
    """Refuse a folder that cannot be made or written, before hours are spent on what goes there."""
    there = _nearest(folder)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise AtclError(f"{folder} cannot be written: {_obstacle(there)}; {advice}")


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest above it that can be seen."""
    return next(
        path for path in (folder, *folder.absolute().parents) if os.path.exists(path)
    )  # Path.exists raises where a folder is closed


def _obstacle(there: Path) -> str:
    return f"{there} is {'a folder that is closed' if os.path.isdir(there) else 'a file'}"


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make the folder and hold it against a second process; the hold ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "a+", errors="replace") as lock:
            try:
                _hold(lock)
            except BlockingIOError:
                lock.seek(0)
                who = f" ({words})" if (words := lock.read().strip()) else ""
                raise Held(
                    f"another process{who} is writing to {folder}: wait for it, or choose another folder"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()} on {socket.gethostname()}\n")
            lock.flush()
            yield
    except BrokenPipeError:  # of the terminal, not of the folder
        raise
    except OSError as error:
        raise AtclError(
            f"cannot write to {error.filename or folder}: {error.strerror}; make room or choose another --out"
        ) from error


def _hold(lock: IO[str]) -> None:
    """Lock a file; there is no way to ask for a lock without taking it, so one that is held may be free in a moment."""
    end = time.monotonic() + ASKING
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def is_held(folder: Path) -> bool:
    """Tell whether some process, of any machine that shares the folder, is writing to it."""
    try:
        with open(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is no such folder yet; who tries to write there is told what is wrong
    return False
