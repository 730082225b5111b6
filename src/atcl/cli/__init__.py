"""The command line: `main` is the program `atcl`, and each command a dataclass of options with a `run`."""

from atcl.cli.entry import main

__all__ = ["main"]
