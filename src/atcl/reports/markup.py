"""HTML from Python. Text is escaped, so that no name, path or note can become part of the page's code."""

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
    """Return an element.

    Args:
        name: of the element.
        children: its content: markup as it is, text escaped.
        attributes: `class_` and `for_` are class and for, other `_` become `-`; None leaves one out.

    Examples:
        >>> el("p", "a < b", class_="fine")
        '<p class="fine">a &lt; b</p>'
    """
    inner = "".join(map(text, children))
    parts = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{parts}>" if name in VOID and not inner else f"<{name}{parts}>{inner}</{name}>")


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
    """Return data as JSON for a script element; no `<` in it can end that element."""
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
