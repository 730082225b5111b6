"""The one exception that means "the user can mend this": its text is shown alone, without a traceback."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")


class AtclError(Exception):
    """Something the user can mend; the message is one line that says what is wrong and what to do."""

    def __init__(self, message: str) -> None:
        # Names out of files get into messages: what a terminal would obey is shown and not sent.
        # Breaks of lines stay, for the one message that is a list; text out of a file goes through `one_line`.
        super().__init__("\n".join(map(_printable, _cut(message, LONGEST).split("\n"))))


LONGEST = 20_000  # characters of a message


def one_line(said: object, most: int = 240) -> str:
    """Return text that came out of a file, or a library's words about it, as one printable line of so many characters."""
    return _cut(_printable(" ".join(_cut(str(said), 4 * most).split())), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _printable(text: str) -> str:
    return (
        text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    )


def pick(registry: Mapping[str, _T], name: str, kind: str) -> _T:
    """Return `registry[name]`, or raise with the nearest right name."""
    if not isinstance(name, str):
        raise AtclError(f"a {kind} is named by a text, its entry in the dict of them, not {name!r}")
    if name in registry:
        return registry[name]
    listed = {"loss": "losses"}.get(kind, f"{kind}s")
    raise AtclError(
        f"unknown {kind} {name!r}{nearest(name, registry, f'; `atcl list {listed}` tells the names')}"
    )


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a wrong name: the closest right one, or where few exist, all of them, else what is said otherwise."""
    names = list(names)
    return meant(name, names) or (f"; there are {', '.join(names)}" if len(names) <= 12 else otherwise)


def meant(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a wrong name, where a right one is close."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""
