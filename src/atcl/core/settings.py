"""Settings as data: frozen dataclasses to JSON and back, a digest of them, and options that override them."""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import tyro

from atcl.core.errors import AtclError, meant

_T = TypeVar("_T")


def to_data(value: Any) -> Any:
    """Return plain JSON data; each dataclass becomes an object with the name of its class under "kind"."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    return [to_data(item) for item in value] if isinstance(value, tuple) else value


def from_data(data: Any, kinds: Mapping[str, type]) -> Any:
    """Return the settings that `to_data` turned into data.

    Args:
        data: what `to_data` returned; a field that is missing takes its default
        kinds: the classes that may be made, by name

    Raises:
        AtclError: the data name another class, lack a field without a default, or have an unknown field
    """
    if isinstance(data, list):
        return tuple(from_data(item, kinds) for item in data)
    if not isinstance(data, dict):
        return data
    fields = {name: from_data(value, kinds) for name, value in data.items() if name != "kind"}
    kind = kinds.get(data.get("kind", ""))
    if kind is None or not _required(kind) <= set(fields) <= _field_names(kind):
        names = ", ".join(fields)
        raise AtclError(f"these settings are not of this version: {data.get('kind')} with {names}")
    return kind(**fields)


def differences(left: Any, right: Any, name: str = "") -> list[str]:
    """Return the dotted names of the values that differ between two pieces of JSON data."""
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = {key: (left.get(key), right.get(key)) for key in {**left, **right}}
        below = [differences(*pair, f"{name}.{key}".lstrip(".")) for key, pair in pairs.items()]
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        items = zip(left, right, strict=True)
        below = [differences(*pair, f"{name}.{position}") for position, pair in enumerate(items)]
    else:
        return [] if left == right else [name]
    return list(itertools.chain.from_iterable(below))


def digest(value: Any) -> str:
    """Return eight hexadecimal digits that identify these settings."""
    return hashlib.sha256(json.dumps(_changed(value), sort_keys=True).encode()).hexdigest()[:8]


def _changed(value: Any) -> Any:
    """Return `to_data` without fields at their default, so that a field added later keeps the old digests."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        changed = [field.name for field in fields if getattr(value, field.name) != _default(field)]
        return {"kind": type(value).__name__, **{name: _changed(getattr(value, name)) for name in changed}}
    return [_changed(item) for item in value] if isinstance(value, tuple) else value


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _required(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind) if _default(field) is dataclasses.MISSING}


def _field_names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def overridden(settings: _T, arguments: Sequence[str], program: str, beside: Sequence[str] = ()) -> _T:
    """Return the settings with some of them replaced.

    Args:
        settings: a dataclass
        arguments: options with dotted names, such as `["--stages.0.epochs", "3"]`
        program: the name of the program in messages
        beside: other options of the command, which an error message may suggest

    Raises:
        AtclError: an option has an unknown name or a value of the wrong type
    """
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    changed: _T = parse(type(settings), arguments, program, beside, default=settings, config=config)
    return changed


def options(value: Any, name: str = "") -> list[str]:
    """Return settings as lines of options, quoted for a shell; a comment above each group names its class."""
    if dataclasses.is_dataclass(value):
        heading = [f"# {name}: {type(value).__name__}"] if name else []
        # an empty tuple of dataclasses cannot be given as an option, and need not be where it is the default
        shown = [
            part
            for part in dataclasses.fields(value)
            if getattr(value, part.name) != () or _default(part) != ()
        ]
        fields = {part.name: getattr(value, part.name) for part in shown}
        below = [options(part, f"{name}.{key}".lstrip(".")) for key, part in fields.items()]
        return [*heading, *itertools.chain.from_iterable(below)]
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return [line for position, part in enumerate(value) for line in options(part, f"{name}.{position}")]
    return [f"--{name} {shlex.join(map(str, value if isinstance(value, tuple) else (value,)))}"]


def option_names(kind: type, before: str = "--") -> list[str]:
    """Return the names of the options that a dataclass has on the command line."""
    names = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        option = before + name.replace("_", "-")
        if tyro.conf.Positional not in getattr(hint, "__metadata__", ()):
            nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
            names += option_names(hint, f"{option}.") if nested else [option]
        if hint is bool:
            names.append(f"{before}no-{name.replace('_', '-')}")
    return names


def parse(
    target: Any, arguments: Sequence[str], program: str, beside: Sequence[str] = (), **options: Any
) -> Any:
    """Call `tyro.cli`, and raise its page about a wrong option as an `AtclError` of one line."""
    page = io.StringIO()
    try:
        with contextlib.redirect_stderr(page):
            return tyro.cli(target, args=list(arguments), prog=program, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise AtclError(_summary(page.getvalue(), beside)) from None


def _summary(page: str, beside: Sequence[str]) -> str:
    """Return an error page of tyro as one line, with the closest option that may have been meant."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│|╭╮╰╯+ ") for line in page.splitlines()[1:]]
    grouped = itertools.groupby(lines, key=lambda line: not line.strip("─-"))
    blocks = [" ".join(block) for is_rule, block in grouped if not is_rule]
    remedy = next((block.split()[3] for block in blocks if block.startswith("Perhaps you meant")), None)
    unknown = re.match(r"Unrecognized options: (--[^\s,=]+)", blocks[0])
    closer = meant(unknown[1], [*beside, *([remedy] if remedy else [])]) if unknown else ""
    return _plain(blocks[0]) + (closer or (f"; did you mean {remedy!r}?" if remedy else ""))


def _plain(message: str) -> str:
    """Return a message of tyro in plain words; one of an unknown form stays as it is."""
    if found := re.match(r"Unrecognized options: (--[^\s,]+)", message):
        return f"unknown option {found[1]}"
    if found := re.match(r"Missing from (.+?): \S+ (.+) \(required\)$", message):
        return f"`{found[1]}` needs one more word: {found[2]}"
    if found := re.match(r"Error parsing (--\S+): (.+)", message):
        values = re.findall(r"'([^']*)'", found[2])
        wanted = {"int()": "a whole number", "to float": "a number"}
        kind = next((kind for words, kind in wanted.items() if words in found[2]), None)
        if kind and values:
            return f"{found[1]} takes {kind}, not {values[-1]!r}"
        if values:
            return f"{found[1]} does not take {' '.join(values)!r}"
    return message
