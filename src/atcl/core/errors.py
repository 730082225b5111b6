"""The one exception that means "the user can mend this": its text is shown alone, without a traceback."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class AtclError(Exception):
    """Something the user can mend; the message is one line that says what is wrong and what to do."""


def pick(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return `registry[name]`, or raise with the nearest right name."""
    if not isinstance(name, str):
        raise AtclError(f"a {kind} is named by a text, its entry in the dict of them, not {name!r}")
    if name in registry:
        return registry[name]
    listed = {"loss": "losses"}.get(kind, f"{kind}s")
    raise AtclError(f"unknown {kind} {name!r}{nearest(name, registry, f'; `atcl list {listed}` tells the names')}")


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a wrong name: the closest right one, or where few exist, all of them, else what is said otherwise."""
    names = list(names)
    return meant(name, names) or (f"; there are {', '.join(names)}" if len(names) <= 12 else otherwise)


def meant(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a wrong name, where a right one is close."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""
