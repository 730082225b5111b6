"""Datasets with their truth: the embedded digits, and the paper's sets from `NAME.npz` files."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atcl.errors import AtclError
from atcl.truth import Split, Truth


@dataclass(frozen=True)
class Dataset:
    """A training and a test split of images, with their truth."""

    train: Split
    test: Split

    @property
    def classes(self) -> int:
        """K."""
        return self.train.truth.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width


def digits(folder: Path | None = None) -> Dataset:
    """The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships: 1,400 to train on, 397 to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = np.rint(found.images[order] * (255 / 16)).astype(np.uint8)
    y = found.target[order]
    return _dataset({"x_train": x[:1400], "y_train": y[:1400], "x_test": x[1400:], "y_test": y[1400:]}, classes=10)


def _from_npz(stem: str) -> Callable[[Path | None], Dataset]:
    """Return a reader of `stem.npz`, searched for in the given folder, in $ATCL_DATA and in ./data."""

    def read(folder: Path | None = None) -> Dataset:
        places = [Path(place) for place in (folder, os.environ.get("ATCL_DATA"), "data") if place]
        for place in places:
            if (file := place / f"{stem}.npz").is_file():
                try:
                    return _dataset(_arrays(file), classes=10)
                except AtclError as error:
                    raise AtclError(f"{file}: {error}") from None
        looked = ", ".join(str(place / f"{stem}.npz") for place in places)
        raise AtclError(f"dataset file not found (looked for {looked}): give its folder with --data-dir or in $ATCL_DATA")

    return read


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": digits,
    "mnist": _from_npz("mnist"),
    "kuzushiji": _from_npz("kmnist"),
    "cifar10": _from_npz("cifar10"),
    "svhn": _from_npz("svhn"),
}


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    except Exception as error:  # NumPy raises half a dozen kinds for a damaged archive
        raise AtclError(f"no x_train, y_train, x_test, y_test can be read from it ({error})") from error


def _dataset(arrays: dict[str, np.ndarray], classes: int) -> Dataset:
    for name, array in arrays.items():
        if name.startswith("y") and not (array.ndim == 1 and np.issubdtype(array.dtype, np.integer)):
            raise AtclError(f"{name} holds one whole number for each image; got {array.dtype} of shape {array.shape}")
        if name.startswith("x") and not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))):
            raise AtclError(f"{name} has the shape (n, H, W) or (n, H, W, channels); got {array.shape}")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise AtclError(f"training and test images differ in shape: {arrays['x_train'].shape[1:]} and {arrays['x_test'].shape[1:]}")
    train, test = (
        Split(_images(arrays[f"x_{part}"]), Truth(torch.from_numpy(arrays[f"y_{part}"].astype(np.int64)), classes)) for part in ("train", "test")
    )
    return Dataset(train, test)


def _images(x: np.ndarray) -> Tensor:
    """Return (n, C, H, W) from (n, H, W) or (n, H, W, C)."""
    try:
        images = torch.from_numpy(x)
    except TypeError:
        raise AtclError(f"images must be numbers, not {x.dtype}") from None
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
