import signal

import pytest
import torch


def pytest_configure() -> None:
    """Receive Ctrl-C, which tests send, also where a shell in the background made it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # before the first test as well, in fixtures of whole modules


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test downloads a dataset."""
    monkeypatch.setenv("ATCL_OFFLINE", "1")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
