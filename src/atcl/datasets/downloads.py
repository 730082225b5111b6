"""Files from the network: checked before they appear under their name, tried again cleanly, never left half done."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pooch

from atcl.core.errors import AtclError
from atcl.datasets.readers import unzipped

STALLED = 20.0  # seconds without a byte after which a server counts as gone
TRIES = 2  # for each address


@dataclass(frozen=True)
class Remote:
    """A file, the digests that make it the official one, and where it can be had."""

    name: str
    md5: str  # of the file as it is served
    addresses: tuple[str, ...]  # of folders; the first that answers well is taken
    under: str = ""  # the local folder, for sets that call their files alike
    unpacked: str = ""  # the name of the same content unpacked, a file or a folder
    content: str = ""  # MD5 digest of the unpacked content, where it is known: a file packed by someone else is then as good

    def path(self, place: Path) -> Path:
        """Return where the file lies in a folder of datasets."""
        return place / self.under / self.name

    def find(self, place: Path) -> Path | None:
        """Return the file in a folder of datasets, packed or unpacked."""
        folder = place / self.under
        return next(
            (folder / name for name in (self.name, self.unpacked) if name and (folder / name).exists()), None
        )

    def verify(self, path: Path) -> None:
        """Refuse a file that is not the official one; an unpacked folder is not judged here."""
        if path.is_dir():
            return
        found = hashlib.md5(
            unzipped(path) if self.content else path.read_bytes(), usedforsecurity=False
        ).hexdigest()
        if found != (self.content or self.md5):
            raise AtclError(
                f"{path} is not the official file (MD5 digest {found}): remove it to have it downloaded again"
            )


def download(remote: Remote, place: Path, say: Callable[[str], None], stalled: float = STALLED) -> Path:
    """Bring a file into a folder of datasets, whole and verified, or raise with what each address answered."""
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
        except Exception as error:  # whatever a server or a network can do
            answers.append(f"{url}: {_short(error)}")
    raise AtclError(f"{remote.name} cannot be downloaded ({'; '.join(dict.fromkeys(answers))})")


def _short(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if "hash" in text:
        return "what came is not the official file"
    return text if 0 < len(text) < 120 else type(error).__name__
