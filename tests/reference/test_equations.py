"""The library against slow, literal transcriptions of the paper's formulas, one image and class at a time."""

import math

import pytest
import torch
from torch import Tensor

from atcl.losses import LOSSES, Targets, decode, scarce, uniform_transition

K = 5
N = 12


def p(logits: Tensor, i: int, j: int) -> float:
    exponentials = [math.exp(float(value)) for value in logits[i]]
    return exponentials[j] / sum(exponentials)


def random_transition() -> Tensor:
    rng = torch.Generator().manual_seed(1)
    transition = torch.rand(K, K, generator=rng, dtype=torch.float64).fill_diagonal_(0)
    return transition / transition.sum(1, keepdim=True)


@pytest.fixture
def logits() -> Tensor:
    return 2 * torch.randn(N, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


COMPLEMENTARY = [(3 * i + i // 4) % K for i in range(N)]  # class by class unevenly often
GUESS = [(label + 1 + i % (K - 1)) % K for i, label in enumerate(COMPLEMENTARY)]
SETS = [{(i + step) % K for step in range(1 + i % (K - 1))} for i in range(N)]
SET_GUESS = [next(j for j in range(K) if j not in labels) for labels in SETS]


def candidates(sets: list[set[int]]) -> Tensor:
    return torch.tensor([[j not in labels for j in range(K)] for labels in sets])


def single(**more: object) -> Targets:
    return Targets(candidates([{label} for label in COMPLEMENTARY]), **more)  # type: ignore[arg-type]


def check(name: str, logits: Tensor, targets: Targets, expected: list[float]) -> None:
    value = LOSSES[name](logits, targets)
    assert float(value) == pytest.approx(sum(expected) / len(expected), rel=1e-5)


# Table "Loss Functions of Complementary Learning"


def test_forward(logits: Tensor) -> None:
    transition = random_transition()
    rows = [
        -math.log(sum(float(transition[j, label]) * p(logits, i, j) for j in range(K) if j != label))
        for i, label in enumerate(COMPLEMENTARY)
    ]
    check("forward", logits, single(transition=transition), rows)


def test_forward_is_uniform_by_default(logits: Tensor) -> None:
    given = LOSSES["forward"](logits, single(transition=uniform_transition(K).double()))
    torch.testing.assert_close(LOSSES["forward"](logits, single()), given, rtol=1e-6, atol=0)


def test_free_is_the_papers_formula_when_the_prior_is_the_batchs_own(logits: Tensor) -> None:
    rows = [
        (K - 1) * math.log(p(logits, i, label)) - sum(math.log(p(logits, i, j)) for j in range(K))
        for i, label in enumerate(COMPLEMENTARY)
    ]
    check("free", logits, single(), rows)
    share = torch.tensor([COMPLEMENTARY.count(k) / N for k in range(K)], dtype=torch.float64)
    check("free", logits, single(prior=share), rows)


def class_risks(logits: Tensor, prior: list[float]) -> list[float]:
    """L_k = -(K-1) pi_k mean_k l(k) + sum_j pi_j mean_j l(k)."""

    def mean(j: int, k: int) -> float:
        losses = [-math.log(p(logits, i, k)) for i in range(N) if COMPLEMENTARY[i] == j]
        return sum(losses) / len(losses) if losses else 0.0

    return [-(K - 1) * prior[k] * mean(k, k) + sum(prior[j] * mean(j, k) for j in range(K)) for k in range(K)]


def test_free_and_nn_with_the_datasets_prior(logits: Tensor) -> None:
    prior = [0.1, 0.3, 0.2, 0.25, 0.15]
    risks = class_risks(logits, prior)
    given = single(prior=torch.tensor(prior, dtype=torch.float64))
    assert float(LOSSES["free"](logits, given)) == pytest.approx(sum(risks), rel=1e-5)
    assert any(risk < 0 for risk in risks)  # else NN would be FREE, and the next line would prove nothing
    positive = sum(max(0.0, risk) for risk in risks)
    assert float(LOSSES["nn"](logits, given)) == pytest.approx(positive, rel=1e-5)


def test_scl_nl(logits: Tensor) -> None:
    rows = [-math.log(1 - p(logits, i, label)) for i, label in enumerate(COMPLEMENTARY)]
    check("scl_nl", logits, single(), rows)


def test_scl_exp(logits: Tensor) -> None:
    rows = [math.exp(p(logits, i, label)) for i, label in enumerate(COMPLEMENTARY)]
    check("scl_exp", logits, single(), rows)


def test_exp_with_several_labels(logits: Tensor) -> None:
    rows = [
        (K - 1) / len(labels) * math.exp(-sum(p(logits, i, j) for j in range(K) if j not in labels))
        for i, labels in enumerate(SETS)
    ]
    check("exp", logits, Targets(candidates(SETS)), rows)


def test_log_with_several_labels(logits: Tensor) -> None:
    rows = [
        -(K - 1) / len(labels) * math.log(sum(p(logits, i, j) for j in range(K) if j not in labels))
        for i, labels in enumerate(SETS)
    ]
    check("log", logits, Targets(candidates(SETS)), rows)


# Losses of the field


def ordinary(name: str, row: list[float], true: int) -> float:
    """The ordinary loss of one prediction for one true class."""
    own = row[true]
    label = [float(j == true) for j in range(K)]
    return {
        "mae": sum(abs(row[j] - label[j]) for j in range(K)),
        "mse": sum((row[j] - label[j]) ** 2 for j in range(K)),
        "ce": -math.log(own),
        "gce": (1 - math.pow(own, 0.7)) / 0.7,
        "phuber_ce": -math.log(own) if own > 0.1 else math.log(10) + 1 - 10 * own,
    }[name]


@pytest.mark.parametrize("name", ["mae", "mse", "ce", "gce", "phuber_ce"])
def test_estimates_from_several_labels(logits: Tensor, name: str) -> None:
    rows = []
    for i, labels in enumerate(SETS):
        row, s = [p(logits, i, j) for j in range(K)], len(labels)
        inside = sum(ordinary(name, row, j) for j in range(K) if j not in labels)
        outside = sum(ordinary(name, row, j) for j in labels)
        rows.append(inside - (K - 1 - s) / s * outside)
    check(name, logits, Targets(candidates(SETS)), rows)


def test_phuber_ce_meets_both_of_its_pieces(logits: Tensor) -> None:
    shares = [p(logits, i, j) for i in range(N) for j in range(K)]
    assert min(shares) < 0.1 < max(shares)


def test_ce_of_one_label_is_free(logits: Tensor) -> None:
    torch.testing.assert_close(LOSSES["ce"](logits, single()), LOSSES["free"](logits, single()))


def test_pc(logits: Tensor) -> None:
    rows = []
    for i, label in enumerate(COMPLEMENTARY):
        lost = sum(1 / (1 + math.exp(float(logits[i, k] - logits[i, label]))) for k in range(K) if k != label)
        rows.append((K - 1) * lost - K * (K - 1) / 2 + (K - 1))
    check("pc", logits, single(), rows)


def test_ga_is_free_in_value_and_undoes_the_negative_class_risks_in_gradient(logits: Tensor) -> None:
    """By finite differences: FREE's gradient, or that of minus the negative risks where there are any."""
    prior = [0.18, 0.22, 0.2, 0.21, 0.19]
    given = single(prior=torch.tensor(prior, dtype=torch.float64))

    def descended(at: Tensor, undoes: bool) -> float:
        risks = class_risks(at, prior)
        return -sum(min(0.0, risk) for risk in risks) if undoes else sum(risks)

    for scale, undoes in ((1.0, True), (0.0, False)):
        at = (scale * logits).requires_grad_()
        value = LOSSES["ga"](at, given)
        (found,) = torch.autograd.grad(value, at)
        at = at.detach()
        risks = class_risks(at, prior)
        assert any(risk < 0 for risk in risks) == undoes
        assert float(value.detach()) == pytest.approx(sum(risks), rel=1e-5)
        for i in range(N):
            for j in range(K):
                higher, lower = at.clone(), at.clone()
                higher[i, j] += 1e-5
                lower[i, j] -= 1e-5
                slope = (descended(higher, undoes) - descended(lower, undoes)) / 2e-5
                assert float(found[i, j]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


def discriminative(logits: Tensor, i: int, label: int) -> float:
    """-log of softmax(1 - p) at the complementary label."""
    return -math.log(math.exp(1 - p(logits, i, label)) / sum(math.exp(1 - p(logits, i, j)) for j in range(K)))


def test_l_uw_and_l_w(logits: Tensor) -> None:
    rows = [discriminative(logits, i, label) for i, label in enumerate(COMPLEMENTARY)]
    check("l_uw", logits, single(), rows)
    weights = [
        (1 - p(logits, i, label)) / sum(1 - p(logits, i, j) for j in range(K))
        for i, label in enumerate(COMPLEMENTARY)
    ]
    check("l_w", logits, single(), [row + weight * row for row, weight in zip(rows, weights, strict=True)])


def test_cpe(logits: Tensor) -> None:
    rows = []
    for i, label in enumerate(COMPLEMENTARY):
        exponentials = [math.exp(-float(value)) for value in logits[i]]
        rows.append(-math.log(exponentials[label] / sum(exponentials)))
    check("cpe", logits, single(), rows)


def test_decoding_takes_the_nearest_row_of_the_transition_matrix(logits: Tensor) -> None:
    transition = random_transition()
    estimates = (-logits).softmax(1)
    expected = [
        min(range(K), key=lambda y: sum(abs(float(estimates[i, j] - transition[y, j])) for j in range(K)))
        for i in range(N)
    ]
    assert decode(estimates, transition).tolist() == expected
    assert expected != logits.argmax(1).tolist()  # labels that are not uniform need the decoding


@pytest.mark.parametrize("sets", [[{label} for label in COMPLEMENTARY], SETS], ids=["one label", "several"])
@pytest.mark.parametrize("prior", [None, [0.1, 0.3, 0.2, 0.25, 0.15]], ids=["uniform", "given"])
def test_scarce(logits: Tensor, sets: list[set[int]], prior: list[float] | None) -> None:
    def logistic(z: float) -> float:
        return math.log(1 + math.exp(-z))

    # a model that has learnt its labels, so that some class needs the correction
    logits = logits - 2 * ~candidates(sets)
    total, corrected = 0.0, 0
    for k in range(K):
        wrong = 1 - (prior[k] if prior else 1 / K)
        column = [float(value) for value in logits[:, k]]
        ruled_out = [column[i] for i in range(N) if k in sets[i]]
        rest = wrong * sum(logistic(-z) for z in ruled_out) / len(ruled_out)
        share = wrong / len(ruled_out)
        own = sum(logistic(z) for z in column) / N - share * sum(logistic(z) for z in ruled_out)
        total += rest + abs(own)
        corrected += own < 0
    assert corrected  # else the absolute value would prove nothing
    given = None if prior is None else torch.tensor(prior, dtype=torch.float64)
    assert float(scarce(logits, Targets(candidates(sets)), given)) == pytest.approx(total, rel=1e-5)


def test_scarce_lets_a_class_that_no_image_rules_out_rest_on_all_images(logits: Tensor) -> None:
    sets = [{label % 2} for label in COMPLEMENTARY]
    absent = sum(math.log(1 + math.exp(-float(value))) for value in logits[:, 4]) / N
    moved = logits.clone()
    moved[:, 4] += 1
    after = sum(math.log(1 + math.exp(-float(value))) for value in moved[:, 4]) / N
    one, other = (LOSSES["scarce"](each, Targets(candidates(sets))) for each in (logits, moved))
    assert float(other - one) == pytest.approx(after - absent, rel=1e-5)


# Pseudo-label forms


def blend(logits: Tensor, i: int, gamma: float) -> float:
    """gamma sum_{j != complementary} p(j) + (1 - gamma) p(guess)."""
    candidates_share = sum(p(logits, i, j) for j in range(K) if j != COMPLEMENTARY[i])
    return gamma * candidates_share + (1 - gamma) * p(logits, i, GUESS[i])


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.25, 0.0])
def test_pseudo_label_forms(logits: Tensor, gamma: float) -> None:
    given = single(gamma=torch.tensor(gamma, dtype=torch.float64), guess=torch.tensor(GUESS))
    blends = [blend(logits, i, gamma) for i in range(N)]
    check("log", logits, given, [-(K - 1) * math.log(each) for each in blends])  # Eq. log_ce
    check("exp", logits, given, [(K - 1) * math.exp(-each) for each in blends])  # Eq. exp_ce
    pairs = [(p(logits, i, COMPLEMENTARY[i]), p(logits, i, GUESS[i])) for i in range(N)]
    rows = [-math.log(gamma * (1 - ruled_out) + (1 - gamma) * guess) for ruled_out, guess in pairs]
    check("scl_nl", logits, given, rows)
    rows = [math.exp(gamma * ruled_out - (1 - gamma) * guess) for ruled_out, guess in pairs]
    check("scl_exp", logits, given, rows)


@pytest.mark.parametrize("gamma", [1.0, 0.4, 0.0])
def test_log_ce_mcl(logits: Tensor, gamma: float) -> None:
    rows = []
    for i, labels in enumerate(SETS):
        candidates_share = sum(p(logits, i, j) for j in range(K) if j not in labels)
        blended = gamma * candidates_share + (1 - gamma) * p(logits, i, SET_GUESS[i])
        rows.append(-(K - 1) / len(labels) * math.log(blended))
    check("log", logits, Targets(candidates(SETS), gamma, torch.tensor(SET_GUESS)), rows)


def test_log_of_a_single_candidate_is_cross_entropy(logits: Tensor) -> None:
    truth = torch.tensor([i % K for i in range(N)])
    sole = torch.nn.functional.one_hot(truth, K).bool()
    torch.testing.assert_close(
        LOSSES["log"](logits, Targets(sole)), torch.nn.functional.cross_entropy(logits, truth)
    )


# The propositions


def test_proposition_1_free_averaged_over_the_wrong_classes_is_cross_entropy(logits: Tensor) -> None:
    for true in range(K):
        wrong = [j for j in range(K) if j != true]
        image = logits[:1].expand(K - 1, K)
        free = LOSSES["free"](image, Targets(candidates([{label} for label in wrong])))
        assert float(free) == pytest.approx(-math.log(p(logits, 0, true)), rel=1e-9)


def test_proposition_2_empirical_inner_maxima_differ() -> None:
    """On a grid of a two-dimensional ball: with all complementary labels the maxima agree.

    With one label each, the maximum lies elsewhere, and higher on average.
    """
    weights = torch.randn(2, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, epsilon, true = torch.tensor([0.3, 0.6], dtype=torch.float64), 0.25, 2
    steps = torch.linspace(-epsilon, epsilon, 41, dtype=torch.float64)
    ball = x + torch.cartesian_prod(steps, steps)
    loss = -(3 * ball @ weights).log_softmax(1)  # (points, K)
    ordinary = loss[:, true]
    free = {label: -(K - 1) * loss[:, label] + loss.sum(1) for label in range(K) if label != true}
    averaged = torch.stack(list(free.values())).mean(0)
    torch.testing.assert_close(averaged.max(), ordinary.max())  # over all labels: the same problem
    assert averaged.argmax() == ordinary.argmax()
    maxima = torch.stack([values.max() for values in free.values()])
    # one label each: a mean of maxima lies above the maximum of the mean
    assert maxima.mean() > ordinary.max() + 0.1
    assert any(values.argmax() != ordinary.argmax() for values in free.values())
