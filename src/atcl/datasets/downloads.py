"""Downloads of official files, verified by their digests; an incomplete file is never kept."""

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import pooch

from atcl.core.errors import AtclError, Notify, one_line
from atcl.datasets import archives

STALLED = 20.0  # seconds without a byte after which a download fails
TRIES = 2  # for each address


@dataclass(frozen=True)
class Remote:
    """An official file: its digests and its addresses."""

    name: str
    md5: str  # of the file as it is served
    addresses: tuple[str, ...]  # of folders, which are tried in this order
    under: str = ""  # the local folder, for datasets whose files have the same names
    unpacked: str = ""  # the name of the unpacked file or folder
    # MD5 digest of the unpacked content, where it is known: then a file that was compressed anew is accepted.
    content: str = ""

    def path(self, place: Path) -> Path:
        """Return the path of the file in a folder of datasets."""
        return place / self.under / self.name

    def find(self, place: Path) -> Path | None:
        """Return the path of the file in a folder of datasets, packed or unpacked, or None."""
        paths = [place / self.under / name for name in (self.name, self.unpacked) if name]
        return next((path for path in paths if path.exists()), None)

    def verify(self, path: Path) -> None:
        """Check that a file is the official one; an unpacked folder is not checked.

        Raises:
            AtclError: it is not.
        """
        if path.is_dir():
            return
        found = md5_of(path, unpacked=bool(self.content))
        if found != (self.content or self.md5):
            raise AtclError(
                f"{path} is not the official file (MD5 digest {found}): remove it to have it downloaded again"
            )


def md5_of(path: Path, unpacked: bool) -> str:
    """Return the MD5 digest of a file, or of its unpacked content, which is never in memory as a whole."""
    found = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as stream:
            whole = iter(lambda: stream.read(archives.PIECE), b"")
            for piece in archives.pieces(path) if unpacked else whole:
                found.update(piece)
    except (EOFError, ValueError, zlib.error) as error:
        raise AtclError(f"{path} is not a whole gzip file: {one_line(error)}") from None
    return found.hexdigest()


def download(remote: Remote, place: Path, say: Notify, stalled: float = STALLED) -> Path:
    """Download a file into a folder of datasets, verify it, and return its path.

    Args:
        remote: the file.
        place: the folder of datasets.
        say: receives a message before each attempt.
        stalled: seconds without a byte after which an attempt fails.

    Raises:
        AtclError: all attempts failed; the message has the error of each.
    """
    path = remote.path(place)
    fetch = pooch.HTTPDownloader(timeout=stalled)
    answers: list[str] = []
    for url in [f"{address}{remote.name}" for address in remote.addresses for _ in range(TRIES)]:
        say(f"downloading {url}")
        try:
            pooch.retrieve(
                url, known_hash=f"md5:{remote.md5}", fname=path.name, path=path.parent, downloader=fetch
            )
            return path
        except Exception as error:  # servers and networks fail in many ways
            answers.append(f"{url}: {_short(error)}")
    raise AtclError(f"{remote.name} cannot be downloaded ({'; '.join(dict.fromkeys(answers))})")


def _short(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if "hash" in text:
        return "the downloaded file is not the official one"
    return text if 0 < len(text) < 120 else type(error).__name__
