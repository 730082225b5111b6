"""Small parts of the page."""

from collections.abc import Sequence

from atcl.reports.curves import DASHES, on_dark
from atcl.reports.gathering import Group
from atcl.reports.markup import Child, Markup, el, text


def section(name: str, heading: str, *children: "Child | Sequence[Child]") -> Markup:
    """Return a section of the page, to which the links at its top lead."""
    return el(
        "section",
        el("h2", heading, id=f"{name}-heading"),
        *children,
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def table(
    caption: str | None,
    heads: Sequence[Child],
    rows: Sequence[tuple[Child, Sequence[Child]]],
    class_: str = "",
) -> Markup:
    """Return a table whose first column has the names of its rows."""
    top = el("thead", el("tr", [el("th", one, scope="col") for one in heads])) if heads else None
    body = [el("tr", el("th", name, scope="row"), [el("td", cell) for cell in cells]) for name, cells in rows]
    return el(
        "table",
        el("caption", el("span", caption)) if caption else None,
        top,
        el("tbody", body),
        class_=class_ or None,
    )


def swatch(group: Group) -> Markup:
    """Return a short piece of a group's line, for the legend."""
    line = el(
        "line", x1=1, y1=5, x2=23, y2=5, stroke_width=3, stroke_dasharray=DASHES[group.style.dash] or None
    )
    return el(
        "svg",
        line,
        class_="swatch hue",
        viewBox="0 0 24 10",
        width=24,
        height=10,
        aria_hidden="true",
        style=hue(group),
    )


def hue(group: Group) -> str:
    """Return the style attribute with a group's colours in both schemes."""
    return f"--light:{group.style.colour};--dark:{on_dark(group.style.colour)}"


def bar(words: str, value: float, group: Group) -> Markup:
    """Return a number above a bar of that length."""
    return el(
        "span",
        el("span", words),
        el("i", style=f"{hue(group)};--share:{min(100.0, max(0.0, value)):.1f}%", class_="hue"),
        class_="barred",
    )


def prose(words: str) -> Markup:
    """Return a text in which backticks mark code."""
    return Markup(
        "".join(
            el("code", part) if number % 2 else text(part) for number, part in enumerate(words.split("`"))
        )
    )


def scrolled(inside: Markup, label: str) -> Markup:
    """Return a wide element in a box that can be scrolled, also by keyboard."""
    return el("div", inside, class_="scroll", tabindex=0, role="region", aria_label=label)
