"""Where runs are carried out: on this machine, on a Ray cluster, on a SLURM cluster; `PLACES` names them."""

from atcl.reproduce.launch.crews import Launcher, LaunchOptions, WorkerPool
from atcl.reproduce.launch.on_local import Local
from atcl.reproduce.launch.on_ray import Ray
from atcl.reproduce.launch.on_slurm import Slurm
from atcl.reproduce.launch.working import run_job

LAUNCHERS: dict[str, Launcher] = {"local": Local(), "ray": Ray(), "slurm": Slurm()}

__all__ = ["LAUNCHERS", "LaunchOptions", "Launcher", "Local", "Ray", "Slurm", "WorkerPool", "run_job"]
