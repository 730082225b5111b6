import pytest
import torch
from torch import nn

from atcl.data import DATASETS, digits
from atcl.errors import AtclError
from atcl.evaluation import ATTACKS, Threat, evaluate
from atcl.truth import Split, Truth
from tests.tiny import TinyNet, split

THREAT = Threat(0.1, 0.02)


def test_a_perfect_and_a_hopeless_model() -> None:
    x = torch.eye(4).view(4, 1, 2, 2)
    right, wrong = Split(x, Truth(torch.arange(4), 4)), Split(x, Truth((torch.arange(4) + 1) % 4, 4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    model[1].weight.data = torch.eye(4)
    assert evaluate(model, right, THREAT, list(ATTACKS))["pgd20"].accuracy == 100
    assert evaluate(model, wrong, THREAT, ["natural"])["natural"].accuracy == 0
    # images at 0 and 1 may move towards each other: the margin of 1 falls to 1 - 2 epsilon
    assert evaluate(model, right, Threat(0.49, 0.1), ["cw30"])["cw30"].accuracy == 100
    assert evaluate(model, right, Threat(0.51, 0.1), ["cw30"])["cw30"].accuracy == 0


def test_a_seed_fixes_the_number_and_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    model = TinyNet()
    state = torch.get_rng_state()
    one, two = (evaluate(model, split(), THREAT, ["pgd20"], seed=4, batch_size=7)["pgd20"].correct for _ in range(2))
    assert one == two
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


def test_bad_requests() -> None:
    with pytest.raises(AtclError, match="did you mean 'pgd20'"):
        evaluate(TinyNet(), split(), THREAT, ["pgd2"])
    with pytest.raises(AtclError, match="empty"):
        evaluate(TinyNet(), Split(split().x[:0], Truth(split().truth.labels[:0], 5)), THREAT, ["natural"])
    with pytest.raises(AtclError, match="epsilon"):
        Threat(-0.1, 0.1)
    with pytest.raises(AtclError, match="0 to 3"):
        Truth(torch.tensor([4]), 4)
    with pytest.raises(AtclError, match="int64"):
        Truth(torch.tensor([1.0]), 4)
    with pytest.raises(AtclError, match="images but"):
        Split(split().x, Truth(torch.tensor([1]), 4))


def test_the_embedded_digits() -> None:
    data = digits()
    assert (len(data.train), len(data.test), data.classes, data.shape) == (1400, 397, 10, (1, 8, 8))
    assert data.train.x.dtype == torch.uint8
    assert int(data.train.x.max()) == 255
    assert (torch.bincount(data.test.truth.labels, minlength=10) > 25).all()
    together = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert len(together.unique(dim=0)) == 1797  # no image in both halves


def test_a_dataset_that_is_not_there_names_the_places(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATCL_DATA", "/nowhere")
    with pytest.raises(AtclError, match=r"/nowhere/kmnist.npz.*--data-dir"):
        DATASETS["kuzushiji"](None)
