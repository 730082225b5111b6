import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the network for a dataset."""
    monkeypatch.setenv("ATCL_OFFLINE", "1")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
