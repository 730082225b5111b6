"""Files that are written whole or not at all, and folders that one process at a time writes to."""

import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from atcl.core.errors import AtclError, one_line


class Held(AtclError):
    """Another process is writing to the folder."""


ASKING = 0.5  # seconds for which a process that only checks whether a folder is locked may lock it

_LOCK = ".lock"  # the lock file of a folder; it stays when the lock is released
_PART = re.compile(r"\..+\.\d+(-[0-9a-f]+)?\.part")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a power cut, finds the old content or the new, never a part."""
    # the process number alone is not unique: threads share it, and machines with a shared disk may repeat it
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(part, path)
        sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _replace(part: Path, path: Path) -> None:
    """Replace a file by another one."""
    for _ in range(50 if sys.platform == "win32" else 0):  # on Windows it fails while the file is read
        with suppress(PermissionError):
            os.replace(part, path)
            return
        time.sleep(0.02)
    os.replace(part, path)


def clear_parts(folder: Path) -> None:
    """Remove the unfinished files that `write_whole` leaves in a folder when it is killed."""
    for part in folder.glob(".*.part"):
        if _PART.fullmatch(part.name):
            part.unlink()


def write_json(path: Path, data: Any) -> None:
    """Write data as an indented JSON file, whole."""
    write_whole(path, (json.dumps(data, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AtclError(f"{path} cannot be read: {one_line(error)}") from error


def check_readable(folder: Path, option: str) -> None:
    """Raise where the folder that an option names cannot be read; one that does not exist yet is fine."""
    nearest = _nearest_existing(folder)
    if not os.path.isdir(nearest) or not os.access(nearest, os.R_OK | os.X_OK):
        raise AtclError(f"{folder} cannot be read: {_obstacle(nearest)}; give {option} a folder")


def check_writable(folder: Path, advice: str) -> None:
    """Raise where a folder cannot be made or written to, before hours are spent on what belongs there."""
    nearest = _nearest_existing(folder)
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
        raise AtclError(f"{folder} cannot be written: {_obstacle(nearest)}; {advice}")


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    # not Path.exists, which raises below a folder that may not be entered
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def _obstacle(path: Path) -> str:
    return f"{path} is {'a folder that is closed' if os.path.isdir(path) else 'a file'}"


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder outlast a power cut."""
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make the folder and lock it against a second process within the block.

    The lock ends with the process at the latest, even if that is killed.

    Raises:
        Held: another process is writing to the folder; the message has its number and its machine.
        AtclError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(folder, on_acquired=_write_holder)
        try:
            # a process that checks whether the folder is locked has the lock for a moment: wait longer
            lock.acquire(timeout=ASKING, poll_interval=0.01)
        except Timeout:
            holder = f" ({words})" if (words := _read_holder(folder)) else ""
            raise Held(
                f"another process{holder} is writing to {folder}: wait for it, or choose another folder"
            ) from None
        try:
            yield
        finally:
            lock.release()
    except BrokenPipeError:  # of the terminal, not of the folder
        raise
    except OSError as error:
        raise AtclError(
            f"cannot write to {error.filename or folder}: {error.strerror}; make room or choose another --out"
        ) from error


def is_held(folder: Path) -> bool:
    """Return whether a process, of any machine that shares the folder, is writing to it."""
    if not (folder / _LOCK).exists():  # a lock would make the folder
        return False
    lock = _lock_of(folder)
    try:
        lock.acquire(timeout=ASKING / 10, poll_interval=0.01)  # another process may be checking, too
    except Timeout:
        return True
    except OSError:
        return False  # nothing can be written there; a process that tries gets an error that says why
    lock.release()
    return False


def _lock_of(folder: Path, on_acquired: Callable[[int], None] | None = None) -> BaseFileLock:
    """Return a new lock: two locks of one process exclude each other as those of two processes do."""
    return FileLock(
        folder / _LOCK,
        thread_local=False,  # a generator may be closed by another thread than it was opened by
        fallback_to_soft=False,  # a soft lock would outlive a process that is killed
        preserve_lock_file=True,
        on_acquired=on_acquired,
    )


def _write_holder(descriptor: int) -> None:
    """Write the process and the machine that have a lock into its file."""
    # The first byte is locked, and on Windows no other process can read a locked byte.
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f" {os.getpid()} on {socket.gethostname()}\n".encode(errors="replace"))


def _read_holder(folder: Path) -> str:
    try:
        with open(folder / _LOCK, "rb", buffering=0) as file:
            file.seek(1)
            line, _, _ = file.read(1000).partition(b"\n")  # after it may be the rest of an older, longer line
    except OSError:
        return ""
    return line.decode(errors="replace").strip()
