from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.datasets.sources import DATASETS, digits
from atcl.datasets.truth import Split, Truth
from atcl.evaluation.attacks import ATTACKS
from atcl.evaluation.evaluate import measure
from tests.tiny import TinyNet, split

THREAT = Threat(0.1, 0.02)


def test_a_perfect_and_a_hopeless_model() -> None:
    x = torch.eye(4).view(4, 1, 2, 2)
    right, wrong = Split(x, Truth(torch.arange(4), 4)), Split(x, Truth((torch.arange(4) + 1) % 4, 4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    model[1].weight.data = torch.eye(4)
    assert measure(model, right, THREAT, list(ATTACKS))["pgd20"].accuracy == 100
    assert measure(model, wrong, THREAT, ["natural"])["natural"].accuracy == 0
    # images at 0 and 1 may move towards each other: the margin of 1 falls to 1 - 2 epsilon
    assert measure(model, right, Threat(0.49, 0.1), ["cw30"])["cw30"].accuracy == 100
    assert measure(model, right, Threat(0.51, 0.1), ["cw30"])["cw30"].accuracy == 0


def test_a_seed_fixes_the_number_and_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    model = TinyNet()
    state = torch.get_rng_state()
    one, two = (
        measure(model, split(), THREAT, ["pgd20"], seed=4, batch_size=7)["pgd20"].correct for _ in range(2)
    )
    assert one == two
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(AtclError, match="did you mean 'pgd20'"):
        measure(TinyNet(), split(), THREAT, ["pgd2"])
    with pytest.raises(AtclError, match="empty"):
        measure(TinyNet(), Split(split().x[:0], Truth(split().truth.labels[:0], 5)), THREAT, ["natural"])
    for epsilon, step_size in ((-0.1, 0.1), (float("inf"), 0.1), (0.1, 0.0), (float("nan"), 0.1)):
        with pytest.raises(AtclError, match="epsilon"):
            Threat(epsilon, step_size)
    for seed, batch_size in ((0, 0), (-1, 10), (10**30, 10)):
        with pytest.raises(AtclError, match="at least 1"):
            measure(TinyNet(), split(), THREAT, ["natural"], seed=seed, batch_size=batch_size)
    with pytest.raises(AtclError, match="at least one attack"):
        measure(TinyNet(), split(), THREAT, [])
    for x in (split().x.float(), split().x.long(), split().x[0]):
        with pytest.raises(AtclError, match="images"):
            Split(x, split().truth)
    with pytest.raises(AtclError, match="0 to 3"):
        Truth(torch.tensor([4]), 4)
    with pytest.raises(AtclError, match="int64"):
        Truth(torch.tensor([1.0]), 4)
    with pytest.raises(AtclError, match="images but"):
        Split(split().x, Truth(torch.tensor([1]), 4))


def test_a_model_that_returns_nan_has_no_accuracy() -> None:
    layer = nn.Linear(36, 5)
    nn.init.constant_(layer.weight, torch.nan)
    with pytest.raises(AtclError, match="not finite"):
        measure(nn.Sequential(nn.Flatten(), layer), split(), THREAT, ["natural"])


def test_a_model_without_parameters_is_measured_too() -> None:
    x = torch.eye(4).view(4, 1, 2, 2)
    test = Split(x, Truth(torch.arange(4), 4))
    assert measure(nn.Flatten(), test, THREAT, ["pgd20"])["pgd20"].accuracy == 100


GOOD: dict[str, Any] = {
    "x_train": np.zeros((4, 2, 2), np.uint8),
    "y_train": np.arange(4),
    "x_test": np.zeros((2, 2, 2), np.uint8),
    "y_test": np.arange(2),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((4, 4), np.uint8)}, "x_train has the shape"),
        ({"x_train": np.zeros((4, 3, 8, 8), np.uint8)}, "x_train has the shape"),
        ({"x_test": np.zeros((2, 3, 3), np.uint8)}, "differ in shape"),
        ({"x_test": np.full((2, 2, 2), 200.0)}, r"floats in \[0, 1\]"),
        ({"x_train": np.full((4, 2, 2), "a")}, "must be numbers"),
        ({"y_train": np.arange(4) + 0.5}, "one whole number"),
        ({"y_train": np.array(list("abcd"))}, "one whole number"),
        ({"y_test": np.arange(3)}, "2 images but 3 true labels"),
        ({"y_test": np.array([0, 10])}, "0 to 9"),
        ({"y_test": None}, "y_test can be read"),
    ],
)
def test_a_damaged_dataset_file_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arrays: dict[str, Any] = {name: array for name, array in (GOOD | change).items() if array is not None}
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(AtclError, match=message) as refused:
        DATASETS["mnist"](tmp_path)
    assert "mnist.npz: " in str(refused.value)


def test_a_good_dataset_file_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **GOOD)
    assert DATASETS["mnist"](tmp_path).shape == (1, 2, 2)
    colour = {name: np.zeros((len(GOOD[name]), 5, 6, 3), np.uint8) for name in ("x_train", "x_test")}
    np.savez(tmp_path / "cifar10.npz", **(GOOD | colour))
    assert DATASETS["cifar10"](tmp_path).shape == (3, 5, 6)
    (tmp_path / "svhn.npz").write_bytes(b"no archive")
    with pytest.raises(AtclError, match=r"svhn.npz: no x_train"):
        DATASETS["svhn"](tmp_path)


def test_the_embedded_digits() -> None:
    data = digits()
    assert (len(data.train), len(data.test), data.classes, data.shape) == (1400, 397, 10, (1, 8, 8))
    assert data.train.x.dtype == torch.uint8
    assert int(data.train.x.max()) == 255
    assert (torch.bincount(data.test.truth.labels, minlength=10) > 25).all()
    together = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert len(together.unique(dim=0)) == 1797  # no image in both halves
