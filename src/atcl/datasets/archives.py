"""Packed files from strangers: no more is unpacked than a genuine file of that size holds, and nothing to the disk."""

import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

NumpyArray = np.ndarray[Any, Any]

# Pictures shrink to a fifth where much is black (MNIST), and to a fifteenth as numbers of 32 bits.
UNPACKED, FOR_UNPACKED = 32 * 2**20, 32  # so many bytes from any file, and so many more for each byte of it
MEMBERS = 1000  # of an archive
PIECE = 2**18


def allowance(path: Path) -> int:
    """Return how many bytes may be unpacked from a file."""
    return UNPACKED + FOR_UNPACKED * path.stat().st_size


class Gunzipped:
    """Reads a gzip file of one part, up to its allowance; a ValueError of one line says what is refused."""

    # Not gzip.GzipFile: a file of a million empty parts, or with a name of megabytes, keeps it busy for long.
    def __init__(self, stream: BinaryIO, allowed: int) -> None:
        self.stream, self.allowed, self.left = stream, allowed, allowed
        self.inflate = zlib.decompressobj(wbits=31)

    def read(self, size: int) -> bytes:
        """Return so many bytes, or fewer at the end of the file."""
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
    """Return the content of a file, gzipped or not, piece by piece."""
    with path.open("rb") as stream:
        source = Gunzipped(stream, allowance(path)) if path.suffix == ".gz" else stream
        while piece := source.read(PIECE):
            yield piece


def tar_member(path: Path, name: str, most: int) -> bytes:
    """Return a plain file from a .tar.gz archive; what else lies before it is passed over, and never followed."""
    # Not tarfile.open: it follows links, and reads long headers whole.
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
    """Return the arrays of an .npz file that are chosen by their names; a damaged file raises what it will."""
    left = allowance(path)
    found: dict[str, NumpyArray] = {}
    with zipfile.ZipFile(path) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        for name in choose(list(members)):
            member = members.get(name)
            if member is None:
                raise ValueError(f"it has no {name}")
            # NumPy packs in these two ways; zipfile does not bound what a piece packed in the others becomes.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is packed in a way that NumPy does not use")
            left -= member.file_size
            if left < 0:
                raise ValueError(f"it unpacks to more than {allowance(path):,} bytes, far more than its size")
            with archive.open(member) as stream:
                found[name] = npy(stream)
    return found


def npy(stream: Any) -> NumpyArray:
    """Return the array of an .npy file, its numbers in the order of bytes that this machine has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd heads
        try:
            found = np.load(stream, allow_pickle=False)
        except ValueError as error:
            if "allow_pickle" in str(error):  # NumPy would advise to allow it
                raise ValueError("it holds Python objects, or no array") from None
            raise
    if not isinstance(found, np.ndarray):
        raise ValueError("it is an archive where an array belongs")
    return found.astype(found.dtype.newbyteorder("="), copy=False) if found.dtype.kind in "iuf" else found
