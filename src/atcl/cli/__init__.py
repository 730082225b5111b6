"""The command line. `main` is what the shell calls; each command is a dataclass of options with a method `run`."""

from atcl.cli.entry import main

__all__ = ["main"]
