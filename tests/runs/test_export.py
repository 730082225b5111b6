"""Exported models compute what the model computes; a file that does not is not written."""

import json
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import safetensors
import torch
from torch import Tensor, nn

from atcl.core.errors import AtclError
from atcl.models import MLP, MODELS, ResNet, SmallCNN, TinyCNN
from atcl.models.residual import Block, PreActBlock
from atcl.runs.export import EXPORTS, Exported, export

NAMES = ("cat", "dog", "äpple", "a, b")
SHAPE = (1, 16, 16)


def thin(block: type[Block] | type[PreActBlock]) -> Callable[[], nn.Module]:
    """The same operations as the residual networks, in moments."""
    return lambda: ResNet(4, 1, block, [4, 8], depth=1, stem=4)


NETS: dict[str, Callable[[], nn.Module]] = {
    "tiny_cnn": lambda: TinyCNN(4, SHAPE),
    "small_cnn": lambda: SmallCNN(4, SHAPE),
    "mlp": lambda: MLP(4, SHAPE),
    "resnet18": thin(Block),
    "preact_resnet18": thin(PreActBlock),
    "wide_resnet32_10": thin(PreActBlock),
}


def lived_in(model: nn.Module) -> nn.Module:
    """A model with statistics and weights that no fresh one has."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        model.train()(torch.rand(4, *SHAPE))
    return model


def small() -> nn.Module:
    return lived_in(MLP(4, SHAPE))


class Together(nn.ModuleDict):
    """Every network at once, their logits side by side: translating a graph has a fixed price of seconds."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([net(x) for net in self.values()], 1)


@dataclass(frozen=True)
class Case:
    model: nn.Module
    exported: Exported
    names: list[str]


@pytest.fixture(scope="module", params=["onnx", "torchscript"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = lived_in(Together({name: build() for name, build in NETS.items()}))
    names = [f"{net}, {name}" for net in NETS for name in NAMES]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = export(
            model,
            SHAPE,
            names,
            tmp_path_factory.mktemp("export") / request.param,
            request.param,
            kind="together",
        )
    return Case(model, exported, names)


def run(path: Path, x: Tensor) -> Tensor:
    """Run the file, as another program would."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        return EXPORTS[path.name].unpack(path.read_bytes(), nn.Identity())(x).detach()


def test_every_model_is_exported_here() -> None:
    assert set(NETS) == set(MODELS)


def test_the_file_computes_what_every_model_does_for_any_number_of_images(case: Case) -> None:
    for n in (1, 7):
        x = torch.rand(n, *SHAPE)
        theirs, ours = run(case.exported.path, x), deepcopy(case.model).eval()(x).detach()
        for net, their, our in zip(NETS, theirs.split(4, 1), ours.split(4, 1), strict=True):
            assert our.std() > 0, net
            assert torch.allclose(their, our, rtol=1e-4, atol=1e-5), net
            assert torch.equal(their.argmax(1), our.argmax(1)), net


def test_an_export_reports_its_size_and_difference(case: Case) -> None:
    assert case.exported.bytes == case.exported.path.stat().st_size
    assert 0 <= case.exported.difference < 1e-4


def test_no_path_of_the_machine_goes_out(case: Case) -> None:
    content = case.exported.path.read_bytes()
    for place in (Path(torch.__file__).parents[1], Path(__file__).parents[2]):
        assert str(place).encode() not in content


def test_the_file_describes_its_classes_and_its_input(case: Case) -> None:
    metadata = METADATA[case.exported.path.name](case.exported.path)
    assert json.loads(metadata["names"]) == case.names
    assert json.loads(metadata["shape"]) == list(SHAPE)
    assert (metadata["model"], metadata["classes"]) == ("together", str(len(case.names)))
    assert "[0, 1]" in metadata["input"]


def onnx_metadata(path: Path) -> dict[str, str]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (inputs,), (outputs,) = session.get_inputs(), session.get_outputs()
    assert (inputs.name, inputs.shape) == ("images", ["n", *SHAPE])
    assert (outputs.name, outputs.shape) == ("logits", ["n", 4 * len(NETS)])
    return dict(session.get_modelmeta().custom_metadata_map)


def torchscript_metadata(path: Path) -> dict[str, str]:
    found = dict.fromkeys(["names", "shape", "model", "classes", "input"], "")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        torch.jit.load(path, _extra_files=found)
    return {name: bytes(value).decode() for name, value in found.items()}  # type: ignore[arg-type]  # it fills them with bytes


METADATA = {"onnx": onnx_metadata, "torchscript": torchscript_metadata}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "wide_resnet32_10"])
def test_weights_alone_rebuild_a_named_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name](4, SHAPE)
    exported = export(model, SHAPE, NAMES, tmp_path / "model.safetensors", "safetensors", kind=name)
    with safetensors.safe_open(exported.path, "pt") as stored:
        metadata = stored.metadata()
        weights = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118  it is no mapping
    assert metadata["model"] == name
    assert (json.loads(metadata["names"]), metadata["classes"]) == (list(NAMES), "4")
    assert json.loads(metadata["shape"]) == list(SHAPE)
    fresh = MODELS[metadata["model"]](4, SHAPE)
    fresh.load_state_dict(weights)
    x = torch.rand(2, *SHAPE)
    assert torch.equal(fresh.eval()(x), deepcopy(model).eval()(x))
    assert exported.difference == 0


def test_weights_of_a_model_of_ones_own_are_kept_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 4))
    assert export(model, SHAPE, NAMES, tmp_path / "model", "safetensors").difference == 0


@pytest.mark.parametrize("format", ["torchscript", "safetensors"])  # the formats share this code
def test_the_model_is_left_as_it_was_found(format: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(256), nn.Linear(256, 4)).train()
    model[2].eval()  # a mode of its own
    before, everyone = deepcopy(model.state_dict()), torch.get_rng_state()
    export(model, SHAPE, NAMES, tmp_path / "model", format)
    assert [module.training for module in model] == [True, True, False, True]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(everyone, torch.get_rng_state())


class Counting(nn.Module):
    """A trace keeps the number of images that it saw."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] * len(x)


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    message = r"does not compute what the model does: logits differ by .*; nothing was written"
    with pytest.raises(AtclError, match=message) as error:
        export(Counting(), SHAPE, NAMES, tmp_path / "model", "torchscript")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_given_images_are_compared_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = EXPORTS["safetensors"]

    def but_black(content: bytes, model: nn.Module) -> Callable[[Tensor], Tensor]:
        predict = whole.unpack(content, model)
        return lambda x: predict(x) + (x.amax((1, 2, 3)) == 0)[:, None]

    monkeypatch.setitem(EXPORTS, "safetensors", replace(whole, unpack=but_black))
    export(small(), SHAPE, NAMES, tmp_path / "random", "safetensors")
    black = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    with pytest.raises(AtclError, match="nothing was written"):
        export(small(), SHAPE, NAMES, tmp_path / "model", "safetensors", images=black)
    assert [path.name for path in tmp_path.iterdir()] == ["random"]


class Refusing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] if float(x.sum()) > 0 else x.flatten(1)[:, 4:8]


def test_a_model_that_cannot_be_converted_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match=r"^the model cannot be exported as onnx: ") as error:
        export(Refusing(), SHAPE, NAMES, tmp_path / "model", "onnx")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(AtclError, match=rf"{missing} is missing: pip install 'atcl\[onnx\]'"):
        export(small(), SHAPE, NAMES, tmp_path / "model", "onnx")


class Infinite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] / 0


@pytest.mark.parametrize(
    ("model", "shape", "names", "file", "format", "message"),
    [
        (MLP(4, SHAPE), SHAPE, NAMES, "model", "onxx", "unknown format 'onxx'; did you mean 'onnx'"),
        (
            MLP(4, SHAPE),
            (1, 9, 9),
            NAMES,
            "model",
            "safetensors",
            r"does not take images of shape \(1, 9, 9\)",
        ),
        (MLP(4, SHAPE), SHAPE, NAMES[:3], "model", "safetensors", "3 names of classes"),
        (Infinite(), SHAPE, NAMES, "model", "safetensors", "not finite"),
        (
            MLP(4, SHAPE),
            SHAPE,
            NAMES,
            "missing/model",
            "safetensors",
            "cannot write .*missing/model: No such file",
        ),
    ],
)
def test_a_mistake_gives_one_line(
    model: nn.Module,
    shape: tuple[int, int, int],
    names: tuple[str, ...],
    file: str,
    format: str,
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(AtclError, match=message) as error:
        export(model, shape, names, tmp_path / file, format)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_weights_under_the_name_of_another_model_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(AtclError, match="cannot be exported as safetensors"):
        export(MLP(4, SHAPE), SHAPE, NAMES, tmp_path / "model", "safetensors", kind="tiny_cnn")
    assert list(tmp_path.iterdir()) == []
