"""Parse the words of a command line, run the command, and print a user's mistake as one line.

Nothing here imports PyTorch, so that help, lists and misspelt names answer at once.
"""

import io
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from atcl.cli import commands
from atcl.cli.commands import TAKES_OVERRIDES
from atcl.cli.completion import Completion, following
from atcl.cli.names import listed
from atcl.core.errors import AtclError, meant, pick
from atcl.core.settings import option_names, parse
from atcl.core.version import __version__
from atcl.recipes.names import DEFAULT

ALL_COMMANDS = {**commands.COMMANDS, "completion": Completion}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words of the command line; None: those of this process.

    Returns:
        The exit code: 0; 2 after a mistake of the user, with one line on standard error; 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that the terminal's encoding lacks are escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        if not words or words[0] in ("-h", "--help"):
            print(_overview(), flush=True)
        elif words[0] == "--version":
            print(__version__, flush=True)
        else:
            _run(words)
    except AtclError as error:
        print(f"atcl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("atcl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(words: Sequence[str]) -> None:
    """Parse the words of a command, and run it."""
    name, rest = words[0], list(words[1:])
    if name == "completion" and rest[:1] == ["words"]:  # those behind it belong to another command
        print("\n".join(following(rest[1:])))
        return
    kind = pick(ALL_COMMANDS, name, "command")
    if kind in TAKES_OVERRIDES:
        rest = _recipe_first(rest)
    command, unknown = parse(kind, rest, f"atcl {name}", return_unknown_args=True)
    if unknown and kind not in TAKES_OVERRIDES:
        hint = meant(unknown[0].partition("=")[0], option_names(kind)) or f"; see atcl {name} --help"
        raise AtclError(f"`atcl {name}` does not know {' '.join(unknown)}{hint}")
    command.run(Console(width=None if sys.stdout.isatty() else 160), unknown)


def _recipe_first(words: list[str]) -> list[str]:
    """Return the words with the recipe first; it is `DEFAULT` if none is named.

    Otherwise the parser would take the value of a changed setting for the recipe.
    """
    if not words or not words[0].startswith("-") or words[0] in ("-h", "--help"):
        return words
    with_slash = [word for word in words if "/" in word]
    named = next((word for word in with_slash if word in listed("recipes")), None)
    return [named or DEFAULT, *(word for word in words if word != named)]


def _overview() -> str:
    lines = [
        f"  atcl {name:10} {str(kind.__doc__).split('. ')[0].rstrip('.')}"
        for name, kind in ALL_COMMANDS.items()
    ]
    opening = ["Train robust image classifiers from complementary labels alone.", ""]
    closing = ["", "`atcl COMMAND --help` shows the options of a command. Start with docs/quickstart.md."]
    return "\n".join([*opening, *(" ".join(line.split("\n")) for line in lines), *closing])
