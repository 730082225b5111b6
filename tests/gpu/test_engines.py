"""Engines on a GPU: recorded steps draw, compute, resume and share the device as they should.

Without a GPU these tests skip.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atcl.attacks.norms import NORMS
from atcl.attacks.pgd import AttackStep, pgd_step
from atcl.attacks.threat import Threat
from atcl.core.precisions import Precision
from atcl.data.images import as_float
from atcl.datasets.truth import Split, Truth
from atcl.engine.attack_model import AttackModel, tensors_of
from atcl.engine.engines import EAGER, PLAIN, Engine, Step, StepGraph, engine_of, waits
from atcl.evaluation.evaluate import epoch_accuracy
from atcl.models import MODELS
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Problem
from atcl.runs.run import Run
from atcl.runs.spec import Execution, RunSpec
from atcl.runs.start import _waits, train, train_together
from atcl.runs.watcher import Watcher
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.stage import Stage
from tests import tiny
from tests.engine.test_attack_model import Odd, Summing, with_statistics
from tests.engine.test_engines import KINDS, check_parts, compiled_or_fail

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and this machine has none"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch warns of its own compiler
]

CUDA = torch.device("cuda")
RECORDED = Engine("captured", compiles=False, records=True)


@pytest.fixture(autouse=True)
def _as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.mark.parametrize("name", KINDS)
def test_compiled_parts_do_what_is_written(name: str) -> None:
    check_parts(*KINDS[name], CUDA, compiled_or_fail)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_a_compiled_step_on_a_fused_attack_model_is_that_on_its_model(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "small_cnn" else (3, 32, 32)
    model = MODELS[name](10, shape).to(CUDA).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))  # the last layer starts at zero
    x, labels = torch.rand(64, *shape, device=CUDA), torch.arange(64, device=CUDA) % 10
    attack_model = AttackModel(model, fuse=True)
    assert attack_model.fused

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum")

    def stepped(net: nn.Module, run: AttackStep) -> Tensor:
        return run(net, x, x, loss, 0.3, 0.01, NORMS["linf"])

    same = stepped(attack_model, compiled_or_fail(pgd_step)) == stepped(model, pgd_step)
    assert same.float().mean() >= 0.98  # the sign amplifies rounding


@pytest.mark.parametrize(
    "build",
    [lambda: MODELS["resnet18"](10, (3, 17, 19)), lambda: MODELS["small_cnn"](10, (3, 17, 19)), Summing, Odd],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_attack_model_of_fused_kernels_is_its_model(
    build: Callable[[], nn.Module], layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    model = with_statistics(build()).to(CUDA)
    attack_model = AttackModel(model, fuse=True, compiles=False)
    assert any(one.relu for one in attack_model.fused)
    x = torch.rand(8, 3, 17, 19, device=CUDA).contiguous(memory_format=layout).requires_grad_()
    ours, theirs = attack_model(x), model(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        *(torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs)), rtol=1e-2, atol=1e-3
    )


def test_what_runs_at_the_same_time_records_on_streams_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: dict[int, int] = {}  # of a run, by the generator of its steps or by a function that it repeats
    streams: dict[int, set[tuple[str, int]]] = defaultdict(set)  # of each engine: what was recorded on which
    begin, whole, repeated = StepGraph.__init__, Engine.whole, Engine.repeated

    def noting(
        self: StepGraph,
        function: Callable[..., Tensor],
        given: tuple[Tensor, ...],
        stream: torch.cuda.Stream,
        rng: torch.Generator | None = None,
    ) -> None:
        key, kind = (id(function), "observation") if rng is None else (id(rng), "step")
        streams[engines[key]].add((kind, stream.cuda_stream))
        begin(self, function, given, stream, rng)

    def noting_whole(self: Engine, step: Step, rng: torch.Generator) -> Step:
        engines[id(rng)] = id(self)
        return whole(self, step, rng)

    def noting_repeated(
        self: Engine, function: Callable[..., Tensor], device: torch.device
    ) -> Callable[..., Tensor]:
        engines[id(function)] = id(self)
        return repeated(self, function, device)

    monkeypatch.setattr(StepGraph, "__init__", noting)
    monkeypatch.setattr(Engine, "whole", noting_whole)
    monkeypatch.setattr(Engine, "repeated", noting_repeated)
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    recipe = replace(recipe, stages=tuple(replace(stage, epochs=PLAIN + 3) for stage in recipe.stages))
    problem = tiny.problem(recipe.labels)
    specs = [
        RunSpec.of(recipe, seed=seed, out=tmp_path / str(seed), problem=problem, build=tiny.TinyNet)
        for seed in (1, 2, 3)
    ]
    train_together(specs, Execution("cuda", engine="captured", deterministic=True))
    used = {stream for one in streams.values() for _, stream in one}
    assert len(streams) == len(used) == 3
    # each run records both on one stream
    assert all(sorted(kind for kind, _ in one) == ["observation", "step"] for one in streams.values())
    assert not {torch.cuda.Stream().cuda_stream for _ in range(64)} & used  # those that evaluations record on


def learnt(recipe: Recipe, stage: Stage, engine: Engine) -> tuple[Tensor, Tensor]:
    """Return the weights after a stage, trained and evaluated ones, and the state of its generator."""
    data = tiny.problem(recipe.labels).train.to(CUDA)
    torch.manual_seed(0)
    learner = Learner(tiny.TinyNet(), data, stage)
    fit(learner, data, stage, seed=0, engine=engine)
    tensors = [*tensors_of(learner.model), *tensors_of(learner.refresh())]
    weights = torch.cat([tensor.flatten().float() for tensor in tensors])
    return weights, learner.rng.get_state()


@pytest.mark.parametrize("name", tiny.ALL)
def test_a_recorded_stage_draws_and_learns_the_same(name: str) -> None:
    recipe = tiny.ALL[name]
    for stage in recipe.stages:
        if stage.teacher != "none":
            continue
        # long enough for the last batch to be recorded too
        longer = replace(stage, precision=Precision(), epochs=max(stage.epochs, PLAIN + 3))
        (plain, drawn), (recorded, drawn_too) = (
            learnt(recipe, longer, engine) for engine in (EAGER, RECORDED)
        )
        assert torch.equal(drawn, drawn_too)
        torch.testing.assert_close(plain, recorded, rtol=1e-3, atol=1e-4)


def test_a_recorded_evaluation_of_the_test_set_follows_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = tiny.TinyNet().to(CUDA).eval(), tiny.split(20).x
    plays, play = Counter[tuple[int, int]](), StepGraph.play
    with torch.no_grad():
        test = Split(x, Truth(model(as_float(x.to(CUDA))).argmax(1).cpu(), tiny.CLASSES))

    def counting(self: StepGraph, *given: Tensor) -> Tensor:
        plays[len(given), len(given[0])] += 1
        return play(self, *given)

    monkeypatch.setattr(StepGraph, "play", counting)
    attack_model = AttackModel(model)
    plain, quick = (
        epoch_accuracy(model, attack_model, test, Threat(0.05, 0.01), pgd_step, repeated=way, batch_size=8)
        for way in (lambda judge: judge, recording)
    )
    seen = set()
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.03 * torch.randn(parameter.shape).to(CUDA))  # the same everywhere
        attack_model.follow()
        found = [one.attacked(one.natural()).tolist() for one in (quick, plain)]
        assert found[0] == found[1]
        seen.add(tuple(found[1]))
    assert len(seen) > 1
    assert any(0 < attacked < natural < 100 for natural, attacked in seen)
    assert plays.keys() == {(2, 8), (3, 8)}  # the last batch that is attacked is filled up
    assert plays[2, 8] == 2 * 4 - PLAIN
    assert plays[3, 8] > 2


def recording(judge: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return RECORDED.repeated(judge, CUDA)


def test_a_recorded_step_is_really_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    plays: list[int] = []
    play = StepGraph.play

    def counting(self: StepGraph, index: Tensor) -> Tensor:
        plays.append(len(index))
        return play(self, index)

    monkeypatch.setattr(StepGraph, "play", counting)
    recipe = tiny.RECIPES["digits/oracle"]
    learnt(recipe, recipe.stages[0], RECORDED)
    assert plays == [8, 8, 8, 8, 4, 8, 8, 4, 8, 8, 4][: len(plays)]
    assert len(plays) == 15 - 2 * PLAIN


@pytest.mark.parametrize("kinds", [("bf16", "bf16"), ("bf16", "tf32"), ("tf32", "fp32")])
@pytest.mark.parametrize("name", ["digits/warmup-pla", "cifar10/trades", "mnist/two-stage"])
def test_each_precision_trains_in_a_compiled_recorded_engine(
    name: str, kinds: tuple[str, str], tmp_path: Path
) -> None:
    recipe = tiny.ALL[name]
    precision = Precision(*kinds)  # type: ignore[arg-type]
    recipe = replace(recipe, stages=tuple(replace(stage, precision=precision) for stage in recipe.stages))
    watcher = Listener()
    execution, problem = Execution("cuda", engine="captured"), tiny.problem(recipe.labels)
    run = train(
        recipe, out=tmp_path, problem=problem, build=tiny.TinyNet, watcher=watcher, execution=execution
    )
    use = run.result.engine
    assert use
    assert use.name == "captured"
    assert use.peak_gpu_bytes
    assert watcher.messages == []  # nothing failed to compile


class Listener(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def notify(self, text: str) -> None:
        self.messages.append(text)


def weights(folder: Path) -> Tensor:
    from safetensors.torch import load_file

    tensors = sorted(load_file(folder / "model.safetensors").items())
    return torch.cat([tensor.flatten().float() for _, tensor in tensors])


def test_models_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    recipe = tiny.RECIPES["cifar10/warmup-pla"]
    problem = tiny.problem(recipe.labels)
    execution = Execution("cuda", deterministic=True)

    def spec(seed: int, way: str) -> RunSpec:
        return RunSpec.of(
            recipe, seed=seed, out=tmp_path / f"{way}-{seed}", problem=problem, build=tiny.TinyNet
        )

    train_together([spec(seed, "together") for seed in (1, 2, 3)], execution)
    for seed in (1, 2, 3):
        train_together([spec(seed, "alone")], execution)
        assert torch.equal(weights(tmp_path / f"together-{seed}"), weights(tmp_path / f"alone-{seed}"))
    assert not torch.equal(weights(tmp_path / "alone-1"), weights(tmp_path / "alone-2"))


@pytest.mark.parametrize("name", ["cifar10/warmup-pla", "digits/warmup-pla-k"])
def test_a_deterministic_run_that_was_stopped_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    recipe = tiny.ALL[name]
    recipe = replace(recipe, stages=tuple(replace(stage, epochs=8) for stage in recipe.stages))
    problem = tiny.problem(recipe.labels)

    class Stop(Exception):
        pass

    class Stopper(Watcher):
        def epoch(self, record: dict[str, object]) -> None:
            if record["epoch"] == 5:
                raise Stop

    execution = Execution("cuda", engine="captured", deterministic=True)

    def go(folder: str, watcher: Watcher | None = None) -> None:
        train(
            recipe,
            out=tmp_path / folder,
            problem=problem,
            build=tiny.TinyNet,
            watcher=watcher,
            execution=execution,
        )

    go("whole")
    with pytest.raises(Stop):
        go("cut", Stopper())
    go("cut")
    assert torch.equal(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


class Waiting(nn.Module):
    """A model that waits for a value on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.TinyNet()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits * 2 if float(logits.sum()) > 0 else logits


def test_a_model_that_waits_is_not_recorded_and_trains_all_the_same(tmp_path: Path) -> None:
    assert waits(Waiting().to(CUDA), torch.rand(2, *tiny.SHAPE, device=CUDA))
    assert not waits(tiny.TinyNet().to(CUDA), torch.rand(2, *tiny.SHAPE, device=CUDA))
    recipe = tiny.RECIPES["digits/oracle"]
    run = train(
        recipe,
        out=tmp_path,
        problem=tiny.problem(recipe.labels),
        build=Waiting,
        execution=Execution(device="cuda"),
    )
    assert run.result.engine
    assert run.result.engine.name == "eager"


def test_images_in_the_hosts_memory_are_not_recorded() -> None:
    recipe = tiny.RECIPES["digits/oracle"]
    problem: Problem = tiny.problem(recipe.labels)
    data = problem.train.to(CUDA, room=0)
    run = Run(Path("nowhere"), "", 0, recipe, 10, tiny.SHAPE)
    problems = [replace(problem, train=one) for one in (data, problem.train.to(CUDA))]
    assert [_waits(run, one, tiny.TinyNet) for one in problems] == [True, False]
    (stage,) = recipe.stages
    learner = Learner(tiny.TinyNet(), data, stage)
    before = [parameter.clone() for parameter in learner.model.parameters()]
    fit(learner, data, stage, seed=0, engine=engine_of("auto", CUDA, 0, waits=True))
    assert all(not torch.equal(old, new) for old, new in zip(before, learner.model.parameters(), strict=True))
