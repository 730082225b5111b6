"""AutoAttack by atcl, compared with a plain call of pyautoattack and with atcl without fp16, in one process.

It also times PGD20 and CW30 on a whole test set.

python benchmarks/evaluation.py --model small_cnn --images 1000
python benchmarks/evaluation.py --model resnet18 --images 512
python benchmarks/evaluation.py --run runs/cifar10/warmup-pla/seed-1 --images 10000 --batch-size 2500 \\
    --plain-batch-sizes
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import tyro
from pyautoattack import AutoAttack
from torch import Tensor, nn
from torch.nn import functional as F

from atcl.attacks.pgd import pgd
from atcl.attacks.threat import Threat
from atcl.core.device import environment, resolve
from atcl.datasets.sources import DATASETS
from atcl.evaluation.attacks import ATTACKS
from atcl.evaluation.cache import EvaluationCache
from atcl.evaluation.evaluate import measure, withstood
from atcl.models import MODELS
from atcl.runs.run import open_run


@dataclass(frozen=True)
class Options:
    """What to measure."""

    run: Path | None = None
    """a trained run to attack, with its dataset and threat; without one a model is trained for a moment"""
    model: str = "small_cnn"
    dataset: str = "kuzushiji"
    data_dir: Path | None = None
    images: int = 1000
    batch_size: int = 1000
    epsilon: float = 0.3
    step_size: float = 0.01
    steps: int = 400
    """adversarial training steps with true labels: an attack on an untrained model would end at once"""
    attack_steps: int = 10
    device: str = "auto"
    plain_batch_sizes: tuple[int, ...] = (250, 1000)
    """of the plain calls: the default of the package, and ours; none: only atcl with and without fp16"""
    out: Path | None = None
    """also write a JSON file"""
    whole: bool = True
    """also time PGD20 and CW30 on the whole test set"""


def trained(options: Options, device: torch.device) -> nn.Module:
    """Return a model after a short adversarial training."""
    data = DATASETS[options.dataset](options.data_dir)
    torch.manual_seed(0)
    rng = torch.Generator(device).manual_seed(0)
    model = MODELS[options.model](data.classes, data.shape).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05 if options.model == "small_cnn" else 0.01, momentum=0.9
    )
    x, y = data.train.x.to(device), data.train.truth.labels.to(device)
    for step in range(options.steps):
        index = torch.randint(len(x), (256,), generator=rng, device=device)
        clean, labels = x[index].float() / 255, y[index]
        epsilon = options.epsilon * min(1.0, 2 * step / options.steps)

        def attack_loss(logits: Tensor, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(logits, labels)

        adv = pgd(
            model,
            clean,
            attack_loss,
            epsilon=epsilon,
            step_size=2.5 * epsilon / options.attack_steps + 1e-6,
            steps=options.attack_steps,
            rng=rng,
        )
        loss = F.cross_entropy(model(adv), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(options: Options) -> None:
    """Print the times and accuracies as one JSON object."""
    device = resolve(options.device)
    run = None if options.run is None else open_run(options.run)
    model = trained(options, device) if run is None else run.model(options.device)
    threat = Threat(options.epsilon, options.step_size) if run is None else run.recipe.threat
    test = DATASETS[options.dataset if run is None else run.recipe.dataset](options.data_dir).test
    part = test.take(slice(options.images))
    x, y = part.x.to(device).float() / 255, part.truth.labels.to(device)

    def plain(batch_size: int) -> Tensor:
        attack = AutoAttack(model, device=device, eps=threat.epsilon, seed=0, version="standard")
        _, found = attack.run_standard_evaluation(x, y, batch_size=batch_size)
        right: Tensor = (found == y).cpu()
        return right

    passes: dict[str, dict[str, float]] = {}

    def ours(half: bool) -> Tensor:
        cache = EvaluationCache(None, {})
        attack = replace(ATTACKS["autoattack"], half=half)
        found = withstood(model, part, threat, "autoattack", attack, 0, options.batch_size, cache)[0]
        steps = dict.fromkeys(step for step, _ in cache.lines)
        passes["ours" if half else "ours without fp16"] = {
            step: sum(line["seconds"] for (other, _), line in cache.lines.items() if other == step)
            for step in steps
        }
        return found

    with torch.no_grad():
        natural = float((model(x).argmax(1) == y).float().mean())
    record: dict[str, object] = {
        "options": {name: str(value) for name, value in asdict(options).items() if name != "out"},
        "natural": 100 * natural,
    }
    calls: dict[str, Callable[[], Tensor]] = {
        f"plain, {size} at a time": partial(plain, size) for size in options.plain_batch_sizes
    }
    seconds, verdicts = {}, {}
    every: dict[str, Callable[[], Tensor]] = {
        **calls,
        "ours without fp16": partial(ours, False),
        "ours": partial(ours, True),
    }
    for name, call in every.items():
        began = time.perf_counter()
        verdicts[name] = call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - began
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
    record |= {
        name: {
            "seconds": seconds[name],
            "accuracy": 100 * float(right.float().mean()),
            "ratio": seconds[name] / seconds["ours"],
            "verdicts_that_differ": int((right != verdicts["ours"]).sum()),
            "passes": passes.get(name),
        }
        for name, right in verdicts.items()
    }
    if plains := list(calls):  # what the batch size alone changes, by the random numbers of each batch
        record["plain_calls_differ"] = int((verdicts[plains[0]] != verdicts[plains[-1]]).sum())
    if options.whole:
        began = time.perf_counter()
        whole = measure(model, test, threat, ["pgd20", "cw30"], batch_size=options.batch_size)
        record["whole"] = {
            "images": len(test),
            "seconds": time.perf_counter() - began,
            **{name: one.accuracy for name, one in whole.items()},
        }
    record["environment"] = environment(device)
    print(json.dumps(record, indent=2))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
