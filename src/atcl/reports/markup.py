"""HTML from Python: whatever is not markup already is escaped, so that no name, path or note can become part of the page's code."""

import html
import json
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"img", "meta", "br"})


class Markup(str):
    """Text that is HTML; plain text is not."""

    __slots__ = ()


Child = Markup | str | int | None


def el(
    name: str, /, *children: "Child | Iterable[Child]", **attributes: str | int | float | bool | None
) -> Markup:
    """Return an element; `class_` and `for_` name attributes that Python keeps for itself, `_` in a name becomes `-`, None leaves one out."""
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    inside = "".join(map(text, children))
    return Markup(f"<{name}{told}>" if name in VOID and not inside else f"<{name}{told}>{inside}</{name}>")


def text(child: "Child | Iterable[Child]") -> Markup:
    """Return a child as HTML: markup as it is, anything else escaped."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return Markup(html.escape(str(child)))
    return Markup("".join(map(text, child)))


def embedded(data: Any) -> Markup:
    """Return data as JSON that can stand inside a script element: no `<` in it could end that element."""
    return Markup(
        json.dumps(data, allow_nan=False, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
