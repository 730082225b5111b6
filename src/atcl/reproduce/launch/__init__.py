"""Where runs are carried out: on this machine, on a Ray cluster, on a SLURM cluster; `PLACES` names them."""

from atcl.reproduce.launch.crews import Crew, Place, Terms
from atcl.reproduce.launch.on_local import Local
from atcl.reproduce.launch.on_ray import Ray
from atcl.reproduce.launch.on_slurm import Slurm
from atcl.reproduce.launch.working import carry_out

PLACES: dict[str, Place] = {"local": Local(), "ray": Ray(), "slurm": Slurm()}

__all__ = ["PLACES", "Crew", "Local", "Place", "Ray", "Slurm", "Terms", "carry_out"]
