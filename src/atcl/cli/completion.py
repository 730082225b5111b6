"""`atcl completion`: commands, options and names, completed by the shell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from atcl.cli.commands import COMMANDS
from atcl.cli.names import LISTED_KINDS, listed
from atcl.core.errors import pick
from atcl.core.settings import option_names

# Each script passes the words typed so far to `atcl completion words`, which prints those that may follow. If
# it prints none, the shell completes file names.
SCRIPTS = {
    "bash": """_atcl() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(atcl completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" \\
    -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _atcl atcl""",
    "zsh": """#compdef atcl
_atcl() {
  local -a names
  names=(${(f)"$(atcl completion words "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
  (( $#names )) && compadd -a names || _files
}
compdef _atcl atcl""",
    "fish": """function __atcl
  set -l typed (commandline -opc)
  atcl completion words $typed[2..-1] 2>/dev/null
end
complete -c atcl -a '(__atcl)'""",
}
AFTER = {  # the kind of name that follows an option
    "--attacks": "attacks",
    "--engine": "engines",
    "--format": "exports",
    "--observe": "observations",
    "--log": "loggers",
    "--selection": "rules",
    "--dataset": "datasets",
    "--model": "models",
    "--on": "launchers",
}
# the kind of name that follows a command
FIRST = {"train": "recipes", "show": "recipes", "reproduce": "experiments", "figure": "figures"}


@dataclass(frozen=True)
class Completion:
    """Print a script with which bash, zsh or fish complete this command: eval "$(atcl completion bash)"."""

    shell: Annotated[str, tyro.conf.Positional]
    """bash, zsh or fish"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        print(pick({**SCRIPTS}, self.shell, "shell"))


def following(typed: Sequence[str]) -> list[str]:
    """Return the words that may follow those typed so far; none if a file or a number may follow."""
    if not typed:
        return [*COMMANDS, "completion"]
    command, last = typed[0], typed[-1]
    if command not in COMMANDS:
        return []
    if last in AFTER:
        return list(listed(AFTER[last]))
    options = option_names(COMMANDS[command])
    if command == "list":
        return list(LISTED_KINDS) if len(typed) == 1 else []
    if len(typed) == 1 and command in FIRST:
        return [*listed(FIRST[command]), *options]
    return options
