"""Export models to files that run elsewhere.

The content of each file is executed and compared with the model before the file is written.
"""

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch import Generator, Tensor
from torch.func import functional_call
from torch.nn import Module

from atcl.core.errors import AtclError, pick
from atcl.core.files import write_whole
from atcl.core.version import __version__
from atcl.data.images import as_float, checked_images
from atcl.models import MODELS

# How far the logits may differ, relative to 1 + the largest of them. Sums of float32 in another order differ
# by far less.
TOLERANCE = 1e-4

LogitsOf = Callable[[Tensor], Tensor]  # (n, C, H, W) float in [0, 1] -> logits (n, K)
Metadata = Mapping[str, str]


@dataclass(frozen=True)
class Format:
    """A file format: how a model becomes the content of a file, and how that content is executed.

    Args:
        pack: receives a model on the CPU in eval mode, some images, and the metadata of the file.
        unpack: receives the content, and the model, whose code it uses if the file has weights alone.
        about: one line for `atcl list exports`.
    """

    pack: Callable[[Module, Tensor, Metadata], bytes]
    unpack: Callable[[bytes, Module], LogitsOf]
    about: str


@dataclass(frozen=True)
class Exported:
    """The file that was written.

    Args:
        path: where it is.
        bytes: its size.
        difference: the largest difference between its logits and those of the model.
    """

    path: Path
    bytes: int
    difference: float


def export(
    model: Module,
    shape: tuple[int, int, int],
    names: Sequence[str],
    path: Path | str,
    format: str,
    *,
    kind: str = "own",
    images: Tensor | None = None,
) -> Exported:
    """Write a model to a file that runs elsewhere; it takes floats (n, C, H, W) in [0, 1] and returns logits.

    Args:
        model: the model; it is not changed.
        shape: (C, H, W) of an image.
        names: the names of the classes.
        path: the file.
        format: onnx, torchscript or safetensors.
        kind: the name of the model in `MODELS`, if it has one.
        images: images to compare file and model on, besides random ones.

    Returns:
        The path and the size of the file, and how far its logits are from those of the model.

    Raises:
        AtclError: the model cannot be exported, the file does not compute what the model computes, or the
            file cannot be written.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> with TemporaryDirectory() as folder:
        ...     export(model, (1, 2, 2), ["cat", "dog"], f"{folder}/pets", "safetensors").difference
        0.0
    """
    chosen = pick(EXPORTS, format, "format")
    frozen = deepcopy(model).cpu().eval().requires_grad_(False)
    batches = _batches(shape, images)
    expected = [_logits(frozen, x, len(names)) for x in batches]
    with _silent(), torch.no_grad():
        try:
            content = chosen.pack(frozen, batches[1], metadata_of(kind, shape, names))
            predict = chosen.unpack(content, frozen)
            actual = [predict(x) for x in batches]
        except AtclError:
            raise
        except Exception as error:  # converters raise many kinds, over many lines
            raise AtclError(f"the model cannot be exported as {format}: {_first_line(error)}") from error
    difference = _difference(actual, expected, format)
    try:
        write_whole(Path(path), content)
    except OSError as error:
        raise AtclError(f"cannot write {path}: {error.strerror}") from None
    return Exported(Path(path), len(content), difference)


def metadata_of(kind: str, shape: tuple[int, int, int], names: Sequence[str]) -> dict[str, str]:
    """Return the metadata of an exported file.

    Args:
        kind: the name of the model in `MODELS`, or "own".
        shape: (C, H, W) of an image.
        names: the names of the classes.
    """
    return {
        "made_by": f"atcl {__version__}",
        "model": kind,
        "classes": str(len(names)),
        "names": json.dumps(list(names), ensure_ascii=False),
        "shape": json.dumps(list(shape)),
        "input": "float32 images (n, C, H, W) in [0, 1]",
        "output": "float32 logits (n, classes)",
    }


def _pack_onnx(model: Module, x: Tensor, metadata: Metadata) -> bytes:
    try:
        import onnx
        import onnxruntime  # noqa: F401  executes the file afterwards
        import onnxscript  # noqa: F401  PyTorch needs it to convert
    except ImportError as error:
        raise AtclError(f"to export as onnx, {error.name} is missing: pip install 'atcl[onnx]'") from None
    program = torch.onnx.export(
        model,
        (x,),
        dynamo=True,
        verbose=False,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    assert program is not None
    proto = program.model_proto
    graph = proto.graph
    # the converter stores the source line of each operation, with paths of this machine
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
    onnx.helper.set_model_props(proto, dict(metadata))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def _unpack_onnx(content: bytes, model: Module) -> LogitsOf:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0])


def _pack_torchscript(model: Module, x: Tensor, metadata: Metadata) -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, x, check_trace=False), file, _extra_files=dict(metadata))
    return _without_sources(file)


def _without_sources(file: io.BytesIO) -> bytes:
    """Return a TorchScript archive without its debug information, which has paths of this machine."""
    kept = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(kept, "w") as copy:
        for entry in archive.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                copy.writestr(entry, archive.read(entry))
    return kept.getvalue()


def _unpack_torchscript(content: bytes, model: Module) -> LogitsOf:
    loaded: LogitsOf = torch.jit.load(io.BytesIO(content), map_location="cpu")
    return loaded


def _pack_safetensors(model: Module, x: Tensor, metadata: Metadata) -> bytes:
    weights = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    return safetensors.torch.save(weights, metadata=dict(metadata))


def _unpack_safetensors(content: bytes, model: Module) -> LogitsOf:
    """Return a new model with the weights of the file, built from its metadata.

    A model that is not in `MODELS` cannot be built from them; then the weights are used in the given model.
    """
    weights = safetensors.torch.load(content)
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    if metadata["model"] not in MODELS:
        return partial(functional_call, model, weights, strict=True)
    fresh = MODELS[metadata["model"]](int(metadata["classes"]), tuple(json.loads(metadata["shape"])))
    fresh.load_state_dict(weights)
    return fresh.eval()


EXPORTS: dict[str, Format] = {
    "onnx": Format(_pack_onnx, _unpack_onnx, "graph and weights, for ONNX Runtime and most other software"),
    "torchscript": Format(
        _pack_torchscript, _unpack_torchscript, "graph and weights, traced, for PyTorch from Python and C++"
    ),
    "safetensors": Format(
        _pack_safetensors, _unpack_safetensors, "weights, with the name, classes and image shape of the model"
    ),
}


def _batches(shape: tuple[int, int, int], images: Tensor | None) -> list[Tensor]:
    """Return the batches on which file and model are compared: 1 and 5 random images, and those given."""
    rng = Generator().manual_seed(0)
    random = [torch.rand(n, *shape, generator=rng) for n in (1, 5)]
    return random if images is None else [*random, *as_float(checked_images(images).cpu()).split(500)]


@torch.no_grad()
def _logits(model: Module, x: Tensor, classes: int) -> Tensor:
    try:
        logits = model(x)
    except RuntimeError as error:
        raise AtclError(
            f"the model does not take images of shape {tuple(x.shape[1:])}: {_first_line(error)}"
        ) from None
    if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise AtclError(
            f"the model returns {got} for {len(x)} images, but there are {classes} names of classes: "
            "give a name for each class"
        )
    if not bool(logits.isfinite().all()):
        raise AtclError("the model's logits are not finite, so its export cannot be checked: train it again")
    return logits


def _difference(actual: Sequence[Tensor], expected: Sequence[Tensor], format: str) -> float:
    """Return the largest difference between two logits; refuse one that is too large."""
    logits, wanted = torch.cat(list(actual)), torch.cat(list(expected))
    difference = float((wanted - logits).abs().max())
    bound = TOLERANCE * (1 + float(wanted.abs().max()))
    # within the bound, the file predicts the same class if the model prefers it by more than twice the bound
    if not difference <= bound:  # refuses NaN too
        raise AtclError(
            f"the {format} file does not compute what the model does: logits differ by {difference:g}; "
            "nothing was written"
        )
    return difference


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress what converters log, and PyTorch's warning that TorchScript is deprecated."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
