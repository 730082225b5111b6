"""Settings as data: frozen dataclasses to JSON and back, a digest that names them, checked overrides from the shell."""

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
    """Return plain JSON data; each dataclass becomes an object that names its kind."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    return [to_data(item) for item in value] if isinstance(value, tuple) else value


def from_data(data: Any, kinds: Mapping[str, type]) -> Any:
    """Return what `to_data` was given; only the classes in `kinds` can come out, and a setting that is missing takes its default."""
    if isinstance(data, list):
        return tuple(from_data(item, kinds) for item in data)
    if not isinstance(data, dict):
        return data
    fields = {name: from_data(value, kinds) for name, value in data.items() if name != "kind"}
    kind = kinds.get(data.get("kind", ""))
    if kind is None or not _required(kind) <= set(fields) <= {
        field.name for field in dataclasses.fields(kind)
    }:
        raise AtclError(
            f"these settings are not of this version: {data.get('kind')} with {', '.join(fields)}"
        )
    return kind(**fields)


def differences(one: Any, two: Any, name: str = "") -> list[str]:
    """Return the dotted names of what differs between two pieces of JSON data."""
    if isinstance(one, dict) and isinstance(two, dict):
        return [
            found
            for key in {**one, **two}
            for found in differences(one.get(key), two.get(key), f"{name}.{key}".lstrip("."))
        ]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [
            found
            for number, (left, right) in enumerate(zip(one, two, strict=True))
            for found in differences(left, right, f"{name}.{number}")
        ]
    return [] if one == two else [name]


def digest(value: Any) -> str:
    """Return eight hexadecimal digits that name these settings."""
    return hashlib.sha256(json.dumps(_changed(value), sort_keys=True).encode()).hexdigest()[:8]


def _changed(value: Any) -> Any:
    """Return `to_data` without what stands at its default, so that a setting added later renames no old result."""
    if dataclasses.is_dataclass(value):
        fields = [
            field for field in dataclasses.fields(value) if getattr(value, field.name) != _default(field)
        ]
        return {
            "kind": type(value).__name__,
            **{field.name: _changed(getattr(value, field.name)) for field in fields},
        }
    return [_changed(item) for item in value] if isinstance(value, tuple) else value


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _required(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind) if _default(field) is dataclasses.MISSING}


def overridden(settings: _T, arguments: Sequence[str], program: str, beside: Sequence[str] = ()) -> _T:
    """Return the settings with dotted overrides (`--stages.0.epochs 3`), each checked for its name and type; `beside`: what else might be meant."""
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    changed: _T = parse(type(settings), arguments, program, beside, default=settings, config=config)
    return changed


def options(value: Any, name: str = "") -> list[str]:
    """Return settings as the options that would give them, quoted for a shell, each group under the name of its kind."""
    if dataclasses.is_dataclass(value):
        kind = [f"# {name}: {type(value).__name__}"] if name else []
        return kind + [
            line
            for part in dataclasses.fields(value)
            for line in options(getattr(value, part.name), f"{name}.{part.name}".lstrip("."))
        ]
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return [line for number, part in enumerate(value) for line in options(part, f"{name}.{number}")]
    return [f"--{name} {shlex.join(map(str, value if isinstance(value, tuple) else (value,)))}"]


def option_names(kind: type, before: str = "--") -> list[str]:
    """Return the options that a dataclass of them has on the command line."""
    names = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        told = before + name.replace("_", "-")
        if tyro.conf.Positional not in getattr(hint, "__metadata__", ()):
            names += (
                option_names(hint, f"{told}.")
                if isinstance(hint, type) and dataclasses.is_dataclass(hint)
                else [told]
            )
        if hint is bool:
            names.append(f"{before}no-{name.replace('_', '-')}")
    return names


def parse(
    target: Any, arguments: Sequence[str], program: str, beside: Sequence[str] = (), **options: Any
) -> Any:
    """Call `tyro.cli`, turning its page of an error into one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(target, args=list(arguments), prog=program, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise AtclError(_one_line(said.getvalue(), beside)) from None


def _one_line(page: str, beside: Sequence[str]) -> str:
    """Return what an error page says in its first block, and the first remedy that it offers, or a closer one beside."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│|╭╮╰╯+ ") for line in page.splitlines()[1:]]
    blocks = [
        " ".join(block)
        for rule, block in itertools.groupby(lines, key=lambda line: not line.strip("─-"))
        if not rule
    ]
    remedy = next((block.split()[3] for block in blocks if block.startswith("Perhaps you meant")), None)
    unknown = re.match(r"Unrecognized options: (--[^\s,=]+)", blocks[0])
    closer = meant(unknown[1], [*beside, *([remedy] if remedy else [])]) if unknown else ""
    return blocks[0] + (closer or (f"; did you mean {remedy!r}?" if remedy else ""))
