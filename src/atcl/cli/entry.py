"""The command line: from words to a command, and from a mistake to one line."""

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from atcl.cli.commands import COMMANDS, DEFAULT, TAKES_OVERRIDES
from atcl.core.errors import AtclError, meant, pick
from atcl.core.settings import option_names, parse
from atcl.core.version import __version__
from atcl.recipes.catalogue import RECIPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's gives one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        kind = pick(COMMANDS, words[0], "command")
        if kind in TAKES_OVERRIDES:
            words = [words[0], *_recipe_first(words[1:])]
        command, unknown = parse(kind, words[1:], f"atcl {words[0]}", return_unknown_args=True)
        if unknown and kind not in TAKES_OVERRIDES:
            hint = meant(unknown[0].partition("=")[0], option_names(kind)) or f"; see atcl {words[0]} --help"
            raise AtclError(f"`atcl {words[0]}` does not know {' '.join(unknown)}{hint}")
        command.run(console, unknown)
    except AtclError as error:
        print(f"atcl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("atcl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left; nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _recipe_first(words: Sequence[str]) -> list[str]:
    """Return the words with the recipe in front, the default where none is named: tyro would take an override for it."""
    named = next((word for word in words if "/" in word and word in RECIPES), None)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return [named or DEFAULT, *(word for word in words if word != named)]
    return list(words)


def _overview() -> str:
    lines = [
        f"  atcl {name:10} {str(kind.__doc__).split('. ')[0].rstrip('.')}" for name, kind in COMMANDS.items()
    ]
    return "\n".join(
        [
            "Robust image classifiers from complementary labels alone.",
            "",
            *lines,
            "",
            "`atcl COMMAND --help` tells the rest.",
        ]
    )
