"""`AtclError`, the exception for mistakes that the user can fix, and hints for wrong names."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")
Notify = Callable[[str], None]  # receives a message for the user


class AtclError(Exception):
    """A mistake that the user can fix; the message is one line that says what is wrong and what to do.

    The command line shows the message alone, without a traceback.

    Args:
        message: what is wrong and what to do; characters that control a terminal are escaped.

    Examples:
        >>> raise AtclError("steps must be at least 0, not -1")
        Traceback (most recent call last):
        atcl.core.errors.AtclError: steps must be at least 0, not -1
    """

    def __init__(self, message: str) -> None:
        # Messages contain names from files, so control characters are escaped for the terminal.
        # Line breaks stay, for the one message that is a list; other text from files goes through `one_line`.
        super().__init__("\n".join(map(_printable, _cut(message, LONGEST).split("\n"))))


LONGEST = 20_000  # the most characters of a message


def one_line(said: object, most: int = 240) -> str:
    """Return text from a file, or the message of a library, as one printable line of limited length."""
    return _cut(_printable(" ".join(_cut(str(said), 4 * most).split())), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def pick(registry: Mapping[str, _T], name: str, kind: str) -> _T:
    """Return the entry of a registry with a name.

    Args:
        registry: all entries by name.
        name: the name.
        kind: what the entries are, for messages: `loss`, `norm`.

    Raises:
        AtclError: there is no such entry; the message has the closest name.

    Examples:
        >>> pick({"linf": 1, "l2": 2}, "l2", "norm")
        2
    """
    if not isinstance(name, str):
        raise AtclError(f"a {kind} is named by a text, its entry in the dict of them, not {name!r}")
    if name in registry:
        return registry[name]
    listed = {"loss": "losses"}.get(kind, f"{kind}s")
    shown = (
        f"; `atcl list {listed}` shows the names"
        if " " not in listed
        else f"; there are {', '.join(registry)}"
    )
    hint = nearest(name, registry, shown)
    raise AtclError(f"unknown {kind} {name!r}{hint}")


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a wrong name: the closest right one, all names if they are few, or `otherwise`."""
    names = list(names)
    return meant(name, names) or (f"; there are {', '.join(names)}" if len(names) <= 12 else otherwise)


def meant(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a wrong name, if a right one is similar to it, or an empty text."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""
