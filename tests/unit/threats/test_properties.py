"""Shares and presence judged: by hand, by an oracle, and by how often the intervals and the permutation test hold."""

from collections.abc import Sequence

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Presence, Proportions
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case, judged


def shares(clients: int, kinds: int, seed: int) -> Tensor:
    """Shares of clients of ten images each, some kinds missing."""
    drawn = torch.randint(kinds, (clients, 10), generator=stream(seed, "attack", "shares"))
    drawn = torch.minimum(drawn, torch.randint(kinds, (clients, 1), generator=stream(seed, "attack", "most")))
    return torch.nn.functional.one_hot(drawn, kinds).double().mean(1)


def estimated(estimate: Tensor, without: Tensor) -> list[Answer]:
    return [Proportions(case=i, estimate=row, without=without) for i, row in enumerate(estimate)]


def scored(scores: Tensor) -> list[Answer]:
    return [Presence(case=i, scores=row) for i, row in enumerate(scores)]


def about(true: Tensor) -> tuple[list[Case], list[Truth]]:
    return [case(question="mixtures")] * len(true), [Truth(proportions=row) for row in true]


def noise(true: Tensor, seed: int) -> Tensor:
    return torch.randn(true.shape, generator=stream(seed, "attack", "noise"), dtype=torch.float64)


def test_the_error_is_the_mean_over_clients_and_classes_beside_that_of_the_blind_guess():
    true = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    estimate = torch.tensor([[0.8, 0.2], [0.5, 0.5]])

    row = judged(estimated(estimate, torch.tensor([0.5, 0.5])), *about(true))["mae",]

    assert row.value == pytest.approx(0.1)
    assert row.chance == pytest.approx(0.25)
    assert (row.chance_kind, row.higher_is, row.method, row.n) == ("measured", "safe", "paired-bootstrap", 2)


def test_a_blind_guess_shows_no_leak_and_the_truth_does():
    true = shares(30, 5, seed=0)
    blind = true.mean(0)

    same = judged(estimated(blind.expand_as(true), blind), *about(true))["mae",]
    exact = judged(estimated(true, blind), *about(true))["mae",]

    assert same.value == same.chance
    assert not same.leaks
    assert same.verdict == "undecided: the interval reaches 0.149"
    assert (exact.value, exact.verdict) == (0, "leaks strongly")


def test_an_estimate_that_is_a_little_better_for_every_client_leaks_however_much_clients_differ():
    """The errors' own interval would be as wide as the spread of skewness, which both guesses share."""
    true = shares(40, 4, seed=1)
    blind = torch.full((4,), 0.25, dtype=torch.float64)

    row = judged(estimated(0.1 * true + 0.9 * blind, blind), *about(true))["mae",]

    assert row.value == pytest.approx(0.9 * float(row.chance or 0))
    assert row.leaks


def test_presence_is_the_mean_over_classes_that_some_hold_and_others_do_not():
    true = shares(25, 4, seed=2)
    true[:, 0] = 0.1  # held by everybody
    scores = noise(true, 0) + true

    row = judged(scored(scores), *about(true))["auc",]

    areas = [roc_auc_score((true[:, k] > 0).numpy(), scores[:, k].numpy()) for k in (1, 2, 3)]
    assert row.value == pytest.approx(sum(areas) / 3)
    assert (row.chance, row.n, row.method) == (0.5, 25, "jackknife")


def test_equal_scores_are_worth_a_half():
    true = shares(25, 4, seed=2)

    row = judged(scored(torch.zeros_like(true)), *about(true))["auc",]

    assert row.value == 0.5
    assert row.verdict == "undecided: the interval reaches 0.598"


def test_scores_that_are_always_right_leak_and_their_interval_says_how_few_clients_said_so():
    true = shares(30, 4, seed=3)

    row = judged(scored((true > 0).double()), *about(true))["auc",]

    assert (row.value, row.high) == (1, 1)
    assert row.low is not None
    assert 0.5 < row.low < 0.95
    assert row.leaks


def test_classes_that_all_hold_alike_leave_nothing_to_tell_apart():
    row = judged(scored(torch.zeros(3, 4)), *about(torch.full((3, 4), 0.25)))["auc",]

    assert str(row.unavailable).startswith("each kind is held by all 3 clients or by none")


def test_missing_truth_and_nan_are_reasons():
    nothing = [case()], [Truth()]
    half = torch.tensor([[0.5, 0.5]])

    unknown = judged([Proportions(case=0, estimate=half[0], without=half[0])], *nothing)["mae",]
    wrong = judged(estimated(half * float("nan"), half[0]), *about(half))["mae",]
    undefined = judged(scored(half * float("nan")), *about(half))["auc",]

    assert str(unknown.unavailable).startswith("nobody knows the shares of labels")
    assert "2 of 2 values of the estimated shares" in str(wrong.unavailable)
    assert "2 scores are NaN" in str(undefined.unavailable)


def test_one_client_has_an_error_but_no_interval():
    row = judged(estimated(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5, 0.5])), *about(torch.tensor([[1.0, 0.0]])))[
        "mae",
    ]

    assert (row.value, row.low, row.verdict) == (0.5, None, "descriptive")


@pytest.mark.parametrize("answer", [
    Proportions(case=0, estimate=torch.ones(3), without=torch.ones(3)),
    Proportions(case=0, estimate=torch.ones(2), without=torch.ones(3)),
    Presence(case=0, scores=torch.ones(3)),
])  # fmt: skip
def test_an_answer_of_another_shape_is_a_fault_of_the_attack(answer: Answer):
    with pytest.raises(ValueError, match="must be"):
        judged([answer], *about(torch.tensor([[1.0, 0.0]])))


def test_classes_and_domains_of_one_client_are_two_questions():
    truth = Truth(proportions=torch.tensor([1.0, 0.0]), domain_shares=torch.tensor([0.0, 0.0, 1.0]))
    answers = [
        Proportions(case=0, estimate=torch.tensor([1.0, 0.0]), without=torch.tensor([0.5, 0.5])),
        Proportions(case=0, estimate=torch.eye(3)[0], without=torch.eye(3)[0], of="domains"),
    ]

    rows = Judge().measure(answers, [case()], [truth], stream(0, "attack"))

    assert [(row.slice["of"], row.value) for row in rows] == [("labels", 0), ("domains", pytest.approx(2 / 3))]


def guesses(seed: int, *, knowing: float) -> dict[str, tuple[Sequence[Answer], list[Case], list[Truth]]]:
    true = shares(20, 5, seed)
    seen = knowing * true + noise(true, seed)
    return {
        "mae": (estimated(seen.softmax(1), true.mean(0)), *about(true)),
        "auc": (scored(seen), *about(true)),
    }


def p_value(name: str, seed: int, *, knowing: float) -> float:
    (found,) = Judge().null(*guesses(seed, knowing=knowing)[name], stream(seed, "attack", "null"), permutations=199)
    return found.p_value


@pytest.mark.parametrize("name", ["mae", "auc"])
def test_a_guess_that_knows_nothing_is_rarely_significant(name: str):
    alarms = sum(p_value(name, seed, knowing=0) < 0.05 for seed in range(100))

    assert alarms <= 12  # Binomial(100, .05) exceeds 12 with probability .0015


@pytest.mark.parametrize("name", ["mae", "auc"])
def test_a_guess_that_knows_the_truth_is_significant(name: str):
    assert p_value(name, 0, knowing=20) < 0.002


@pytest.mark.parametrize("name", ["mae", "auc"])
def test_the_control_tests_the_very_number_that_is_measured(name: str):
    guess = guesses(4, knowing=2)[name]

    (found,) = Judge().null(*guess, stream(0, "attack"), permutations=19)

    assert found.name == name
    assert found.value == pytest.approx(judged(*guess)[name,].value)


def test_unknown_shares_give_no_control_row():
    answers = [
        Proportions(case=0, estimate=torch.ones(2), without=torch.ones(2)),
        Presence(case=0, scores=torch.ones(2)),
    ]

    assert Judge().null(answers, [case()], [Truth()], stream(0, "attack")) == []


@pytest.mark.slow
def test_intervals_of_presence_cover_at_fifty_clients():
    """Holders score one standard deviation higher in every class: AUC Phi(1 / sqrt 2) = .7602."""
    held = 0
    for seed in range(300):
        true = shares(50, 5, seed)
        row = judged(scored(noise(true, seed) + (true > 0)), *about(true), Judge(bootstrap_repeats=400))["auc",]
        assert row.low is not None
        assert row.high is not None
        held += row.low <= 0.7602 <= row.high

    assert held >= 0.93 * 300 - 2 * (300 * 0.93 * 0.07) ** 0.5


@pytest.mark.slow
def test_a_blind_error_is_rarely_called_a_leak():
    """An estimate that scatters about the blind guess is no better; a leak would be called for 2.5% at most."""
    called = 0
    for seed in range(300):
        true = shares(30, 5, seed)
        blind = shares(4000, 5, 10_000).mean(0)
        guess = (blind.log() + 0.05 * noise(true, seed)).softmax(1)
        called += judged(estimated(guess, blind), *about(true))["mae",].leaks

    assert called <= 0.025 * 300 + 2 * (300 * 0.025 * 0.975) ** 0.5
