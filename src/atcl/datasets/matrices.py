"""Transition matrices (K, K), row = true class, column = complementary label: named ones, and those in files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atcl.core.errors import AtclError, nearest
from atcl.datasets.label_files import MATRIX_FORMATS, numbers

LIBCLL_SEED = 1126  # with it, weak and strong are the matrices that libcll draws by default for ten classes


def thirds(classes: int, seed: int, shares: tuple[float, float, float]) -> Tensor:
    """Deal the wrong classes of each class at random into three groups, each with its share of the labels."""
    if classes < 4:
        raise AtclError(
            f"weak and strong deal the wrong classes into three groups: {classes} classes are too few, use 4 or more"
        )
    wrong = classes - 1
    # libcll: ten classes only, three in each group; for others the groups are as equal as can be, the shares of the groups the same
    sizes = [(wrong + 2 - group) // 3 for group in range(3)]
    dealt = [shares[place % 3] / sizes[place % 3] for place in range(wrong)]
    rng = np.random.default_rng(seed)
    matrix = torch.zeros(classes, classes, dtype=torch.float64)
    for true in range(classes):
        rng.shuffle(dealt)  # in place: each row shuffles the row before it
        matrix[true] = torch.tensor([*dealt[:true], 0.0, *dealt[true:]], dtype=torch.float64)
    return matrix


def clcifar10(classes: int, seed: int) -> Tensor:
    """The labels that people gave to CIFAR-10: 3 to 6 % of them are wrong, as the diagonal says."""
    return from_file(Path(__file__).with_name("clcifar10.json"), classes)


def from_file(path: Path, classes: int) -> Tensor:
    """Read a transition matrix from a file, or say what is wrong with it."""
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
            f"row {row} of {path} sums to {float(matrix[row].sum()):.6g}: it is the distribution of the labels of class {row}, so 1"
        )
    return matrix / matrix.sum(1, keepdim=True)


MATRICES: dict[str, Callable[[int, int], Tensor]] = {
    "weak": partial(thirds, shares=(0.45, 0.30, 0.25)),
    "strong": partial(thirds, shares=(0.75, 0.24, 0.01)),
    "clcifar10": clcifar10,
}


def matrix(name: str, classes: int, seed: int) -> Tensor:
    """Return a matrix (K, K) float64 by its name, or from the file of that path."""
    if name in MATRICES:
        return MATRICES[name](classes, seed)
    path = Path(name).expanduser()
    if not path.suffix and not path.is_file():
        raise AtclError(f"unknown matrix {name!r}, and no file is called so{nearest(name, MATRICES)}")
    return from_file(path, classes)
