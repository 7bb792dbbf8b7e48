"""Negative and positive controls beside what all permutations of a small case give, and the edges at which they fail."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from fdgsec.metrics.measurement import Goal
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Labels, Membership, Ranking, Recovered
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.groups import Group
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow, PermutationTest, exchangeable, pvalue_of
from tests.support.judged import case
from tests.unit.threats.test_controls import KNOWLEDGE, numbered

NULL = NullRow(name="auc", value=0.6, p_value=0.04, n=100, permutations=999)
EMPTY = Group(slice={}, question="released", subject="x", entries=())


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.rand(*size, generator=stream(seed, "attack", "permutations"))


def null(
    answers: Sequence[Answer], truths: Sequence[Truth], cases: Sequence[Case] | None = None, *, count: int = 499
) -> NullRow | None:
    given = cases or [case() for _ in truths]
    found = Judge().null(answers, given, truths, stream(0, "attack"), permutations=count)
    return found[0] if found else None


def row(answers: Sequence[Answer], truths: Sequence[Truth], cases: Sequence[Case] | None = None) -> NullRow:
    found = null(answers, truths, cases)
    assert found is not None
    return found


def exact(scores: Tensor) -> float:
    """The share of all permutations of the columns whose diagonal sums to at least that of the matrix."""
    size = torch.arange(len(scores))
    sums = [float(scores[size, list(order)].sum()) for order in permutations(range(len(scores)))]
    return sum(value >= sums[0] - 1e-9 for value in sums) / len(sums)


@pytest.mark.parametrize("seed", range(4))
def test_a_p_value_is_the_share_of_permutations_that_do_as_well(seed: int):
    scores = drawn(5, 5, seed=seed).double() + 0.3 * torch.eye(5)
    test = PermutationTest(name="x", scores=lambda group: [scores], value=lambda mean: 10 * mean)

    found = test(EMPTY, stream(seed, "attack"), 4999)

    assert found is not None
    assert (found.value, found.n) == (pytest.approx(10 * float(scores.diagonal().mean())), 5)
    assert found.p_value == pytest.approx(exact(scores), abs=4 * math.sqrt(0.25 / 4999))


def test_blocks_are_permuted_each_by_itself_and_count_by_their_rows():
    """A block of one row cannot move; two of two rows move apart: their four sums are all reached."""
    one, two, other = torch.tensor([[9.0]]).double(), torch.eye(2).double(), 3 * torch.eye(2).double()
    test = PermutationTest(name="x", scores=lambda group: [one, two, other])

    found = test(EMPTY, stream(0, "attack"), 3999)

    assert found is not None
    assert (found.value, found.n) == (pytest.approx((9 + 2 + 6) / 5), 5)
    assert found.p_value == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.parametrize("score", [0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("size", [3, 7])
def test_scores_that_are_all_equal_are_no_evidence_to_the_last_digit(size: int, score: float):
    test = PermutationTest(name="x", scores=lambda group: [torch.full((size, size), score, dtype=torch.float64)])

    found = test(EMPTY, stream(0, "attack"), 199)

    assert found is not None
    assert (found.value, found.p_value) == (pytest.approx(score), 1.0)


@pytest.mark.parametrize(("hits", "again"), [(0, True), (4, True), (5, False), (60, False)])
def test_a_scarce_p_value_is_drawn_again_ten_times_as_often(hits: int, again: bool):
    asked: list[int] = []

    def chance(count: int, rng: torch.Generator) -> Tensor:
        asked.append(count)
        return torch.cat([torch.ones(hits), torch.zeros(count - hits)])

    p_value, permutations = pvalue_of(1.0, chance, stream(0, "attack"), 99)

    assert asked == ([99, 999] if again else [99])
    assert permutations == asked[-1]
    assert p_value == pytest.approx((hits + 1) / (permutations + 1))


def test_the_second_draw_is_another_than_the_first():
    drawn: list[Tensor] = []

    def chance(count: int, rng: torch.Generator) -> Tensor:
        drawn.append(torch.rand(count, generator=rng))
        return torch.zeros(count)

    pvalue_of(1.0, chance, stream(0, "attack"), 49)

    assert not torch.equal(drawn[0], drawn[1][:49])


def test_rows_of_one_client_are_exchanged_with_each_other_and_single_rows_with_those_of_the_same_key():
    assert exchangeable([3, 1, 1, 2, 1], ["a", "a", "b", "a", "a"]) == [[0], [1, 4], [2], [3]]
    assert exchangeable([1, 1], [None, None]) == [[0, 1]]


@pytest.mark.parametrize("ties", [False, True])
def test_a_ranking_is_tested_by_the_place_of_the_true_candidate_from_0_to_1(ties: bool):
    distances, truth = drawn(8, 20), torch.arange(8)
    distances = distances.mul(6).floor() if ties else distances
    nearer = (distances < distances[torch.arange(8), truth][:, None]).sum(1).double()
    equal = (distances == distances[torch.arange(8), truth][:, None]).sum(1).double()

    found = row([Ranking(case=0, distances=distances)], [Truth(rows=truth)])

    assert (found.name, found.n) == ("rank_percentile", 8)
    assert found.value == pytest.approx(float((1 - (nearer + (equal - 1) / 2) / 19).mean()))


def test_a_gallery_of_one_shows_nothing():
    found = row([Ranking(case=0, distances=torch.ones(3, 1))], [Truth(rows=torch.zeros(3).long())])

    assert (found.value, found.p_value) == (0.5, 1.0)


@pytest.mark.parametrize("same", [False, True])
def test_single_rows_are_exchanged_only_where_they_stand_before_the_same_gallery(same: bool):
    cases = [case(candidates=numbered([0, 1, 2] if same else [number, 10, 20])) for number in range(6)]
    distances = torch.tensor([[0.0, 1, 1], [1, 0.0, 1], [1, 1, 0.0]])
    answers = [Ranking(case=i, distances=distances[i % 3 : i % 3 + 1]) for i in range(6)]

    found = row(answers, [Truth(rows=torch.tensor([i % 3])) for i in range(6)], cases)

    assert found.value == 1.0
    assert (found.p_value < 0.05) is same  # with a gallery each, nothing can be exchanged
    assert (found.p_value == 1.0) is not same


def test_labels_are_tested_by_their_balanced_accuracy():
    true, predicted = torch.tensor([0, 0, 0, 0, 1, 1, 5]), torch.tensor([0, 1, 0, 5, 1, 0, 5])

    found = row([Labels(case=0, predicted=predicted, of="labels", classes=9)], [Truth(labels=true)])

    assert (found.name, found.value) == ("balanced_accuracy", pytest.approx(balanced_accuracy_score(true, predicted)))


def test_labels_of_clients_are_not_exchanged_with_each_others_but_domains_are():
    """Every client has one label, which the attack names: within a client nothing moves, across clients it does."""
    truth = [torch.full((2,), number % 2) for number in range(8)]
    ask = [Labels(case=i, predicted=part, of="labels", classes=2) for i, part in enumerate(truth)]
    domains = [replace(one, of="domains") for one in ask]

    within, across = (
        row(ask, [Truth(labels=part) for part in truth]),
        row(domains, [Truth(domains=part) for part in truth]),
    )

    assert (within.value, within.p_value) == (1.0, 1.0)
    assert across.value == 1.0
    assert across.p_value < 0.01


def test_recovered_statistics_are_tested_by_the_geometric_mean_of_their_errors():
    true = drawn(6, 4, seed=1) + 1
    guess = true + 0.1 * drawn(6, 4, seed=2)
    errors = (guess - true).double().norm(dim=1) / true.double().norm(dim=1)

    found = row([Recovered(case=0, statistic=guess, without=torch.zeros(4))], [Truth(statistic=true)])

    assert (found.name, found.n) == ("relative_error", 6)
    assert found.value == pytest.approx(math.exp(float(errors.log().mean())), rel=1e-6)
    assert found.p_value < 0.02


def test_an_exact_recovery_has_a_value_too():
    true = drawn(3, 4)

    assert row([Recovered(case=0, statistic=true, without=torch.zeros(4))], [Truth(statistic=true)]).value <= 1e-14


def pool(clients: int, images: int, *, gain: float = 0.0) -> tuple[list[Answer], list[Truth], list[Case]]:
    """Clients that were asked about the same images, half of which are members of all."""
    flags, ease = torch.arange(images) < images // 2, drawn(images, seed=9)
    answers: list[Answer] = [
        Membership(case=i, scores=ease + 0.01 * drawn(images, seed=i) + gain * flags) for i in range(clients)
    ]
    return answers, [Truth(members=flags)] * clients, [case(candidates=numbered(list(range(images))))] * clients


def test_membership_is_tested_by_the_auc_within_clients():
    flags = [torch.tensor([True, True, False, False, False]), torch.tensor([True, False, False])]
    scores = [torch.tensor([3.0, 1.0, 2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.5])]
    asked = [Membership(case=i, scores=score) for i, score in enumerate(scores)]

    found = row(asked, [Truth(members=mine) for mine in flags])

    by_hand = [roc_auc_score(mine, score) for mine, score in zip(flags, scores, strict=True)]
    assert (found.name, found.n, found.value) == ("auc", 8, pytest.approx(sum(by_hand) / 2))


@pytest.mark.parametrize("known", [False, True])
def test_membership_labels_of_one_client_have_the_p_value_of_all_ways_to_choose_members(known: bool):
    scores = torch.tensor([5.0, 3.5, 4.0, 3.0, 2.0, 1.0])
    members = torch.tensor([True, True, False, False, False, False])
    beaten = [roc_auc_score([i in pair for i in range(6)], scores) for pair in permutations(range(6), 2)]

    found = row(
        [Membership(case=0, scores=scores)], [Truth(members=members)],
        [case(candidates=numbered([3, 1, 4, 0, 5, 9]))] if known else None,
    )  # fmt: skip

    exactly = sum(value >= 7 / 8 - 1e-9 for value in beaten) / len(beaten)
    assert found.value == pytest.approx(7 / 8)
    assert found.p_value == pytest.approx(exactly, abs=4 * math.sqrt(0.25 / 499))


def test_an_easy_pool_that_all_clients_share_is_one_draw_and_not_one_a_client():
    """Ten clients whose scores are the images' ease: exchanged client by client their AUC would be far out."""
    answers, truths, cases = pool(10, 12)
    (p_value,) = {row(answers, truths, cases).p_value}
    single = row(answers[:1], truths[:1], cases[:1])

    assert p_value == pytest.approx(single.p_value, abs=0.1)
    assert row(*pool(3, 12, gain=9.0)).p_value < 0.01


@pytest.mark.parametrize("asked", [([0, 1, 2, 3], [2, 3, 4, 5]), ([0, 4], [4, 2, 5, 3, 1])])
@pytest.mark.medium
def test_a_client_whose_candidates_all_fall_on_one_side_is_left_out_of_a_permutation(asked: Sequence[list[int]]):
    """Two clients were asked about some of six images; every pair of the six might have been the members."""
    ease = torch.tensor([1.0, 4.0, 2.0, 5.0, 6.0, 3.0])

    def mean_area(members: Sequence[int]) -> float:
        flags = [[image in members for image in mine] for mine in asked]
        areas = [
            roc_auc_score(own, ease[mine]) for own, mine in zip(flags, asked, strict=True) if 0 < sum(own) < len(own)
        ]
        return sum(areas) / len(areas)

    areas = [mean_area(pair) for pair in permutations(range(6), 2)]
    mixed = [pair for pair in permutations(range(6), 2) if all(len({i in pair for i in mine}) == 2 for mine in asked)]
    for members in mixed[::8]:
        found = row(
            [Membership(case=i, scores=ease[mine]) for i, mine in enumerate(asked)],
            [Truth(members=torch.tensor([image in members for image in mine])) for mine in asked],
            [case(candidates=numbered(mine)) for mine in asked],
        )
        exactly = sum(area >= mean_area(members) - 1e-9 for area in areas) / len(areas)
        assert found.value == pytest.approx(mean_area(members))
        assert found.p_value == pytest.approx(exactly, abs=4 * math.sqrt(0.25 / 499))


def test_a_client_whose_candidates_would_all_be_members_is_no_evidence():
    """Of four images one is no member. Where that is image 0, only the first client has both kinds, and is right."""
    asked, ease = ([0, 1], [1, 2], [1, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    members = [torch.tensor([image != 1 for image in mine]) for mine in asked]

    found = row(
        [Membership(case=i, scores=ease[mine]) for i, mine in enumerate(asked)], [Truth(members=one) for one in members],
        [case(candidates=numbered(mine)) for mine in asked],
    )  # fmt: skip

    assert found.value == pytest.approx(2 / 3)
    assert found.p_value == pytest.approx(2 / 4, abs=4 * math.sqrt(0.25 / 499))  # itself, and 1 where it is image 0


@pytest.mark.parametrize("kind", ["membership", "ranking"])
def test_what_no_permutation_reaches_has_the_p_value_of_all_that_were_drawn(kind: str):
    flags = torch.arange(40) < 20
    answer, truth = (
        (Membership(case=0, scores=flags.double()), Truth(members=flags)) if kind == "membership"
        else (Ranking(case=0, distances=1 - torch.eye(40)), Truth(rows=torch.arange(40)))
    )  # fmt: skip

    found = row([answer], [truth])

    assert found.permutations == 10 * 500 - 1
    assert found.p_value == pytest.approx(1 / (found.permutations + 1), rel=1e-12)


def test_images_that_are_members_here_and_not_there_are_exchanged_within_clients():
    answers, _, cases = pool(6, 12)
    flags = [torch.arange(12).roll(shift) < 6 for shift in range(6)]
    right = [replace(one, scores=mine.double()) for one, mine in zip(answers, flags, strict=True)]  # type: ignore[type-var]

    found = row(right, [Truth(members=mine) for mine in flags], cases)

    assert found.value == 1.0
    assert found.p_value < 0.01


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (Ranking(case=0, distances=torch.tensor([[math.nan, 1.0]])), Truth(rows=torch.tensor([0]))),
        (Ranking(case=0, distances=torch.ones(1, 2)), Truth()),
        (Labels(case=0, predicted=torch.zeros(2).long(), of="labels", classes=2), Truth()),
        (Labels(case=0, predicted=torch.zeros(2).long(), of="domains", classes=2), Truth(labels=torch.zeros(2).long())),
        (Recovered(case=0, statistic=torch.ones(1, 2), without=torch.zeros(2)), Truth()),
        (Recovered(case=0, statistic=torch.full((1, 2), math.inf), without=torch.zeros(2)), Truth(statistic=torch.ones(1, 2))),
        (Membership(case=0, scores=torch.ones(2)), Truth()),
        (Membership(case=0, scores=torch.tensor([1.0, math.nan])), Truth(members=torch.tensor([True, False]))),
        (Membership(case=0, scores=torch.ones(2)), Truth(members=torch.tensor([True, True]))),
        (Membership(case=0, scores=torch.ones(2)), Truth(members=torch.tensor([False, False]))),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)  # fmt: skip
def test_without_a_truth_or_a_number_there_is_no_test(answer: Answer, truth: Truth):
    assert null([answer], [truth]) is None


def test_one_client_without_a_number_or_truth_leaves_the_whole_group_without_a_test():
    flags = torch.tensor([True, False, False])
    scores = [torch.ones(3), torch.tensor([1.0, math.nan, 2.0])]
    asked = [Membership(case=i, scores=one) for i, one in enumerate(scores)]
    ranked = [Ranking(case=i, distances=one.expand(1, 3)) for i, one in enumerate(scores)]

    assert null(asked, [Truth(members=flags)] * 2) is None
    assert null([asked[0], replace(asked[0], case=1)], [Truth(members=flags), Truth()]) is None
    assert null([asked[0], replace(asked[0], case=1)], [Truth(members=flags), Truth(members=flags | True)]) is None
    assert null(ranked, [Truth(rows=torch.tensor([0]))] * 2) is None


@pytest.mark.parametrize(
    ("p_value", "comparisons", "passed"),
    [(0.0501, 1, True), (0.05, 1, True), (0.0499, 1, False), (0.0025, 20, True), (0.0024, 20, False), (0.001, 500, False),
     (0.00101, 500, True)],
)  # fmt: skip
def test_a_negative_control_fails_below_its_share_of_the_level_or_at_the_floor(
    p_value: float, comparisons: int, passed: bool
):
    (control,) = negative_controls([replace(NULL, p_value=p_value)], comparisons=comparisons)

    assert control.passed is passed
    assert ("should be" in control.expected) is not passed
    assert (control.measurement.name, control.measurement.value, control.measurement.n) == ("auc", 0.6, 100)


def test_as_many_comparisons_as_rows_are_enough():
    assert len(negative_controls([NULL, NULL], comparisons=2, alpha=0.01)) == 2
    assert negative_controls([NULL], comparisons=1, alpha=0.04)[0].passed


def planted(*, at_least: float, measurement: str = "top1", also: Sequence[Goal] = ()) -> list[tuple[bool, str]]:
    """Half of four rows are found."""
    distances = torch.tensor([[0.0, 1, 1, 1], [1, 0.0, 1, 1], [0.0, 1, 1, 1], [0.0, 1, 1, 1]])
    control = PositiveControl(
        cases=[case()], truths=[Truth(rows=torch.arange(4))], knowledge=KNOWLEDGE, measurement=measurement,
        at_least=at_least, also=also,
    )  # fmt: skip
    found = positive_control(
        control, [Ranking(case=0, distances=distances)], Judge(bootstrap_repeats=20), stream(0, "attack")
    )
    return [(one.passed, one.expected) for one in found]


@pytest.mark.parametrize(
    ("at_least", "passed"), [(0.49, True), (0.5, True), (0.51, False), (0.25, False), (0.26, True)]
)
def test_a_positive_control_needs_a_goal_above_chance_and_reaches_it(at_least: float, passed: bool):
    ((found, expected),) = planted(at_least=at_least)

    assert found is passed
    assert expected.startswith(f">= {at_least:g}")
    assert ("above chance (0.25)" in expected) is (at_least <= 0.25)


def test_every_further_goal_must_be_reached_and_one_that_was_not_measured_fails():
    goals = [
        Goal(measurement="top1", at_least=0.9), Goal(measurement="top1", at_least=0.4, where={"domain": "photo"}),
        Goal(measurement="top1", at_least=0.4, where={"domain": "ink"}), Goal(measurement="top5", at_least=0.1),
    ]  # fmt: skip

    assert [passed for passed, _ in planted(at_least=0.4, also=goals)] == [True, False, True, False, False]
    (missing,) = positive_control(
        PositiveControl(cases=[case()], truths=[Truth()], knowledge=KNOWLEDGE, measurement="auc", at_least=0.9), [],
        Judge(), stream(0, "attack"),
    )  # fmt: skip
    assert (missing.measurement.name, missing.measurement.n, missing.passed) == ("auc", 0, False)
