"""What onlookers cost at their default frequency: the same run alone and observed, in turn, in one process.

python benchmarks/observers.py [RECIPE] [EPOCHS] [ROUNDS] [DEVICE]
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from atcl.environment import hardware, resolve
from atcl.observing import OBSERVATIONS
from atcl.recipes import Recipe, recipe
from atcl.running import Watcher, train
from atcl.runs import Run


class Clock(Watcher):
    """Notes when training begins and when its last epoch ends."""

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Start the clock."""
        self.began = time.perf_counter(), time.process_time()

    def epoch(self, record: dict[str, object]) -> None:
        """Read it."""
        self.seconds = time.perf_counter() - self.began[0], time.process_time() - self.began[1]


def seconds(wanted: Recipe, observe: tuple[str, ...], device: str) -> tuple[tuple[float, float], bytes]:
    """Return how long the epochs took, by the clock and of the processor, and the weights."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = train(wanted, out=Path(folder) / "run", device=device, watcher=clock, observe=observe)
        return clock.seconds, (run.folder / "model.safetensors").read_bytes()


def main() -> None:
    """Print the median times with each set of onlookers, and whether the weights are the same."""
    name, epochs, rounds, device = (sys.argv[1:] + ["digits/oracle", "80", "3", "auto"][len(sys.argv) - 1 :])[:4]
    plain = recipe(name)
    wanted = replace(plain, stages=tuple(replace(stage, epochs=min(stage.epochs, int(epochs))) for stage in plain.stages))
    sets = [(), ("gradients",), tuple(OBSERVATIONS)]
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {one: [] for one in sets}
    weights = set()
    for _ in range(int(rounds)):
        for one in sets:
            took, content = seconds(wanted, one, device)
            found[one].append(took)
            weights.add(content)
    print(f"{name}, {epochs} epochs, {rounds} rounds, {hardware(resolve(device))['device']}")
    alone = [median(times) for times in zip(*found[()], strict=True)]
    for one in sets:
        clock, processor = (median(times) for times in zip(*found[one], strict=True))
        more = [f"{100 * (now / before - 1):+.1f}%" for now, before in zip((clock, processor), alone, strict=True)]
        print(f"{', '.join(one) or 'alone'}: {clock:.2f} s ({more[0]}), of the processor {processor:.2f} s ({more[1]})")
    print("the same weights" if len(weights) == 1 else "the weights differ")


if __name__ == "__main__":
    main()
