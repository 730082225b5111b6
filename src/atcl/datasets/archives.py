"""Compressed files that are not trusted: each may unpack to a limited multiple of its size."""

import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

NumpyArray = np.ndarray[Any, Any]
AXES = 6  # the most axes of an array in a file

# The most bytes that any file may unpack to, and how many more for each byte of it. Images that are mostly
# black (MNIST) are compressed to a fifth, and as numbers of 32 bits to a fifteenth.
UNPACKED, FOR_UNPACKED = 32 * 2**20, 32
MEMBERS = 1000  # the most members of an archive
PIECE = 2**18  # bytes that are read at once


def allowance(path: Path) -> int:
    """Return how many bytes may be unpacked from a file."""
    return UNPACKED + FOR_UNPACKED * path.stat().st_size


class Gunzipped:
    """Read a gzip file of one part.

    Args:
        stream: the file.
        allowed: how many bytes it may unpack to.
    """

    # Not gzip.GzipFile: a file of a million empty parts, or with a name of megabytes, takes it very long.
    def __init__(self, stream: BinaryIO, allowed: int) -> None:
        self.stream, self.allowed, self.left = stream, allowed, allowed
        self.inflate = zlib.decompressobj(wbits=31)

    def read(self, size: int) -> bytes:
        """Return so many bytes, or fewer at the end of the file.

        Raises:
            EOFError: the file is not complete.
            ValueError: it unpacks to more than is allowed, or something follows its content.
        """
        pieces: list[bytes] = []
        while size > 0 and not self.inflate.eof:
            packed = self.inflate.unconsumed_tail or self.stream.read(PIECE)
            if not packed:
                raise EOFError("it ends before its content does")
            piece = self.inflate.decompress(packed, size)
            pieces.append(piece)
            size -= len(piece)
            self.left -= len(piece)
            if self.left < 0:
                raise ValueError(f"it unpacks to more than {self.allowed:,} bytes, far more than its size")
        if self.inflate.eof and (self.inflate.unused_data or self.stream.read(PIECE)).strip(b"\0"):
            raise ValueError("something follows its content")
        return b"".join(pieces)


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, gzipped or not, piece by piece."""
    with path.open("rb") as stream:
        source = Gunzipped(stream, allowance(path)) if path.suffix == ".gz" else stream
        while piece := source.read(PIECE):
            yield piece


def tar_member(path: Path, name: str, most: int) -> bytes:
    """Return the content of a plain file in a .tar.gz archive.

    Args:
        path: the archive.
        name: the name of the file in it; members before it are skipped.
        most: the most bytes that the file may have.

    Raises:
        EOFError: the archive is not complete.
        ValueError: it has no such file, or is refused.
    """
    # Not tarfile.open: it follows links, and reads headers of any length into memory.
    with path.open("rb") as stream:
        content = Gunzipped(stream, allowance(path))
        for _ in range(MEMBERS):
            head = content.read(tarfile.BLOCKSIZE)
            if not head.strip(b"\0"):
                raise ValueError("it has no such file")
            entry = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            if entry.name == name:
                if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not 0 <= entry.size <= most:
                    raise ValueError("it is no plain file there, or too large")
                found = content.read(entry.size)
                if len(found) < entry.size:
                    raise EOFError("it ends before its content does")
                return found
            left = -(-max(entry.size, 0) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            while left > 0:
                left -= len(content.read(min(left, PIECE))) or left
    raise ValueError(f"it has more than {MEMBERS:,} members")


def npz_arrays(path: Path, choose: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, NumpyArray]:
    """Return some arrays of an .npz file; a damaged file may raise any exception.

    Args:
        path: the file.
        choose: receives the names of all arrays, and returns those to read.
    """
    _check_index(path)
    left = allowance(path)
    found: dict[str, NumpyArray] = {}
    with zipfile.ZipFile(path) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        for name in choose(list(members)):
            member = members.get(name)
            if member is None:
                raise ValueError(f"it has no {name}")
            # NumPy uses these two methods; for the others, zipfile does not limit the size of a piece.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is compressed by a method that NumPy does not use")
            left -= member.file_size
            if left < 0:
                raise ValueError(f"it unpacks to more than {allowance(path):,} bytes, far more than its size")
            with archive.open(member) as stream:
                found[name] = npy(stream)
    return found


def _check_index(path: Path) -> None:
    """Refuse an archive with a long list of members, since zipfile reads the whole list."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 42, 0))
        end = stream.read()
    # An archive without a comment ends in a record of 22 bytes; above 4 GiB another one stands before it.
    if end[-22:-18] != b"PK\5\6" or end[-2:] != b"\0\0" or end[:4] == b"PK\6\7":
        raise ValueError("it is no archive as NumPy writes it")
    if int.from_bytes(end[-10:-6], "little") > PIECE:
        raise ValueError("it has too many members")


def npy(stream: Any) -> NumpyArray:
    """Return the array of an .npy file, in the byte order of the machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unusual headers
        try:
            found = np.load(stream, allow_pickle=False)
        except ValueError as error:
            if "allow_pickle" in str(error):  # NumPy would advise to allow it
                raise ValueError("it holds Python objects, or no array") from None
            raise
    if not isinstance(found, np.ndarray):
        raise ValueError("it is an archive where an array belongs")
    return found.astype(found.dtype.newbyteorder("="), copy=False) if found.dtype.kind in "iuf" else found
