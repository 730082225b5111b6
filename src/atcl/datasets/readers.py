"""Readers of the datasets' official files.

Each returns plain arrays and executes nothing in a file. A damaged file is an `AtclError` of one line.
"""

import math
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atcl.core.errors import AtclError, one_line
from atcl.datasets import archives, mat_files, pickles
from atcl.datasets.archives import NumpyArray as NumpyArray
from atcl.datasets.pickle_walk import SIZE

IDX_AXES = 4
IMAGES = ("x_train", "y_train", "x_test", "y_test")


def unzipped(path: Path) -> bytes:
    """Return the content of a file, gzipped or not."""
    try:
        return b"".join(archives.pieces(path))
    except (EOFError, ValueError, zlib.error) as error:
        raise AtclError(f"{path} is not a whole gzip file: {one_line(error)}") from None


def idx(path: Path) -> NumpyArray:
    """Read an IDX file of bytes, the format of MNIST and similar datasets, gzipped or not."""
    content = unzipped(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08" or content[3] > IDX_AXES:
        raise AtclError(f"{path} is not an IDX file of bytes")
    start = 4 + 4 * content[3]
    shape = tuple(map(int, np.frombuffer(content[4:start], ">u4"))) if len(content) >= start else ()
    if len(shape) != content[3] or len(content) - start != math.prod(shape):
        raise AtclError(
            f"{path} does not hold the {' x '.join(map(str, shape))} bytes that its head promises"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def cifar(path: Path, member: str, labels: str) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, 32, 32, 3) and labels from a pickle of CIFAR, inside its archive or unpacked."""
    content = _member(path, member)
    try:
        found = pickles.plain_data(content)
        x, y = _of(found[b"data"], "u", 2), _whole_numbers(found[labels.encode()])
        if x.dtype != np.uint8 or x.shape[1] != 3072 or len(y) != len(x):
            raise ValueError(f"images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}")
    except Exception as error:  # a damaged file can raise anything
        raise AtclError(f"{path} ({member}) is not a batch of CIFAR: {one_line(error)}") from None
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y


def _of(value: Any, kinds: str, axes: int) -> NumpyArray:
    """Return an array unchanged, or refuse it if it has other kinds of numbers or another number of axes."""
    # Lists are refused: from a list of texts NumPy would make a table as wide as the longest of them.
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or value.ndim != axes:
        raise ValueError(f"there is {_called(value)} where an array of {axes} axes belongs")
    return value


def _whole_numbers(value: Any) -> NumpyArray:
    """Return an array or a list of whole numbers as an array of one axis."""
    if isinstance(value, np.ndarray):
        return _of(value.reshape(-1), "iu", 1)
    if not isinstance(value, list) or not all(
        type(one) is int or isinstance(one, np.integer) for one in value
    ):
        raise ValueError("its labels are not whole numbers")
    return np.array(value, np.int64)


def _called(value: Any) -> str:
    """Return a short description of a value for a message."""
    return (
        f"an array {value.dtype} {value.shape}"
        if isinstance(value, np.ndarray)
        else f"a {type(value).__name__}"
    )


def climage(path: Path) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, H, W, 3) and true labels from a release of CLImage or ACLImage, in its order."""
    # CLImage: images of 32x32x3 or 64x64x3 under "images";
    # an early release of CLCIFAR: rows of CIFAR, 3x32x32 flat, under "data"
    x, y = _parts(path, ("images", "data"), ("ord_labels",))
    try:
        true = _whole_numbers(y)
        if not isinstance(x, list | np.ndarray) or len(x) != len(true) or not len(true):
            raise ValueError(f"there is {_called(x)} where {len(true)} images belong")
        axes = np.ndim(x[0]) if isinstance(x[0], np.ndarray) else 3
        images = np.stack([_of(image, "u", axes) for image in x])
        if images.ndim == 2 and images.shape[1] == 3072:
            images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
            raise ValueError(f"images {images.dtype} {images.shape}, labels {true.dtype} {true.shape}")
    except Exception as error:  # a damaged file can raise anything
        raise AtclError(f"{path} is not a release of CLImage: {one_line(error)}") from None
    return images, true


def climage_labels(path: Path, names: Sequence[str]) -> Any:
    """Read the complementary labels of a release, a list for each image, without its true labels."""
    (labels,) = _parts(path, names)
    return labels


def _parts(path: Path, *wanted: Sequence[str]) -> list[Any]:
    """Return one value of a release for each sequence of names: that of the first name in the release."""
    try:
        with path.open("rb") as stream:
            found = pickles.plain_data(stream.read(SIZE + 1))
        held = [[found[name] for name in names if name in found] for names in wanted]
    except Exception as error:  # a damaged file can raise anything
        raise AtclError(f"{path} is not a release of CLImage: {one_line(error)}") from None
    lacking = [names[0] for names, values in zip(wanted, held, strict=True) if not values]
    if lacking:
        raise AtclError(f"{path} is not a release of CLImage: it has no {lacking[0]}")
    return [values[0] for values in held]


def svhn(path: Path) -> tuple[NumpyArray, NumpyArray]:
    """Read images (n, 32, 32, 3) and labels 0 to 9 from a .mat file of SVHN, where 0 is labelled 10."""
    try:
        found = mat_files.arrays(path, ("X", "y"))
        x, y = found["X"], found["y"].reshape(-1)
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or len(y) != x.shape[3]:
            raise ValueError(f"images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}")
        whole = (y >= 0) & (y <= 10) & (y == np.floor(y))  # SciPy and MATLAB may store them as floats
        if not bool(whole.all()):
            raise ValueError("its labels are not the whole numbers 0 to 10")
    except Exception as error:  # a damaged file can raise anything
        raise AtclError(f"{path} is not a .mat file of SVHN: {one_line(error)}") from None
    return x.transpose(3, 0, 1, 2), y.astype(np.int64) % 10


def npz(path: Path) -> dict[str, NumpyArray]:
    """Read x_train, y_train, x_test, y_test from an .npz file."""
    try:
        return archives.npz_arrays(path, lambda _: IMAGES)
    except Exception as error:  # a damaged file can raise anything
        raise AtclError(f"{path}: no {', '.join(IMAGES)} can be read from it ({one_line(error)})") from None


def array(path: Path, choose: Callable[[Sequence[str]], str]) -> NumpyArray:
    """Read an .npy file, or one array of an .npz file; a damaged file may raise any exception.

    Args:
        path: the file.
        choose: receives the names of the arrays in an .npz file, and returns the one to read.
    """
    if path.suffix.lower() == ".npz":
        (found,) = archives.npz_arrays(path, lambda names: [choose(names)]).values()
        return found
    with path.open("rb") as stream:
        return archives.npy(stream)


def _member(path: Path, member: str) -> bytes:
    """Return the content of a file in an archive, or in the folder that this was unpacked to."""
    try:
        if path.is_dir():
            with (path / member).open("rb") as stream:
                return stream.read(SIZE + 1)
        folder = path.name.removesuffix(".tar.gz").replace("cifar-10-python", "cifar-10-batches-py")
        return archives.tar_member(path, f"{folder}/{member}", SIZE)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise AtclError(f"{path} has no whole {member} in it: {one_line(error)}") from None
