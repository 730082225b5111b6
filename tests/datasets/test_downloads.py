"""Downloads from a local server that misbehaves: nothing broken is left under a file's name."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from atcl.core.errors import AtclError
from atcl.datasets.downloads import Remote, download
from atcl.datasets.sources import SOURCES

# a client that hangs up leaves the server's socket to the garbage collector
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

CONTENT = bytes(range(256)) * 400
seen: list[str] = []


class Server(BaseHTTPRequestHandler):
    """The first part of the address chooses how it misbehaves."""

    def do_GET(self) -> None:
        manner = self.path.split("/")[1]
        seen.append(manner)
        if manner == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        flaky = manner == "flaky" and seen.count("flaky") == 1
        if manner == "truncated" or flaky:
            self.wfile.write(CONTENT[:1000])
        elif manner == "corrupted":
            self.wfile.write(CONTENT[:-1] + b"!")
        elif manner == "stalled":
            self.wfile.write(CONTENT[:1000])
            self.wfile.flush()
            time.sleep(3)
        else:
            self.wfile.write(CONTENT)

    def log_message(self, format: str, *words: object) -> None:
        """Keep silent."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def remote(address: str, *manners: str) -> Remote:
    seen.clear()
    return Remote(
        "file.gz",
        md5(CONTENT).hexdigest(),
        tuple(f"{address}/{manner}/" for manner in manners),
        under="mnist",
    )


def quietly(text: str) -> None:
    """Drop the message."""


def test_a_good_server(address: str, tmp_path: Path) -> None:
    path = download(remote(address, "good"), tmp_path, quietly)
    assert path == tmp_path / "mnist/file.gz"
    assert path.read_bytes() == CONTENT
    download(remote(address, "missing"), tmp_path, quietly)  # a whole file is not downloaded again
    assert seen == []


@pytest.mark.parametrize("manner", ["missing", "truncated", "corrupted", "stalled"])
def test_a_bad_server_leaves_nothing_behind(manner: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(AtclError, match=r"file.gz cannot be downloaded") as refused:
        download(remote(address, manner), tmp_path, quietly, stalled=0.3)
    assert "\n" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert seen == [manner, manner]  # tried twice


def test_the_second_try_may_succeed(address: str, tmp_path: Path) -> None:
    assert download(remote(address, "flaky"), tmp_path, quietly, stalled=0.5).read_bytes() == CONTENT


def test_the_second_address_may_serve(address: str, tmp_path: Path) -> None:
    messages: list[str] = []
    assert download(remote(address, "missing", "good"), tmp_path, messages.append).read_bytes() == CONTENT
    assert messages[-1].endswith("/good/file.gz")


def test_a_damaged_file_in_the_cache_is_replaced(address: str, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/file.gz").write_bytes(CONTENT[:10])
    assert download(remote(address, "good"), tmp_path, quietly).read_bytes() == CONTENT


def test_without_a_network_the_error_names_the_missing_file_its_place_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES["kuzushiji"]
    nowhere = tuple(replace(one, addresses=("http://127.0.0.1:1/",)) for one in source.remotes)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATCL_OFFLINE")
    with pytest.raises(AtclError) as refused:
        replace(source, remotes=nowhere)(tmp_path / "given")
    message = str(refused.value)
    for part in ("kuzushiji was not found", "kmnist.npz", "train-images-idx3-ubyte.gz"):
        assert part in message
    for part in (str(tmp_path / "given"), "--data-dir", "$ATCL_DATA"):
        assert part in message
    assert "\n" not in message
