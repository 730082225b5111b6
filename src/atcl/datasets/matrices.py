"""Transition matrices (K, K), row = true class, column = complementary label: by name, or from a file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atcl.core.errors import AtclError, nearest
from atcl.datasets.label_files import MATRIX_FORMATS, numbers

LIBCLL_SEED = 1126  # with this seed, weak and strong are the default matrices of libcll for ten classes


def thirds(classes: int, seed: int, shares: tuple[float, float, float]) -> Tensor:
    """Return a matrix in which the wrong classes of each class form three random groups.

    Args:
        classes: K, at least 4.
        seed: the groups follow from it.
        shares: the probability of a label from each group.
    """
    if classes < 4:
        raise AtclError(
            "weak and strong divide the wrong classes into three groups: "
            f"{classes} classes are too few, use 4 or more"
        )
    wrong = classes - 1
    # libcll: ten classes only, with three in each group.
    # Ours: for other numbers the groups are as equal as possible, with the same shares.
    sizes = [(wrong + 2 - group) // 3 for group in range(3)]
    dealt = [shares[place % 3] / sizes[place % 3] for place in range(wrong)]
    rng = np.random.default_rng(seed)
    matrix = torch.zeros(classes, classes, dtype=torch.float64)
    for true in range(classes):
        rng.shuffle(dealt)  # in place: each row shuffles the row before it
        matrix[true] = torch.tensor([*dealt[:true], 0.0, *dealt[true:]], dtype=torch.float64)
    return matrix


def clcifar10(classes: int, seed: int) -> Tensor:
    """Return the frequencies of labels by people for CIFAR-10: 3 to 6 % are wrong, as the diagonal shows."""
    return from_file(Path(__file__).with_name("clcifar10.json"), classes)


def from_file(path: Path, classes: int) -> Tensor:
    """Read a transition matrix from a file.

    Raises:
        AtclError: the file cannot be read, or is not a (K, K) matrix whose rows sum to 1.
    """
    matrix = torch.from_numpy(numbers(path, ("T",), MATRIX_FORMATS))
    if matrix.shape != (classes, classes):
        raise AtclError(
            f"{path} holds a {tuple(matrix.shape)} matrix; for {classes} classes it is {(classes, classes)}"
        )
    bad = ~matrix.ge(0).all(1)
    if bool(bad.any()):
        raise AtclError(
            f"row {int(bad.int().argmax())} of {path} has a negative or empty cell: each is a probability"
        )
    off = (matrix.sum(1) - 1).abs() > 1e-4
    if bool(off.any()):
        row = int(off.int().argmax())
        raise AtclError(
            f"row {row} of {path} sums to {float(matrix[row].sum()):.6g}, not to 1: "
            f"it is the distribution of the labels of class {row}"
        )
    return matrix / matrix.sum(1, keepdim=True)


MATRICES: dict[str, Callable[[int, int], Tensor]] = {
    "weak": partial(thirds, shares=(0.45, 0.30, 0.25)),
    "strong": partial(thirds, shares=(0.75, 0.24, 0.01)),
    "clcifar10": clcifar10,
}


def matrix(name: str, classes: int, seed: int) -> Tensor:
    """Return a matrix, (K, K) float64, by its name in `MATRICES` or from a file.

    Raises:
        AtclError: there is no such matrix or file, or it does not fit the number of classes.
    """
    if name in MATRICES:
        return MATRICES[name](classes, seed)
    path = Path(name).expanduser()
    if not path.suffix and not path.is_file():
        raise AtclError(f"unknown matrix {name!r}, and no file is called so{nearest(name, MATRICES)}")
    return from_file(path, classes)
