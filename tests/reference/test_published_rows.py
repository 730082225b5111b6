"""The epsilon rows that the paper prints in its two tables of pseudo-label accuracy, to every digit."""

import pytest

from atcl.recipes.catalogue import RECIPES, recipe

SLOW = [0.0003, 0.0012, 0.0027, 0.0047, 0.0073, 0.0105, 0.0143, 0.0186, 0.0234, 0.0286]
SLOW_SHARE = [0.10, 0.39, 0.89, 1.57, 2.45, 3.51, 4.76, 6.18, 7.78, 9.55]
RAPID = [0.0073, 0.0286, 0.0618, 0.1036, 0.1500, 0.1964, 0.2382, 0.2714, 0.2927, 0.3000]
RAPID_SHARE = [2.45, 9.55, 20.61, 34.55, 50.00, 65.45, 79.39, 90.45, 97.55, 100.00]


@pytest.mark.parametrize(
    ("name", "row", "share"), [("slow", SLOW, SLOW_SHARE), ("rapid", RAPID, RAPID_SHARE)]
)
def test_epsilon_rows(name: str, row: list[float], share: list[float]) -> None:
    (stage,) = recipe(f"kuzushiji/pseudo-labels-{name}").stages
    epsilon = [stage.phase(epoch).budget.epsilon for epoch in range(1, 11)]
    assert [f"{value:.4f}" for value in epsilon] == [f"{value:.4f}" for value in row]
    assert [f"{100 * value / 0.3:.2f}" for value in epsilon] == [f"{value:.2f}" for value in share]


def test_dynamics_of_the_main_method() -> None:
    (stage,) = recipe("kuzushiji/warmup-pla").stages
    phases = {epoch: stage.phase(epoch) for epoch in range(1, 101)}
    assert [phases[epoch].budget.steps for epoch in (1, 10, 11, 100)] == [0, 0, 40, 40]
    assert phases[10].gamma == 1
    assert phases[35].gamma == pytest.approx(0.5)
    assert phases[35].budget.epsilon == pytest.approx(0.15)
    assert phases[35].budget.step_size == pytest.approx(0.005)
    assert phases[60].budget.epsilon == pytest.approx(0.3)
    assert phases[60].gamma == phases[100].gamma == 0
    assert [epoch for epoch, phase in phases.items() if phase.remember] == list(range(6, 36))


@pytest.mark.parametrize("dataset", ["cifar10", "svhn"])
def test_learning_rate_of_the_colour_sets(dataset: str) -> None:
    (stage,) = recipe(f"{dataset}/warmup-pla").stages
    assert [stage.lr(epoch) for epoch in (1, 5, 69, 70, 99, 100, 120)] == pytest.approx(
        [0.002, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4]
    )
    assert [epoch for epoch in range(1, 121) if stage.phase(epoch).remember] == list(range(6, 61))
    first, second = recipe(f"{dataset}/two-stage").stages
    assert [first.lr(epoch) for epoch in (1, 5, 50)] == pytest.approx([0.002, 0.01, 0.01])
    assert [second.lr(epoch) for epoch in (1, 29, 30, 60, 70)] == pytest.approx(
        [0.01, 0.01, 1e-3, 1e-4, 1e-4]
    )


@pytest.mark.parametrize("dataset", ["mnist", "kuzushiji"])
def test_each_loss_keeps_its_learning_rate_whatever_is_added_to_it(dataset: str) -> None:
    rates = {"forward": 0.1, "free": 0.001, "nn": 0.01, "scl-nl": 0.1, "scl-exp": 0.05}
    rates |= {"exp": 0.01, "log": 0.01}
    for loss, lr in rates.items():
        (stage,) = recipe(f"{dataset}/direct-{loss}").stages
        assert stage.lr(1) == lr
        assert stage.objective.loss == loss.replace("-", "_")
        behind = "" if loss == "log" else f"-{loss}"
        with_pseudo_labels = loss in ("scl-nl", "scl-exp", "exp", "log")
        for method in ("warmup", "pla", "warmup-pla") if with_pseudo_labels else ("warmup",):
            (stage,) = recipe(f"{dataset}/{method}{behind}").stages
            assert {stage.lr(epoch) for epoch in range(1, 101)} == {lr}
            assert stage.objective.loss == loss.replace("-", "_")


@pytest.mark.parametrize("dataset", ["cifar10", "svhn"])
def test_all_losses_share_one_learning_rate_on_the_colour_sets(dataset: str) -> None:
    rows = [
        name
        for name in RECIPES
        if name.startswith((f"{dataset}/direct-", f"{dataset}/warmup", f"{dataset}/pla"))
        and not name.endswith("-adam")
    ]
    assert len(rows) > 15
    assert {recipe(name).stages[0].lr(10) for name in rows} == {0.01}
