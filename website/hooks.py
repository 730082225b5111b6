"""What the site adds to the pages of docs/: equations as MathML, linked files, and a catalogue of names."""

import html
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# pages in the root of the repository that are pages of the site
ADOPTED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NAMES = {"README.md": "index.md", **ADOPTED}
LANGUAGES = {
    ".py": "python",
    ".md": "markdown",
    ".json": "json",
    ".toml": "toml",
    ".cff": "yaml",
    ".js": "javascript",
}

_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
_FILE_LINK = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(([\w./-]+\.md)")
_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
_FUNCTION = re.compile(r"(<mi>(?:log|exp|cos|sign)</mi>)(?=<m(?!o))")  # a space follows a function's name


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: those of the root, the catalogue, and files that pages link to."""
    texts = {f"docs/{one.src_uri}": one.content_string for one in files.documentation_pages()}
    texts |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ADOPTED}
    for name, page in ADOPTED.items():
        files.append(File.generated(config, page, content=relinked(texts[name], name, page)))
    files.append(File.generated(config, "catalogue.md", content=catalogue()))
    for target in sorted({found for name, text in texts.items() for found in outside(text, name)}):
        for path, content in shown(target).items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links out of docs/ lead to the site's pages of those files, and show titles for names of files."""
    here = page.file.src_uri
    text = markdown if page.file.generated_by else relinked(markdown, f"docs/{here}", here)
    return titled(text, here, {path: title for title, path in _leaves(config.nav)})


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn equations into MathML, which browsers display without a script."""
    return _EQUATION.sub(lambda found: mathml(html.unescape(found[2]), block=found[1] == "div"), content)


def mathml(tex: str, *, block: bool) -> str:
    """Return an equation as MathML.

    Raises:
        PluginError: the converter does not know one of its commands.
    """
    drawn = convert(tex.strip(), display="block" if block else "inline")
    if "\\" in drawn:  # the converter copies a command that it does not know
        raise PluginError(f"an equation has a command that cannot be drawn: {tex.strip()}")
    drawn = _FUNCTION.sub(r'\1<mspace width="0.167em"/>', drawn)
    # bars of a norm, which would stretch on one side alone
    drawn = drawn.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
    return f'<div class="equation">{drawn}</div>' if block else drawn


def outside(text: str, name: str) -> set[str]:
    """Return the paths outside of docs/ that a page links to, except those that are pages of the site."""
    return {
        path
        for path in (resolved(link, name) for link in _LINK.findall(text))
        if path and path not in NAMES and not path.startswith("docs/")
    }


def resolved(link: str, name: str) -> str | None:
    """Return the path in the repository that a link of the file `name` leads to; None if nothing is there."""
    path = os.path.normpath(PurePosixPath(name).parent / link)
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def relinked(text: str, name: str, page: str) -> str:
    """Return the text of the file `name` with links as they must be on the site's `page`.

    A link that leads nowhere is left, and the build refuses it.
    """

    def link(found: re.Match[str]) -> str:
        path = resolved(found[1], name)
        if path is None or (path.startswith("docs/") and name.startswith("docs/")):
            return found[1]
        target = NAMES.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"
        )
        return os.path.relpath(target, PurePosixPath(page).parent)

    return _LINK.sub(link, text)


def titled(text: str, page: str, titles: Mapping[str, str]) -> str:
    """Return a text in which links that show the name of a file show the title of its page.

    In the repository the name of the file is right.
    """

    def link(found: re.Match[str]) -> str:
        title = titles.get(os.path.normpath(PurePosixPath(page).parent / found[1]))
        return found[0] if title is None else f"[{title}]({found[1]}"

    return _FILE_LINK.sub(link, text)


def _leaves(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield title and path of each page in the navigation."""
    for entry in nav if isinstance(nav, list) else []:
        for title, inside in entry.items() if isinstance(entry, dict) else []:
            yield from [(title, inside)] if isinstance(inside, str) else _leaves(inside)


def shown(path: str) -> dict[str, str]:
    """Return pages that show a file, or a folder with its JSON files."""
    place, page = ROOT / path, f"source/{path}.md"
    if place.is_file():
        return {
            page: _source(
                path,
                f"````{LANGUAGES.get(place.suffix, 'text')}\n{place.read_text(encoding='utf-8')}\n````\n",
            )
        }
    inside = sorted(
        one.relative_to(place).as_posix()
        for one in place.rglob("*")
        if one.is_file() and one.suffix in (".json", ".jsonl")
    )
    lines = "\n".join(f"- [{one}]({place.name}/{one})" for one in inside)
    return {
        page: _source(f"{path}/", f"{lines}\n"),
        **{f"source/{path}/{one}": (place / one).read_text(encoding="utf-8") for one in inside},
    }


def _source(title: str, body: str) -> str:
    return f"---\nsearch:\n  exclude: true\n---\n# `{title}`\n\nAs it was when this site was built.\n\n{body}"


def catalogue() -> str:
    """Return a page of everything that `atcl list` lists."""
    from atcl.cli.catalogue import LISTED
    from atcl.recipes.defaults import DEFAULTS
    from atcl.recipes.methods import METHODS

    parts = ["# Catalogue\n\nAll that a recipe, a command or a call can name, as `atcl list KIND` shows it."]
    for kind, named in LISTED.items():
        rows = (
            {method: named[f"{next(iter(DEFAULTS))}/{method}"] for method in METHODS}
            if kind == "recipes"
            else named
        )
        datasets = ", ".join(f"`{task}/…`" for task in DEFAULTS)
        more = (
            f"Each stands behind the name of a dataset, as in `kuzushiji/warmup-pla`: {datasets}.\n\n"
            if kind == "recipes"
            else ""
        )
        lines = "\n".join(f"| `{name}` | {_cell(about)} |" for name, about in rows.items())
        parts.append(
            f"## {kind.capitalize()}\n\n`atcl list {kind}`\n\n{more}| name | what it is |\n|---|---|\n{lines}"
        )
    return "\n\n".join(parts) + "\n"


def _cell(about: str) -> str:
    return html.escape(about, quote=False).replace("|", "\\|")
