"""The options of launchers, as the command line has them; importing this module is quick."""

from dataclasses import dataclass
from pathlib import Path

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class LaunchOptions:
    """The options that every launcher takes.

    Args:
        device: auto, cpu or cuda.
        workers: runs at a time; 0: as many as there is room for.
        threads: CPU threads of each run; 0: as many as the launcher chooses.
        runs: the folder of the runs.
        dry: whether nothing will be run, so that what only running needs may be missing.
    """

    device: str = "auto"
    workers: int = 0
    threads: int = 0
    runs: Path = Path("runs")
    dry: bool = False

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise AtclError(f"at least one run is made at a time, not {self.workers}")
        if self.threads < 0:
            raise AtclError(f"a run takes at least one thread, not {self.threads}")


@dataclass(frozen=True)
class RayOptions:
    """A Ray cluster (--on ray)."""

    address: str = ""
    """of the head, such as 10.0.0.1:6379, or local for a new one here; by default $RAY_ADDRESS, else one
    that runs on this machine, else local"""


@dataclass(frozen=True)
class SlurmOptions:
    """A SLURM cluster (--on slurm)."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    """of the nodes, such as h100"""
    gres: str | None = None
    """in the place of one GPU for each run, such as gpu:h100:1"""
    minutes: int = 24 * 60
    """time limit of a run; one that reaches it is queued again, and goes on where it was"""
    cpus: int = 0
    """for each run; by default as many as it has threads"""
    memory: float = 0
    """for each run, in GB; by default what the cluster gives"""
    setup: tuple[str, ...] = ()
    """shell commands before each run, such as 'module load cuda'"""
    more: tuple[str, ...] = ()
    """any other option of sbatch as KEY=VALUE, or KEY alone: reservation=deadline exclusive"""
    executor: str = "slurm"
    """or local: submitit's processes on this machine, to try things out"""
