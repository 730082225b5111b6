"""The documentation site builds without a warning, its links work, and it names every public name."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

import atcl
from atcl.cli.catalogue import LISTED
from atcl.evaluation.attacks import ATTACKS
from atcl.losses import LOSSES
from atcl.recipes.methods import METHODS
from website.hooks import mathml, outside, relinked, titled

ROOT = Path(__file__).parents[1]
API = ROOT / "docs/api"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


@dataclass
class ParsedPage(HTMLParser):
    """The contents of a page: anchors, links, files that the browser loads by itself, and words in code."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    code: set[str] = field(default_factory=set)
    inside: list[str] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "iframe"):
            self.loads += [given[name] for name in ("href", "src") if name in given]
        elif tag == "code":
            self.inside = []

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.inside.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "code" and self.inside is not None:
            self.code.add("".join(self.inside))
            self.inside = None


def read(site: Path) -> dict[Path, ParsedPage]:
    """Return all pages but 404.html, whose links start at a server's root."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            pages[path] = ParsedPage()
            pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def problems(pages: dict[Path, ParsedPage]) -> Iterator[str]:
    """Yield each broken link, and each file that a browser would fetch from another site."""
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    yield f"{path.name} loads {link}"
            elif not target.is_file():
                yield f"{path.name} links to {link}, which does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{path.name} links to {link}, which has no such place"


def test_the_site_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="mkdocs")  # a warning that is not logged is not counted
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(tmp_path)  # the site does not depend on the folder that it is built from
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tools; those of the site are errors by its own setting
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
        assert config.strict
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    site = tmp_path / "site"
    pages = read(site)
    assert not list(problems(pages))
    assert not [
        path
        for path in site.rglob("*.css")
        if re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8"))
    ]
    assert "arithmatex" not in (site / "methods.html").read_text(encoding="utf-8")

    documented = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "api"))
    assert not [name for name in atcl.__all__ if f"atcl.{name}" not in documented]
    for page, names in {"losses": set(LOSSES), "methods": set(METHODS), "evaluation": set(ATTACKS)}.items():
        missing = sorted(names - pages[site / f"{page}.html"].code)
        assert missing == [], f"docs/{page}.md names each of these in backticks"
    listed = {name for kind, names in LISTED.items() if kind != "recipes" for name in names}
    assert not listed - pages[site / "catalogue.html"].code


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="there.html">', "which does not exist"),
        ('<a href="../page.html">', "which does not exist"),
        ('<a href="#there">', "no such place"),
        ('<a href="other.html#there">', "no such place"),
        ('<script src="https://example.org/x.js">', "loads https"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //"),
    ],
)
def test_a_broken_page_is_noticed(body: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(body, encoding="utf-8")
    (tmp_path / "other.html").write_text(
        '<h1 id="here"></h1><a href="page.html"><a href="#here"><a href="https://example.org">',
        encoding="utf-8",
    )
    (found,) = problems(read(tmp_path))
    assert problem in found


def test_every_room_has_a_page_of_its_api() -> None:
    rooms = {path.parent.name for path in (ROOT / "src/atcl").glob("*/__init__.py")}
    assert {path.stem for path in API.glob("*.md")} == rooms | {"index"}


def test_the_index_links_to_every_public_name() -> None:
    links = re.findall(
        r"\[`(\w+)`\]\((\w+)\.md#atcl\.(\w+)\)", (API / "index.md").read_text(encoding="utf-8")
    )
    assert sorted(name for name, _, _ in links) == sorted(atcl.__all__)
    for name, room, anchor in links:
        assert name == anchor
        if name != "replace":  # Python's own
            assert atcl._HOME[name].split(".")[1] == room


def anchors(text: str) -> set[str]:
    """Return the anchors of a page of the repository: its headings, and the names that it documents."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    named = re.findall(r"(?:^::: |\{ #)(\S+)(?: \})?$", text, re.M)
    return {slug(heading) for heading in headings} | set(named)


def slug(heading: str) -> str:
    """Return the anchor that a repository gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_the_repository_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        if ":" in path or path == "../catalogue.md":  # on another site, or made with ours
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_an_equation_is_drawn_or_refused() -> None:
    assert "<mfrac>" in mathml(r"\frac{K-1}{s} \log p", block=True)
    with pytest.raises(PluginError, match="cannot be drawn"):
        mathml(r"\nosuchcommand x", block=False)


def test_links_out_of_the_pages_are_turned_to_the_sites_own() -> None:
    text = "[a](../src/atcl/attacks/pgd.py) [b](losses.md#sources) [c](../README.md) [d](../nowhere.py) [e](https://example.org)"
    assert outside(text, "docs/methods.md") == {"src/atcl/attacks/pgd.py"}
    turned = relinked(text, "docs/methods.md", "methods.md")
    assert (
        turned
        == "[a](source/src/atcl/attacks/pgd.py.md) [b](losses.md#sources) [c](index.md) [d](../nowhere.py) [e](https://example.org)"
    )
    assert relinked("[a](docs/losses.md)", "CONTRIBUTING.md", "contributing.md") == "[a](losses.md)"


def test_a_link_that_reads_as_a_file_reads_as_its_title() -> None:
    assert (
        titled("[losses.md](losses.md#sources) [x.md](x.md)", "methods.md", {"losses.md": "Losses"})
        == "[Losses](losses.md#sources) [x.md](x.md)"
    )
