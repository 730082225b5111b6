"""Models for use elsewhere: each file is run and compared with the model before it is written, whole or not at all."""

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

TOLERANCE = (
    1e-4  # of the logits, relative to 1 + the largest of them; float32 sums in another order stay far below
)

LogitsOf = Callable[[Tensor], Tensor]  # (n, C, H, W) float in [0, 1] -> logits (n, K)
Metadata = Mapping[str, str]


@dataclass(frozen=True)
class Format:
    """How a model becomes the bytes of a file, and how these are run again."""

    pack: Callable[
        [Module, Tensor, Metadata], bytes
    ]  # a model on the CPU in eval mode, some images, what the file says of itself
    unpack: Callable[[bytes, Module], LogitsOf]  # the model stands in where the file holds weights alone
    about: str


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its logits lie from the model's."""

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
    """Write a model to a file that takes floats (n, C, H, W) in [0, 1] and gives logits; `kind` is its name in `MODELS`, where it has one."""
    chosen = pick(EXPORTS, format, "format")
    frozen = deepcopy(model).cpu().eval().requires_grad_(False)
    batches = _batches(shape, images)
    ours = [_logits(frozen, x, len(names)) for x in batches]
    with _silent(), torch.no_grad():
        try:
            content = chosen.pack(frozen, batches[1], metadata_of(kind, shape, names))
            predict = chosen.unpack(content, frozen)
            theirs = [predict(x) for x in batches]
        except AtclError:
            raise
        except Exception as error:  # converters raise many kinds, over many lines
            raise AtclError(f"the model cannot be exported as {format}: {_first_line(error)}") from error
    difference = _difference(ours, theirs, format)
    try:
        write_whole(Path(path), content)
    except OSError as error:
        raise AtclError(f"cannot write {path}: {error.strerror}") from None
    return Exported(Path(path), len(content), difference)


def metadata_of(kind: str, shape: tuple[int, int, int], names: Sequence[str]) -> dict[str, str]:
    """Return what an exported file says of itself."""
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
        import onnxruntime  # noqa: F401  it runs the file afterwards: better missed now
        import onnxscript  # noqa: F401  PyTorch translates by it
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
    # the converter notes where in whose source each operation came from, with the paths of the machine
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
    """Return a TorchScript archive without its notes on where the code came from, which hold the paths of the machine."""
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
    """Return a fresh model of the kind, classes and shape that the file names; a model of another kind lends its code alone."""
    weights = safetensors.torch.load(content)
    told = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    if told["model"] not in MODELS:
        return partial(functional_call, model, weights, strict=True)
    fresh = MODELS[told["model"]](int(told["classes"]), tuple(json.loads(told["shape"])))
    fresh.load_state_dict(weights)
    return fresh.eval()


EXPORTS: dict[str, Format] = {
    "onnx": Format(_pack_onnx, _unpack_onnx, "graph and weights, for ONNX Runtime and most others"),
    "torchscript": Format(
        _pack_torchscript, _unpack_torchscript, "graph and weights, traced, for PyTorch from Python and C++"
    ),
    "safetensors": Format(
        _pack_safetensors, _unpack_safetensors, "weights alone, with what it takes to build the model"
    ),
}


def _batches(shape: tuple[int, int, int], images: Tensor | None) -> list[Tensor]:
    """Return what the file is tried on: 1 and 5 random images, and those that are given."""
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
            f"the model gives {got} for {len(x)} images, but there are {classes} names of classes"
        )
    if not bool(logits.isfinite().all()):
        raise AtclError("the model's logits are not finite: it cannot be compared with its export")
    return logits


def _difference(ours: Sequence[Tensor], theirs: Sequence[Tensor], format: str) -> float:
    """Return the largest difference of two logits; too large a one is refused."""
    ours_, theirs_ = torch.cat(list(ours)), torch.cat(list(theirs))
    difference = float((ours_ - theirs_).abs().max())
    bound = TOLERANCE * (1 + float(ours_.abs().max()))
    # where the model prefers a class by more than twice the bound, the file must choose the same: this follows
    if not difference <= bound:  # nan is refused too
        raise AtclError(
            f"the {format} file does not compute what the model does: logits differ by {difference:g}; nothing was written"
        )
    return difference


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep in what converters tell of themselves; PyTorch calls TorchScript deprecated at each step."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
