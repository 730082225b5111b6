"""Evaluation: attack by attack, stopped and resumed, compared with pyautoattack and Foolbox."""

import copy
import importlib
import json
import random
import re
import time
import warnings
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import atcl
from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import given, pgd, pgd_step
from atcl.attacks.threat import Threat
from atcl.core.device import precision
from atcl.core.errors import AtclError
from atcl.core.seeds import generator
from atcl.datasets.sources import digits
from atcl.datasets.truth import Split, Truth
from atcl.engine.attack_model import AttackModel
from atcl.engine.replayed_model import activation_bytes
from atcl.evaluation import cache as caching
from atcl.evaluation.attacks import ATTACKS, WORST, cross_entropy_of
from atcl.evaluation.cache import digest_of_model
from atcl.evaluation.evaluate import (
    BATCH_SIZE,
    Judge,
    batch_of,
    epoch_accuracy,
    evaluate,
    exact_accuracy,
    measure,
)
from atcl.models import MODELS
from tests import tiny
from tests.children import CONTEXT, needs_fork_server


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network trained on the digits, with noise that makes it a little robust."""
    torch.manual_seed(0)
    train = digits().train
    x, labels = train.x.float() / 255, train.truth.labels
    net = MODELS["mlp"](10, (1, 8, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(net((x + 0.2 * torch.randn_like(x)).clamp(0, 1)), labels).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize(("norm", "epsilon", "images"), [("linf", 0.12, 5), ("l2", 0.8, 3)])
def test_autoattack_through_us_is_pyautoattack_image_by_image(
    model: nn.Module, norm: str, epsilon: float, images: int, tmp_path: Path
) -> None:
    test = digits().test.take(slice(images))
    whole = AutoAttack(
        model, device="cpu", eps=epsilon, norm={"linf": "Linf", "l2": "L2"}[norm], seed=3, version="standard"
    )
    _, predicted = whole.run_standard_evaluation(test.x.float() / 255, test.truth.labels, batch_size=3)
    expected = predicted == test.truth.labels
    more = {"norm": norm, "attacks": ["autoattack"], "seed": 3, "batch_size": 3, "keep": tmp_path}
    found = evaluate(model, test.x, test.truth.labels, epsilon=epsilon, **more)["autoattack"]  # type: ignore[arg-type]
    assert 0 < int(expected.sum()) < images
    assert torch.equal(withstanding(tmp_path, "autoattack", images), expected)
    assert (found.correct, found.images) == (int(expected.sum()), images)
    assert list(found.after) == ["natural", "apgd-ce", "apgd-t", "fab-t", "square"]


def withstanding(folder: Path, attack: str, images: int) -> Tensor:
    """Read from the cache which images withstand an attack, as a user would."""
    (path,) = folder.glob(f"{attack}-*.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:-1]
    found = torch.ones(images, dtype=torch.bool)
    for step in dict.fromkeys(line["pass"] for line in lines):
        index = found.nonzero()[:, 0]
        bits = [
            bit == "1"
            for line in lines
            if line["pass"] == step
            for bit in f"{int('1' + line['right'], 16):b}"[1:][: line["images"]]
        ]
        found[index] = torch.tensor(bits)
    return found


@pytest.mark.parametrize(("norm", "attack"), [("linf", "LinfPGD"), ("l2", "L2PGD")])
def test_our_pgd_is_as_strong_as_foolboxs(model: nn.Module, norm: str, attack: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Foolbox's own imports
        foolbox = importlib.import_module("foolbox")
    test = digits().test
    epsilon, step = (0.08, 0.01) if norm == "linf" else (0.5, 0.06)
    x, labels = test.x.float() / 255, test.truth.labels
    theirs = getattr(foolbox.attacks, attack)(abs_stepsize=step, steps=20, random_start=False)
    _, _, broken = theirs(foolbox.PyTorchModel(model, bounds=(0, 1)), x, labels, epsilons=epsilon)
    rng = torch.Generator().manual_seed(0)
    budget: dict[str, Any] = {"epsilon": epsilon, "step_size": step, "norm": norm}
    adv = pgd(model, x, cross_entropy_of(labels), steps=20, start="natural", rng=rng, **budget)
    ours = 100 * float((model(adv).argmax(1) == labels).float().mean())
    assert 10 < ours < 90
    assert abs(ours - 100 * float((~broken).float().mean())) <= 0.5
    started = evaluate(model, x, labels, attacks=["pgd20"], **budget)["pgd20"]
    assert abs(started.accuracy - ours) <= 2  # a random start is another place, not another strength


def test_the_worst_case_is_pointwise_and_restarts_never_help_the_model(
    model: nn.Module, tmp_path: Path
) -> None:
    test = digits().test.take(slice(120))
    attacks = ["natural", "pgd20", "cw30", "pgd20_restarts"]
    found = measure(model, test, Threat(0.06, 0.01), attacks, batch_size=50, keep=tmp_path)
    correct = torch.stack([withstanding(tmp_path, name, 120) for name in attacks])
    assert found[WORST].correct == int(correct.all(0).sum())
    assert [found[name].correct for name in attacks] == correct.sum(1).tolist()
    assert found["pgd20_restarts"].correct <= found["pgd20"].correct < found["natural"].correct
    after = list(found["pgd20_restarts"].after.values())
    assert after == sorted(after, reverse=True)
    assert after[0] == found["pgd20"].accuracy  # the first start is that of PGD20


BATCHED = ["natural", "pgd20", "cw30", "pgd20_restarts"]


def evaluate_here(folder: Path, result: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = tiny.TinyNet().eval()
    test, threat = tiny.split(300, seed=4), Threat(0.02, 0.01)
    found = measure(net, test, threat, BATCHED, seed=2, batch_size=10, keep=folder)
    result.write_text(json.dumps({name: one.correct for name, one in found.items()}), encoding="utf-8")


@needs_fork_server
def test_killed_ten_times_in_one_evaluation_the_numbers_are_the_same(tmp_path: Path) -> None:
    def start(folder: str, result: str) -> BaseProcess:
        paths = (tmp_path / folder, tmp_path / result)
        child = CONTEXT.Process(target=evaluate_here, args=paths, daemon=True)
        child.start()
        return child

    def lines() -> int:
        return sum(path.read_bytes().count(b"\n") for path in (tmp_path / "cut").glob("*.jsonl"))

    whole = start("whole", "whole.json")
    whole.join(120)
    dice, killed = random.Random(0), 0
    for _ in range(10):
        child, before = start("cut", "cut.json"), lines()
        while child.is_alive() and lines() < before + dice.randint(5, 25):
            time.sleep(0.001)
        child.kill()
        child.join()
        killed += child.exitcode == -9
    end = start("cut", "cut.json")
    end.join(120)
    assert killed >= 8
    cut, uncut = (
        json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("cut.json", "whole.json")
    )
    assert cut == uncut


def test_cached_evaluations_are_not_repeated_and_others_are_not_mistaken_for_them(
    model: nn.Module, tmp_path: Path
) -> None:
    test = digits().test.take(slice(30))
    seen: list[tuple[str, str, int, int]] = []
    weak, strong = Threat(0.05, 0.01), Threat(0.2, 0.05)

    def found(threat: Threat, **more: Any) -> dict[str, Any]:
        return measure(model, test, threat, ["pgd20"], batch_size=8, keep=tmp_path, **more)

    one = found(weak, watch=lambda *progress: seen.append(progress))
    assert seen == [("pgd20", "pgd20", done, 30) for done in (8, 16, 24, 30)]
    assert found(weak) == one  # the seconds too: nothing was run
    other = found(strong)
    assert other["pgd20"].correct < one["pgd20"].correct
    assert len(list(tmp_path.iterdir())) == 2  # each under a name of its own
    assert found(weak) == one  # nothing was overwritten
    (path,) = [path for path in tmp_path.iterdir() if '"epsilon": 0.2' in path.read_text(encoding="utf-8")]
    path.write_bytes(path.read_bytes()[:-110])  # a last line that was cut off is written anew
    assert found(strong)["pgd20"].correct == other["pgd20"].correct


def test_another_model_or_other_images_in_the_same_folder_are_evaluated_anew(
    model: nn.Module, tmp_path: Path
) -> None:
    test = digits().test.take(slice(30))
    x, labels = test.x, test.truth.labels

    def correct(net: nn.Module, true: Tensor) -> int:
        plain: dict[str, Any] = {"epsilon": 0.0, "attacks": ["natural"], "checks": False}
        return evaluate(net, x, true, keep=tmp_path, **plain)["natural"].correct

    right = correct(model, labels)
    torch.manual_seed(1)
    other = MODELS["mlp"](10, (1, 8, 8)).eval()
    assert correct(other, labels) < right
    assert correct(model, (labels + 1) % 10) < right


def test_earlier_evaluations_enter_the_worst_case_and_nothing_is_run_for_it(
    model: nn.Module, tmp_path: Path
) -> None:
    test, threat = digits().test.take(slice(40)), Threat(0.06, 0.01)
    measure(model, test, threat, ["cw30"], keep=tmp_path)
    other = measure(model, test, threat, ["pgd20_restarts"], keep=tmp_path, seed=1)["pgd20_restarts"]
    measure(model, test, Threat(0.3, 0.05), ["pgd20"], keep=tmp_path)  # another threat does not count
    seen: list[str] = []
    more: dict[str, Any] = {"keep": tmp_path, "extend": True}
    watch: Any = lambda *progress: seen.append(progress[0])  # noqa: E731
    found = measure(model, test, threat, ["natural", "pgd20"], watch=watch, **more)
    assert set(found) == {"natural", "pgd20", "cw30", WORST}
    attacks = "natural, pgd20, cw30, pgd20_restarts with seed 1 in batches of 500"
    assert found[WORST].attack["about"].endswith(attacks)
    assert 0 < found[WORST].correct <= min(found["pgd20"].correct, found["cw30"].correct, other.correct)
    alone = measure(model, test, threat, ["natural"], seed=9, **more)
    assert alone[WORST].correct == found[WORST].correct
    with precision(strict_fp32=True):  # evaluated apart; an image that was broken before stays broken
        strict = measure(model, test, threat, ["natural"], **more)
    assert set(strict) == {"natural", WORST}
    assert strict[WORST].correct == found[WORST].correct
    machine = r"cw30 with seed 0 in batches of 500 \(.* CPU, .*, torch .*, atcl .*, tf32 on\)"
    assert re.search(machine, strict[WORST].attack["about"])


class Shifted(nn.Module):
    """A model with parts that no state dict holds."""

    scale: Tensor

    def __init__(self, inner: nn.Module, by: float = 0.0, scale: float = 1.0, limit: float = 1.0) -> None:
        super().__init__()
        self.inner, self.by, self.limit = inner, by, torch.tensor(limit)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner((x * self.scale - self.by).clamp(max=self.limit))
        return out


class Counting(nn.Module):
    """A model that changes with each call, and has attributes of any kind."""

    seen: Tensor

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.calls, self.last = 0, torch.zeros(0)
        self.__dict__.update(attributes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, x
        self.seen += 1
        return x.flatten(1)


def test_the_digest_of_a_model_depends_on_its_weights_its_parts_and_their_attributes(
    model: nn.Module,
) -> None:
    x = torch.rand(1, 1, 8, 8)

    def digest(one: nn.Module) -> str:
        return digest_of_model(one, x)

    plain = Shifted(model)
    others = [
        Shifted(model, by=0.1),
        Shifted(model, scale=0.5),
        Shifted(model, limit=0.5),
        nn.Sequential(model),
        nn.Identity(),
        nn.Flatten(),
    ]
    assert len({digest(one) for one in (plain, model, *others)}) == 8
    assert digest(plain) == digest(copy.deepcopy(plain).train())
    before = digest(plain)
    with torch.no_grad():
        next(plain.parameters()).view(-1)[0].add_(1e-3)
    assert digest(plain) != before
    low = [nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).bfloat16() for _ in range(2)]
    assert len({digest_of_model(one, x.bfloat16()) for one in low}) == 2


def test_the_digest_of_a_model_ignores_what_a_call_changes_and_depends_on_its_other_attributes() -> None:
    x, counting = torch.rand(1, 1, 8, 8), Counting()

    def digest(value: Any) -> str:
        return digest_of_model(Counting(attribute=value), x)

    assert digest_of_model(counting, x) == digest_of_model(counting, torch.rand(1, 1, 8, 8))
    assert digest_of_model(counting, x) == digest_of_model(Counting(), x)
    values: list[Any] = [0.1, "a", (0.1, 2), [0.1], [0.2], {"a": [1]}, {"a": [2]}, {1, 2}, None]
    values += [np.zeros(3), np.ones(3), torch.float16, torch.ones(2)]
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert digest(object()) == digest(object())  # an address is another in each process
    assert digest(torch.ones(2).to_sparse())


def test_evaluations_of_a_version_with_other_passes_are_left_alone(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, threat, whole = digits().test.take(slice(40)), Threat(0.06, 0.01), ATTACKS["pgd20_restarts"]
    with monkeypatch.context() as older:
        older.setitem(ATTACKS, "pgd20_restarts", replace(whole, passes=dict([*whole.passes.items()][:2])))
        older.setattr(caching, "__version__", "0.0.1")
        measure(model, test, threat, ["pgd20_restarts"], keep=tmp_path)
    (path,) = tmp_path.glob("*.jsonl")
    before = path.read_bytes()
    found = measure(model, test, threat, ["natural", "pgd20"], keep=tmp_path, extend=True)
    assert "restarts" not in found[WORST].attack["about"]
    assert path.read_bytes() == before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"attacks": "pgd20"}, "list of names"),
    ({"epsilon": 8}, "would be 0.03137"),
    ({"x": torch.rand(2, 3, 8, 8)}, "shape (3, 8, 8)"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_wrong_argument_is_refused_in_one_line(model: nn.Module, given: dict[str, Any], words: str) -> None:
    wanted: dict[str, Any] = {"x": torch.rand(2, 1, 8, 8), "y": torch.tensor([0, 1]), "epsilon": 0.1}
    with pytest.raises(AtclError, match=re.escape(words)):
        evaluate(model, **{**wanted, **given})
    with pytest.raises(AtclError, match=r"torch.nn.Module that returns logits, not a function"):
        evaluate(lambda images: images, **wanted)  # type: ignore[arg-type]


class Linear(nn.Module):
    """A linear model for any number of classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out


X = torch.rand(12, 1, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("classes", [2, 3])
def test_with_two_or_three_classes_autoattack_is_refused_and_the_others_run(classes: int) -> None:
    y = torch.arange(12) % classes
    with pytest.raises(AtclError, match=f"needs at least 4 classes, and there are {classes}: use pgd20"):
        evaluate(Linear(classes), X, y, epsilon=0.1, attacks=["natural", "autoattack"])
    others = [name for name in ATTACKS if name != "autoattack"]
    found = evaluate(Linear(classes), X, y, epsilon=0.1, attacks=others)
    assert all(one.images == 12 for one in found.values())


def test_with_four_and_five_classes_autoattack_targets_all_others() -> None:
    for classes in (4, 5):
        y = Linear(classes)(X).argmax(1)
        found = evaluate(Linear(classes), X, y, epsilon=0.4, attacks=["autoattack"])["autoattack"]
        assert found.after["natural"] == 100
        assert found.accuracy < 100


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X + 1, torch.zeros(12, dtype=torch.int64), r"floats in \[0, 1\]"),
        (X, torch.full((12,), 3), "must lie in 0 to 2"),
        (X, -torch.ones(12, dtype=torch.int64), "must lie in 0 to 2"),
        (X, torch.zeros(12), "int64"),
        (X, torch.zeros(11, dtype=torch.int64), "12 images but 11 true labels"),
        (X[:0], torch.zeros(0, dtype=torch.int64), "test set is empty"),
        (X[0], torch.zeros(1, dtype=torch.int64), r"shape \(n, C, H, W\)"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused_in_one_line(
    x: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(AtclError, match=message):
        evaluate(Linear(3), x, y, epsilon=0.1)


def test_models_with_wrong_outputs_are_refused() -> None:
    broken = Linear(3)
    broken.layer.weight.data.fill_(torch.nan)
    with pytest.raises(AtclError, match="not finite"):
        evaluate(broken, X, torch.zeros(12, dtype=torch.int64), epsilon=0.1)
    with pytest.raises(AtclError, match=r"returns \(1,\) for one image"):
        evaluate(nn.Sequential(nn.Flatten(0)), X[:, :, :1, :1], [0] * 12, epsilon=0.1)


def test_any_classifier_arrays_and_lists_are_taken() -> None:
    y = Linear(5)(X).argmax(1)
    images = (255 * X).to(torch.uint8).numpy()
    found = evaluate(Linear(5), images, y.tolist(), epsilon=0.0, attacks=["natural", "pgd20"])
    assert found["pgd20"].correct == found["natural"].correct
    assert atcl.evaluate is evaluate


def test_epoch_accuracy_is_natural_accuracy_and_pgd20_made_on_the_attack_model(model: nn.Module) -> None:
    """By hand, batch by batch: PGD20 attacks the images that are naturally right; other ways would differ."""
    torch.manual_seed(0)
    attack_model, true = copy.deepcopy(model), digits().test.truth.labels[:145]
    with torch.no_grad():
        for parameter in attack_model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    labels = torch.where(torch.arange(145) % 3 > 0, true, (true + 1) % 10)  # so that many are naturally wrong
    x, threat = digits().test.x[:145].float() / 255, Threat(0.08, 0.01)
    right = model(x).argmax(1) == labels

    budget: dict[str, Any] = {"epsilon": 0.08, "step_size": 0.01, "steps": 20, "rng": torch.Generator()}

    def correct(source: nn.Module, target: nn.Module, same_start: bool = False, moved: bool = True) -> int:
        left = 0
        for number, part in enumerate(right.nonzero()[:, 0].split(20)):
            rng = generator(x.device, 5, 0 if same_start else number)
            start = STARTS["uniform"](x[part], 0.08, NORMS["linf"], rng) if moved else x[part]
            adv = pgd(source, x[part], cross_entropy_of(labels[part]), start=given(start), **budget)
            left += int((target(adv).argmax(1) == labels[part]).sum())
        return left

    expected = correct(attack_model, model)
    assert expected not in (
        correct(model, model),
        correct(attack_model, attack_model),
        correct(attack_model, model, same_start=True),
        correct(attack_model, model, moved=False),
    )
    natural = int(right.sum())
    assert natural % 20 > 0  # the last batch of those that are attacked is smaller
    assert natural <= 120  # and there are fewer of them than of all images
    sizes, stepped = list[tuple[int, int]](), list[int]()

    def static(judge: Judge) -> Judge:
        """Return the output in the same memory each time, as a CUDA graph does."""
        place: list[Tensor] = []

        def run(*inputs: Tensor) -> Tensor:
            sizes.append((len(inputs), len(inputs[0])))
            place.append(judge(*inputs))
            return place[0].copy_(place[-1])

        return run

    def counted(net: nn.Module, x: Tensor, *more: Any) -> Tensor:
        stepped.append(len(x))
        return pgd_step(net, x, *more)

    test = Split(digits().test.x[:145], Truth(labels, 10))
    ways: list[dict[str, Any]] = [
        {"attack_step": pgd_step},
        {"attack_step": pgd_step, "repeated": static},
        {"attack_step": counted},
    ]
    for way in ways:
        measured = epoch_accuracy(model, attack_model, test, threat, seed=5, batch_size=20, **way)
        accuracies = measured.attacked(measured.natural()).tolist()
        assert accuracies == pytest.approx([100 * natural / 145, 100 * expected / 145])
        assert measured.attacked(torch.zeros_like(right)).tolist() == [0, 0]
    batches = -(-natural // 20)
    # natural images of a smaller batch are not worth a graph
    assert sizes == [(2, 20)] * 7 + [(3, 20)] * batches
    assert stepped == [20] * 20 * batches  # a compiled step is compiled for one size alone


def test_exact_accuracy_finds_what_measure_finds(model: nn.Module) -> None:
    test, threat = digits().test.take(slice(145)), Threat(0.08, 0.01)
    exact, found = exact_accuracy(model, test, threat), measure(model, test, threat, ["natural", "pgd20"])
    assert exact.attacked(exact.natural()).tolist() == [found["natural"].accuracy, found["pgd20"].accuracy]
    assert 0 < found["pgd20"].accuracy < found["natural"].accuracy < 100


def test_autoattack_alone_takes_the_batches_that_a_gpu_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    test, net = tiny.split(20), tiny.TinyNet()
    assert batch_of(net, test) == BATCH_SIZE  # on a CPU
    assert [name for name, attack in ATTACKS.items() if attack.wide] == ["autoattack"]
    monkeypatch.setattr("atcl.evaluation.evaluate.batch_of", lambda model, test: 7)
    quick = replace(ATTACKS["autoattack"], passes=ATTACKS["natural"].passes)
    monkeypatch.setitem(ATTACKS, "autoattack", quick)
    threat = Threat(0.01, 0.01)
    found = measure(net, test, threat, ["natural", "autoattack"])
    sizes = {name: one.batch_size for name, one in found.items()}
    assert sizes == {"natural": BATCH_SIZE, "autoattack": 7, WORST: BATCH_SIZE}
    assert measure(net, test, threat, ["autoattack"], batch_size=9)["autoattack"].batch_size == 9


def test_activations_are_counted_layer_by_layer() -> None:
    inner = nn.Sequential(nn.ReLU(), nn.Flatten())
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), inner, nn.Linear(144, 5))
    assert activation_bytes(net, torch.rand(2, 1, 6, 6)) == 2 * 4 * (3 * 144 + 5)
    assert not any(module._forward_hooks for module in net.modules())
    with warnings.catch_warnings(action="ignore"):  # TorchScript is old
        assert activation_bytes(torch.jit.script(net), torch.rand(2, 1, 6, 6)) == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_epoch_accuracy_copies_no_number_from_the_host(model: nn.Module, norm: str) -> None:
    """What is recorded on a GPU must not: a copy makes the host wait."""

    class Noting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.seen: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.add(str(func))
            return func(*args, **(kwargs or {}))

    noted = Noting()

    def noting(judge: Judge) -> Judge:
        def run(*given: Tensor) -> Tensor:
            with noted:
                return judge(*given)

        return run

    test, threat = digits().test.take(slice(20)), Threat(0.06, 0.01, norm)
    options: dict[str, Any] = {"repeated": noting, "batch_size": 20}
    measured = epoch_accuracy(model, AttackModel(model), test, threat, pgd_step, **options)
    measured.attacked(measured.natural())
    assert "aten.addmm.default" in noted.seen
    assert "aten.lift_fresh.default" not in noted.seen
    with noted:
        torch.as_tensor(0.06, device="cpu")
    assert "aten.lift_fresh.default" in noted.seen  # so it would be noticed


def test_evaluations_in_other_batches_enter_the_worst_case_too(model: nn.Module, tmp_path: Path) -> None:
    test, threat = digits().test.take(slice(30)), Threat(0.06, 0.01)
    measure(model, test, threat, ["pgd20"], batch_size=10, keep=tmp_path)
    found = measure(model, test, threat, ["natural"], keep=tmp_path, extend=True)
    sizes = {name: one.batch_size for name, one in found.items()}
    assert sizes == {"natural": BATCH_SIZE, "pgd20": 10, WORST: BATCH_SIZE}
    assert found[WORST].accuracy == found["pgd20"].accuracy < found["natural"].accuracy


def test_an_attack_may_evaluate_the_first_images_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "cw30", atcl.replace(ATTACKS["cw30"], first=5))
    test = Split(X, Truth(torch.arange(12) % 3, 3))
    found = measure(Linear(3), test, Threat(0.1, 0.02), ["natural", "cw30"])
    assert (found["natural"].images, found["cw30"].images, found[WORST].images) == (12, 5, 5)
    first = measure(Linear(3), test.take(slice(5)), Threat(0.1, 0.02), ["natural", "cw30"])
    assert found[WORST].correct == first[WORST].correct


SCHEMA = json.loads((Path(__file__).parents[2] / "docs/result.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["digits/warmup-pla", "mnist/two-stage", "own/warmup-pla"])
def test_a_result_follows_the_published_schema(name: str, tmp_path: Path) -> None:
    recipe = tiny.RECIPES[name]
    problem = tiny.problem(recipe.labels)
    run = atcl.train(recipe, out=tmp_path, problem=problem, build=tiny.TinyNet, execution=tiny.ON_CPU)
    jsonschema.validate(json.loads((tmp_path / "result.json").read_text(encoding="utf-8")), SCHEMA)
    broken = {**run.result.to_json(), "metrics": {"pgd20": {"accuracy": 12}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "results").rglob("result.json")),
    ids=lambda path: "-".join(path.parts[-3:-1]),
)
def test_every_committed_result_follows_it_too_and_was_checked_for_false_robustness(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(result, SCHEMA)
    assert result["flags"] is not None
