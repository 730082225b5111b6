"""One training step: as the official code does it, and by atcl in each engine and precision.

The official code keeps the defaults of its PyTorch 1.11, which are tf32 in convolutions and products. It is
timed with these, and in plain fp32.

python benchmarks/step.py --recipe kuzushiji/warmup-pla --repeats 20
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from official import Official
from torch.utils.flop_counter import FlopCounterMode

from atcl.core.device import environment, resolve
from atcl.core.precisions import Precision
from atcl.data.images import as_float
from atcl.data.weak import WeakData, rule_out
from atcl.engine.engines import engine_of
from atcl.engine.interleaving import interleave
from atcl.models import MODELS
from atcl.recipes.catalogue import recipe
from atcl.training.learner import Learner
from atcl.training.loop import fitting
from atcl.training.schedules import Constant
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels


@dataclass(frozen=True)
class Options:
    """What is timed."""

    recipe: str = "kuzushiji/warmup-pla"
    """its last stage is run at full strength, with updates of the memory of predictions"""
    ways: tuple[str, ...] = (
        "eager/fp32/fp32",
        "captured/fp32/fp32",
        "captured/tf32/tf32",
        "captured/bf16/tf32",
        "captured/bf16/bf16",
    )
    """engine/precision of the attack/precision of the update"""
    together: tuple[int, ...] = ()
    """numbers of models that are trained at once in the last of the ways"""
    repeats: int = 20
    images: int = 4096
    device: str = "auto"
    limit: float = 500.0
    """seconds after which no further way is started"""
    out: Path | None = None
    """also write a JSON file"""


def milliseconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the median time of a function, after three calls that do not count."""
    times = []
    for number in range(repeats + 3):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= 3:
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def problem(
    options: Options, device: torch.device
) -> tuple[Stage, WeakData, Callable[[], torch.nn.Module], torch.Tensor]:
    """Return a stage at full strength, random data of the recipe's shape, a builder of models, and labels."""
    wanted = recipe(options.recipe)
    stage = replace(
        wanted.stages[-1],
        strength=Constant(1.0),
        gamma=Constant(0.5),
        supervision=PseudoLabels(),
        epochs=10**6,
    )
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (options.images, *wanted.shape), dtype=torch.uint8, generator=rng)
    complementary = torch.randint(0, 10, (options.images,), generator=rng)
    data = WeakData(x, rule_out(options.images, 10, complementary)).to(device)
    return stage, data, lambda: MODELS[wanted.model](10, wanted.shape), complementary


def operations(stage: Stage, data: WeakData, build: Callable[[], torch.nn.Module]) -> int:
    """Return the floating-point operations of a step.

    A gradient of the input costs as much as a forward pass, and so does a gradient of the weights.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        build().to(data.device)(data.x[: stage.batch_size].float())
    # one pass for the memory, two for each attack step, three for the update
    return int(counter.get_total_flops()) * (1 + 2 * stage.budget.steps + 3)


def matrix_rate(device: torch.device) -> float:
    """Return the operations per second of a large matrix product, in bf16 on a GPU."""
    size = 8192 if device.type == "cuda" else 1024
    one, two = (
        torch.randn(
            size, size, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        )
        for _ in range(2)
    )
    return 2 * size**3 / (milliseconds(lambda: one @ two, 10, device) / 1000)


def ours(options: Options, way: str, models: int, device: torch.device) -> dict[str, Any]:
    """Return the time of a step in one way, for so many models at once."""
    name, attack, update = way.split("/")
    stage, data, build, _ = problem(options, device)
    stage = replace(stage, precision=Precision(attack, update))  # type: ignore[arg-type]
    chosen = replace(engine_of(name, device, 10**9), name=name)
    torch.compiler.reset()
    torch.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    times: list[float] = []

    def task(timed: bool):  # type: ignore[no-untyped-def]
        learner = Learner(build(), data, stage)
        last = time.perf_counter()
        for number, _ in enumerate(fitting(learner, data, stage, seed=0, engine=chosen)):
            if timed:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter()
                times.append(1000 * (now - last))
                last = now
            if number == options.repeats + 5:
                return
            yield

    interleave([task(number == 0) for number in range(models)], device)
    peak = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None
    step = statistics.median(times[6:]) / models
    return {
        "way": way,
        "models": models,
        "ms": step,
        "peak_gib": peak,
        "warm_up_s": time.perf_counter() - began - sum(times[6:]) / 1000,
    }


def main(options: Options) -> None:
    """Time each way, and print a table."""
    began = time.perf_counter()
    device = resolve(options.device)
    stage, data, build, complementary = problem(options, device)
    steps = f"batch {stage.batch_size}, {stage.budget.steps} attack steps"
    about = f"{options.recipe}, {steps}, with the memory update"
    record: dict[str, Any] = {
        "about": about,
        "options": asdict(options) | {"out": None},
        "environment": environment(device),
    }
    rate, flops = matrix_rate(device), operations(stage, data, build)
    record |= {"flops": flops, "matrix_flops_per_second": rate, "limit_ms": 1000 * flops / rate, "rows": []}
    print(f"{record['about']}\n{record['environment']}")
    print(f"{flops / 1e9:.0f} GFLOP at {rate / 1e12:.1f} TFLOP/s: {record['limit_ms']:.2f} ms\n", flush=True)
    official = Official(
        build().to(device),
        as_float(data.x.cpu()),
        complementary,
        stage.budget.epsilon,
        stage.budget.step_size,
        stage.budget.steps,
    )
    index = torch.arange(stage.batch_size)

    kinds = ("tf32", "fp32") if device.type == "cuda" else ("fp32",)

    def theirs() -> dict[str, float]:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before, found = (cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32), {}
        for kind in kinds:
            cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = True, kind == "tf32", kind == "tf32"
            found[kind] = milliseconds(lambda: official.step(index), options.repeats, device)
        cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before
        return found

    heads = "".join(f"{f'official {kind}':>15} {'ratio':>7}" for kind in kinds)
    print(f"{'way':28} {'models':>6} {'ms':>9} {heads} {'of limit':>9} {'peak GiB':>9} {'warm-up s':>9}")
    for way, models in [
        *((way, 1) for way in options.ways),
        *((options.ways[-1], number) for number in options.together),
    ]:
        if time.perf_counter() - began > options.limit:
            print(f"{way}: no time left")
            continue
        # before and after, since the speed of a machine drifts
        first, row, second = theirs(), ours(options, way, models, device), theirs()
        official_ms = {kind: (first[kind] + second[kind]) / 2 for kind in kinds}
        row |= {
            "official_ms": official_ms,
            "ratio": {kind: one / row["ms"] for kind, one in official_ms.items()},
        }
        beside = "".join(f"{official_ms[kind]:15.2f} {row['ratio'][kind]:7.2f}" for kind in kinds)
        row["share_of_limit"] = record["limit_ms"] / row["ms"]
        record["rows"].append(row)
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}"
        print(
            f"{way:28} {models:6} {row['ms']:9.2f} {beside} {row['share_of_limit']:9.1%} "
            f"{peak:>9} {row['warm_up_s']:9.1f}",
            flush=True,
        )
        if options.out:
            options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
