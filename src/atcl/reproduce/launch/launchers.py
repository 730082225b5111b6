"""Launchers by name: this machine, a Ray cluster, a SLURM cluster."""

from collections.abc import Callable

from atcl.reproduce.launch.on_local import Local
from atcl.reproduce.launch.on_ray import Ray
from atcl.reproduce.launch.on_slurm import Slurm
from atcl.reproduce.launch.workers import Launcher

# called with their options
LAUNCHERS: dict[str, Callable[..., Launcher]] = {"local": Local, "ray": Ray, "slurm": Slurm}
