"""Readers of the datasets' official files: each returns plain arrays, executes nothing, and refuses what is not whole in one line."""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atcl.core.errors import AtclError
from atcl.datasets import pickles

NumpyArray = np.ndarray[Any, Any]


def unzipped(path: Path) -> bytes:
    """Return the content of a file, gzipped or not."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise AtclError(f"{path} is not a whole gzip file: {error}") from None


def idx(path: Path) -> NumpyArray:
    """Read an IDX file of bytes (MNIST and its kin), gzipped or not."""
    content = unzipped(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise AtclError(f"{path} is not an IDX file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4") if len(content) >= start else np.zeros(0)
    if len(shape) != dimensions or len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise AtclError(f"{path} does not hold the {' x '.join(str(int(side)) for side in shape)} bytes that its head promises")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape.astype(int)).copy()


def cifar(path: Path, member: str, labels: str) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, 32, 32, 3) and labels from a pickle of CIFAR, inside its archive or unpacked."""
    content = _member(path, member)
    try:
        found = pickles.load(content)
        x, y = np.asarray(found[b"data"]), np.asarray(found[labels.encode()])
    except Exception as error:  # what lies there can be anything
        raise AtclError(f"{path} ({member}) is not a batch of CIFAR: {error}") from None
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072 or y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise AtclError(f"{path} ({member}) is not a batch of CIFAR: images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}")
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y


def climage(path: Path) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, H, W, 3) and true labels from a release of CLImage or ACLImage, which has its own order."""
    # CLImage: images of 32x32x3 or 64x64x3 under "images"; an early release of CLCIFAR: rows of CIFAR, 3x32x32 flat, under "data"
    x, y = _parts(path, ("images", "data"), ("ord_labels",))
    try:
        images, true = np.stack([np.asarray(image) for image in x]), np.asarray(y).reshape(-1)
    except Exception as error:  # what lies there can be anything
        raise AtclError(f"{path} is not a release of CLImage: {error}") from None
    if images.ndim == 2 and images.shape[1] == 3072:
        images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(true) != len(images) or true.dtype.kind not in "iu":
        raise AtclError(f"{path} is not a release of CLImage: images {images.dtype} {images.shape}, labels {true.dtype} {true.shape}")
    return images, true


def climage_labels(path: Path, names: Sequence[str]) -> Any:
    """Read the complementary labels of a release of CLImage or ACLImage, one list for each image; the true ones are not handed on."""
    (labels,) = _parts(path, names)
    return labels


def _parts(path: Path, *wanted: Sequence[str]) -> list[Any]:
    """Return what a release holds under the first of the names that it has, for each sequence of names."""
    try:
        with path.open("rb") as stream:
            found = pickles.load(stream.read(pickles.SIZE + 1))
        held = [[found[name] for name in names if name in found] for names in wanted]
    except Exception as error:  # what lies there can be anything
        raise AtclError(f"{path} is not a release of CLImage: {error}") from None
    lacking = [names[0] for names, values in zip(wanted, held, strict=True) if not values]
    if lacking:
        raise AtclError(f"{path} is not a release of CLImage: it has no {lacking[0]}")
    return [values[0] for values in held]


def svhn(path: Path) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, 32, 32, 3) and labels 0 to 9 from a .mat file of SVHN, where the digit 0 is labelled 10."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=["X", "y"])
        x, y = np.asarray(found["X"]), np.asarray(found["y"])
    except Exception as error:  # SciPy raises many kinds for a damaged file
        raise AtclError(f"{path} is not a .mat file of SVHN: {error}") from None
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or y.size != x.shape[3] or not np.issubdtype(y.dtype, np.number):
        raise AtclError(f"{path} is not a .mat file of SVHN: images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}")
    return x.transpose(3, 0, 1, 2), y.reshape(-1).astype(np.int64) % 10


def npz(path: Path) -> dict[str, NumpyArray]:
    """Read x_train, y_train, x_test, y_test from an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    except Exception as error:  # NumPy raises half a dozen kinds for a damaged archive
        raise AtclError(f"{path}: no x_train, y_train, x_test, y_test can be read from it ({error})") from None


def array(path: Path, choose: Callable[[Sequence[str]], str]) -> NumpyArray:
    """Read an .npy file, or the array of an .npz file that is chosen by its name."""
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found
    with found:
        return np.asarray(found[choose(found.files)])


def _member(path: Path, member: str) -> bytes:
    """Return a file from an archive, or from the folder that the archive was unpacked to; nothing is ever extracted to the disk."""
    try:
        if path.is_dir():
            with (path / member).open("rb") as stream:
                return stream.read(pickles.SIZE + 1)
        with tarfile.open(path, "r:gz") as archive:
            found = archive.extractfile(f"{path.name.removesuffix('.tar.gz').replace('cifar-10-python', 'cifar-10-batches-py')}/{member}")
            assert found is not None
            return found.read(pickles.SIZE + 1)  # a small archive may unpack to anything
    except (OSError, EOFError, KeyError, AssertionError, tarfile.TarError, zlib.error) as error:
        raise AtclError(f"{path} has no whole {member} in it: {error}") from None
