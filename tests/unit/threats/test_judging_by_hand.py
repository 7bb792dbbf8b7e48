"""What the judge measures, beside the same number counted by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.metrics.roc import expected_agreement, majority_share
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Labels, Membership, Prediction, Ranking, Recovered
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.estimates import relative_error
from fdgsec.threats.judging.groups import Entry, Group, Scale, constant, finite, grouped, median_row, unavailable
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.labels import present_classes
from fdgsec.threats.judging.membership import LOW_RATES, cluster_size_rows
from fdgsec.threats.judging.rules import JudgingContext, Rule
from tests.support.judged import case, judged


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.rand(*size, generator=stream(seed, "attack", "by hand"))


def partners(distances: Tensor, truth: Sequence[int]) -> tuple[list[Answer], list[Case], list[Truth]]:
    answers: list[Answer] = [Ranking(case=i, distances=distances[i : i + 1], of="partner") for i in range(len(truth))]
    return answers, [case() for _ in truth], [Truth(partner=partner) for partner in truth]


@pytest.mark.parametrize("gallery", [5, 6, 30])
def test_a_ranking_is_the_share_of_rows_whose_true_candidate_is_near(gallery: int):
    distances, truth = drawn(12, gallery), torch.arange(12) % gallery
    place = (distances < distances.gather(1, truth[:, None])).sum(1) + 1

    rows = judged([Ranking(case=0, distances=distances)], [case()], [Truth(rows=truth)])

    for k in (1, 5):
        found, hits = rows[f"top{k}",], int((place <= k).sum())
        assert (found.value, found.chance, found.n) == (hits / 12, pytest.approx(k / gallery), 12)
        assert (found.low, found.high) == (clopper_pearson(hits, 12).low, clopper_pearson(hits, 12).high)
    median = rows["median_rank",]
    ordered = place.sort().values.double()
    assert (median.value, median.chance) == (float(ordered[5:7].mean()), (gallery + 1) / 2)
    assert (median.low, median.high) == (float(ordered[2]), float(ordered[9]))  # P(Bin(12, 1/2) <= 2) is 1.9%


def test_too_few_ranks_have_the_whole_range_of_places_as_their_interval():
    rows = judged([Ranking(case=0, distances=drawn(2, 7))], [case()], [Truth(rows=torch.tensor([0, 1]))])

    assert (rows["median_rank",].low, rows["median_rank",].high) == (1.0, 7.0)


@pytest.mark.parametrize(
    ("distances", "truth", "reason"),
    [
        (torch.tensor([[1.0, math.nan], [1.0, 2.0]]), Truth(rows=torch.tensor([0, 1])), "1 of 4 distances are NaN"),
        (torch.ones(2, 2), Truth(), "no true candidate for client:1 in the released run"),
    ],
)
def test_a_ranking_that_cannot_be_judged_says_why_in_every_row(distances: Tensor, truth: Truth, reason: str):
    rows = judged([Ranking(case=0, distances=distances)], [case()], [truth])

    assert set(rows) == {("top1",), ("top5",), ("median_rank",)}
    assert all(row.value is None and reason in str(row.unavailable) and row.n == 1 for row in rows.values())


@pytest.mark.parametrize(
    ("distances", "said"), [(torch.ones(3), "must be"), (torch.ones(3, 2), "3 rows for 2 released")]
)
def test_a_ranking_of_another_shape_is_the_attacks_fault(distances: Tensor, said: str):
    with pytest.raises(ValueError, match=said):
        judged([Ranking(case=0, distances=distances)], [case()], [Truth(rows=torch.tensor([0, 1]))])


def test_linked_clients_are_matched_to_the_least_total_distance_even_at_infinity():
    # the nearest of row 1 is column 0, which row 0 needs more; row 2 is infinitely far from all others
    distances = torch.tensor([[0.1, 9.0, 9.0], [0.2, 0.3, 9.0], [math.inf, math.inf, 1.0]])

    rows = judged(*partners(distances, [0, 1, 2]))

    assert rows["top1",].value == pytest.approx(2 / 3)
    assert rows["top1", "hungarian"].value == 1.0
    assert [rows[key].chance for key in (("top1",), ("top1", "hungarian"))] == pytest.approx([1 / 3, 1 / 3])
    assert (rows["median_rank",].value, rows["median_rank",].chance) == (1.0, 2.0)
    assert (rows["median_rank",].low, rows["median_rank",].high) == (1.0, 3.0)
    assert rows["top1",].n == 3


def test_the_interval_of_links_covers_the_exact_one_and_is_it_for_one_client():
    many = judged(*partners(1 - torch.eye(8), range(8)))["top1",]
    alone = judged(*partners(torch.tensor([[0.0, 1.0, 2.0]]), [0]))["top1",]

    assert (many.value, many.high) == (1.0, 1.0)
    assert many.low is not None
    assert many.low <= clopper_pearson(8, 8).low + 1e-12
    assert (alone.low, alone.high) == (clopper_pearson(1, 1).low, clopper_pearson(1, 1).high)


def test_clients_of_one_slice_are_linked_to_equally_many():
    answers = [Ranking(case=i, distances=torch.ones(1, 3 + i), of="partner") for i in range(2)]

    with pytest.raises(ValueError, match=r"equally many; got \[3, 4\]"):
        judged(answers, [case(), case()], [Truth(partner=0), Truth(partner=1)])


def test_links_without_a_partner_say_so_and_have_no_top5():
    rows = judged([Ranking(case=0, distances=torch.ones(1, 3), of="partner")], [case()], [Truth()])

    assert set(rows) == {("top1",), ("median_rank",)}


def labels(predicted: Tensor, *, case: int = 0, classes: int = 9) -> Labels:
    return Labels(case=case, predicted=predicted, of="labels", classes=classes)


def test_labels_are_balanced_over_the_classes_that_occur():
    true, predicted = torch.tensor([0, 0, 0, 4, 4, 7]), torch.tensor([0, 0, 3, 4, 0, 7])

    rows = judged([labels(predicted)], [case()], [Truth(labels=true)])

    balanced, plain = rows["balanced_accuracy",], rows["accuracy",]
    assert balanced.value == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert balanced.chance == pytest.approx(1 / 3)
    assert (plain.value, plain.chance) == (pytest.approx(4 / 6), pytest.approx(expected_agreement(true, predicted)))
    assert (plain.low, plain.high) == (
        pytest.approx(clopper_pearson(4, 6).low),
        pytest.approx(clopper_pearson(4, 6).high),
    )
    assert {balanced.n, plain.n} == {6}
    majority = rows["majority_share",]
    assert (majority.value, majority.judged, majority.verdict) == (majority_share(true), False, "descriptive")


def test_labels_of_all_cases_are_judged_together():
    true, predicted = torch.arange(20) % 3, torch.arange(20) % 4 % 3

    rows = judged(
        [labels(predicted[:9]), labels(predicted[9:], case=1)], [case(), case()],
        [Truth(labels=true[:9]), Truth(labels=true[9:])],
    )  # fmt: skip

    assert rows["balanced_accuracy",].value == pytest.approx(balanced_accuracy_score(true, predicted))


def test_labels_that_cannot_be_judged_say_why():
    single = judged([labels(torch.zeros(4).long())], [case()], [Truth(labels=torch.zeros(4).long())])
    unknown = judged([labels(torch.zeros(4).long())], [case()], [Truth()])

    assert "a single class" in str(single["balanced_accuracy",].unavailable)
    assert single["accuracy",].value == 1.0
    assert all("nobody knows the labels of client:1" in str(row.unavailable) for row in unknown.values())
    with pytest.raises(ValueError, match=r"predicted must be \(4,\)"):
        judged([labels(torch.zeros(3).long())], [case()], [Truth(labels=torch.zeros(4).long())])


def test_renumbered_labels_agree_just_where_the_labels_did():
    true, predicted = torch.tensor([9, 2, 2, 5, 9, 2]), torch.tensor([2, 2, 7, 5, 0, 9])

    own, guess, classes = present_classes(true, predicted)

    assert (classes, own.tolist()) == (3, [2, 0, 0, 1, 2, 0])
    assert (own == guess).tolist() == (true == predicted).tolist()
    assert set(guess.tolist()) <= {0, 1, 2}


def recovered(statistic: Tensor, without: Tensor, *, case: int = 0) -> Recovered:
    return Recovered(case=case, statistic=statistic, without=without)


def test_a_recovered_statistic_is_as_far_off_as_the_median_record():
    true = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 2.0]])
    guess = torch.tensor([[3.0, 4.5], [6.0, 3.0], [0.0, 2.0]])

    row = judged([recovered(guess, torch.zeros(2))], [case()], [Truth(statistic=true)])["relative_error",]

    assert relative_error(guess, true).tolist() == pytest.approx([0.1, 0.5, 0.0])
    assert (row.value, row.chance, row.chance_kind, row.n) == (pytest.approx(0.1), 1.0, "measured", 3)
    assert (row.low, row.high) == (None, None)  # three records bound no median from above


@pytest.mark.parametrize(
    ("statistic", "without", "said"),
    [
        (torch.tensor([[1.0, math.nan]]), torch.zeros(2), "1 of 2 values of the recovered statistic"),
        (torch.ones(1, 2), torch.tensor([math.inf, math.inf]), "2 of 2 values of the guess without"),
    ],
)
def test_a_recovered_statistic_that_is_not_finite_says_so(statistic: Tensor, without: Tensor, said: str):
    row = judged([recovered(statistic, without)], [case()], [Truth(statistic=torch.ones(1, 2))])["relative_error",]

    assert said in str(row.unavailable)


@pytest.mark.parametrize(("rows", "width"), [(2, 2), (1, 3)])
def test_a_recovered_statistic_of_another_shape_is_the_attacks_fault(rows: int, width: int):
    with pytest.raises(ValueError, match="statistic must be"):
        judged([recovered(torch.ones(rows, 2), torch.ones(width))], [case()], [Truth(statistic=torch.ones(1, 2))])


def test_predictions_are_averaged_and_refused_where_one_is_not_finite():
    def told(*values: float) -> float | None:
        answers = [Prediction(case=i, value=value, name="power", unit="bits") for i, value in enumerate(values)]
        (row,) = judged(answers, [case() for _ in values], [Truth() for _ in values]).values()
        assert (row.name, row.n, row.chance) == ("power", len(values), None)
        return row.value

    assert told(1.0, 2.0, 6.0) == 3.0
    assert told(1.0, math.inf) is None


def membership(*parts: tuple[Tensor, Tensor]) -> dict[tuple[str, ...], object]:
    answers: list[Answer] = [Membership(case=i, scores=scores) for i, (scores, _) in enumerate(parts)]
    truths = [Truth(members=members) for _, members in parts]
    return dict(judged(answers, [case() for _ in parts], truths))


def asked(count: int, members: int, *, seed: int = 0, gain: float = 0.5) -> tuple[Tensor, Tensor]:
    flags = torch.arange(count) < members
    return drawn(count, seed=seed) + gain * flags, flags


def test_the_auc_is_that_within_each_client_averaged():
    parts = [asked(30, 12, seed=1), asked(20, 5, seed=2)]

    row = judged(
        [Membership(case=i, scores=scores) for i, (scores, _) in enumerate(parts)], [case(), case()],
        [Truth(members=members) for _, members in parts],
    )["auc",]  # fmt: skip

    by_hand = [roc_auc_score(members, scores) for scores, members in parts]
    assert (row.value, row.chance, row.n) == (pytest.approx(sum(by_hand) / 2), 0.5, 50)
    assert row.low is not None
    assert row.high is not None
    assert row.low < sum(by_hand) / 2 < row.high


@pytest.mark.parametrize(
    ("others", "resolved"), [(999, []), (1000, ["tpr_at_1pct_fpr"]), (10_000, ["tpr_at_1pct_fpr", "tpr_at_01pct_fpr"])]
)
def test_a_low_rate_needs_ten_false_positives(others: int, resolved: list[str]):
    scores, members = asked(others + 40, 40)

    rows = judged([Membership(case=0, scores=scores)], [case()], [Truth(members=members)], Judge(bootstrap_repeats=20))

    assert LOW_RATES == {"tpr_at_1pct_fpr": 0.01, "tpr_at_01pct_fpr": 0.001}
    assert [name for name in LOW_RATES if rows[name,].value is not None] == resolved
    for name in resolved:
        row = rows[name,]
        threshold = scores[~members].sort(descending=True).values[round(LOW_RATES[name] * others)]
        assert row.value == pytest.approx(float((scores[members] > threshold).double().mean()), abs=1 / 40)
        assert (row.chance, row.n) == (LOW_RATES[name], others + 40)
        assert row.low is not None
        assert row.high is not None
        assert 0 <= row.low < row.high <= 1


@pytest.mark.parametrize("gain", [-9.0, 9.0])
def test_a_rate_of_none_or_all_still_has_an_interval(gain: float):
    scores, members = asked(1020, 20, gain=gain)

    row = judged([Membership(case=0, scores=scores)], [case()], [Truth(members=members)], Judge(bootstrap_repeats=20))[
        "tpr_at_1pct_fpr",
    ]

    # with twenty members, a rate of up to 3 in 20 would have shown itself in 95 of 100 cases
    unseen = 1 - 0.05 ** (1 / 20)
    assert row.value == (1.0 if gain > 0 else 0.0)
    assert row.low is not None
    assert row.high is not None
    assert row.high - row.low == pytest.approx(unseen, rel=0.25)


@pytest.mark.parametrize(
    ("scores", "members", "reason"),
    [
        ([1.0, math.nan, math.nan], [True, False, False], "2 of 3 scores of client:1 are NaN"),
        ([1.0, 2.0, 3.0], [True, True, True], "3 members and 0 others"),
        ([1.0, 2.0, 3.0], [False, False, False], "0 members and 3 others"),
    ],
)
def test_membership_that_cannot_be_judged_says_why(scores: list[float], members: list[bool], reason: str):
    rows = judged([Membership(case=0, scores=torch.tensor(scores))], [case()], [Truth(members=torch.tensor(members))])

    assert {key[0] for key in rows} == {"auc", *LOW_RATES}
    assert all(reason in str(row.unavailable) for row in rows.values())


@pytest.mark.parametrize("members", [1, 3])
def test_a_single_score_on_either_side_has_no_interval(members: int):
    scores, flags = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.arange(4) < members

    row = judged([Membership(case=0, scores=scores)], [case()], [Truth(members=flags)])["auc",]

    assert (row.value, row.low, row.high) == (1.0, None, None)


def test_one_member_and_one_other_have_an_auc_without_an_interval():
    row = judged(
        [Membership(case=0, scores=torch.tensor([2.0, 1.0]))], [case()], [Truth(members=torch.tensor([True, False]))]
    )["auc",]

    assert (row.value, row.low, row.high) == (1.0, None, None)
    with pytest.raises(ValueError, match="one per candidate"):
        judged([Membership(case=0, scores=torch.ones(3))], [case()], [Truth(members=torch.tensor([True, False]))])


@pytest.mark.parametrize(
    ("size", "band"),
    [(2, "2-3"), (3, "2-3"), (4, "4-8"), (8, "4-8"), (9, "9-20"), (20, "9-20"), (21, "21+"), (10**6, "21+")],
)
def test_a_cluster_is_in_the_band_of_its_size(size: int, band: str):
    flags, sizes = torch.tensor([True, False, False]), torch.tensor([size, 0, 0])
    scores = [torch.tensor([2.0, 1.0, 3.0]), torch.tensor([9.0, 1.0, 3.0])]

    (row,) = cluster_size_rows(scores, [flags] * 2, [sizes] * 2, where={}, rng=stream(0, "attack"), repeats=20)

    assert (row.slice, row.value, row.n) == ({"cluster_size": band}, 0.75, 6)


def test_clusters_of_unknown_size_or_one_give_no_rows():
    flags = torch.tensor([True, False])
    ask = [Membership(case=i, scores=drawn(2, seed=i)) for i in range(2)]

    unknown = judged(
        ask, [case(), case()], [Truth(members=flags, cluster_sizes=torch.tensor([4, 0])), Truth(members=flags)]
    )
    alone = cluster_size_rows(
        [drawn(2)] * 2, [flags] * 2, [torch.tensor([1, 0])] * 2, where={}, rng=stream(0, "attack"), repeats=20
    )  # fmt: skip

    assert {key[0] for key in unknown} == {"auc", *LOW_RATES}
    assert alone == []


@pytest.mark.parametrize(
    ("count", "low", "high"), [(5, None, None), (6, 1, 6), (9, 2, 8), (12, 3, 10), (20, 6, 15), (100, 40, 61)]
)
def test_a_median_lies_between_two_order_statistics(count: int, low: int | None, high: int | None):
    """The ranks of the 95% interval for a median in tables of the sign test (Conover 1999, table A3)."""
    values = torch.arange(1.0, count + 1)[torch.randperm(count, generator=stream(0, "attack"))]

    row = median_row("x", {}, values, Scale(chance=None, chance_kind="none"), bounds=(0.0, 1000.0))

    assert row.value == (count + 1) / 2
    assert (row.low, row.high) == ((0.0, 1000.0) if low is None else (low, high))
    assert row.method == "exact"


def test_answers_are_sorted_by_what_they_are_about():
    answers: list[Answer] = [
        Ranking(case=0, distances=torch.ones(1, 2)), Ranking(case=1, distances=torch.ones(1, 2), of="partner"),
        Ranking(case=1, distances=torch.ones(1, 2)),
    ]  # fmt: skip
    cases = [case(slice={"domain": "ink", "half": "A"}), case(slice={"domain": "ink", "half": "B"})]

    found = grouped(answers, cases, [Truth(), Truth()])

    assert [(group.slice, len(group.entries)) for group in found] == [
        ({"domain": "ink", "of": "rows"}, 2), ({"domain": "ink", "of": "partner"}, 1),
    ]  # fmt: skip
    assert [entry.case for entry in found[0].entries] == cases
    assert len({group.name for group in found}) == 2


@pytest.mark.parametrize("jointly", [False, True])
def test_groups_that_are_judged_jointly_come_last_and_together(jointly: bool):
    asked: list[int] = []

    def measure(groups: Sequence[Group], rng: torch.Generator, context: JudgingContext) -> list[Measurement]:
        asked.append(len(groups))
        return [row for group in groups for row in unavailable(["joint"], group.slice, "x")]

    @dataclass(frozen=True, kw_only=True)
    class Joint(Prediction):
        kind: ClassVar[str] = f"joint {jointly}"
        rule: ClassVar[Rule] = Rule(measure=measure, jointly=jointly)

    answers = [
        *(Joint(case=0, value=1.0, name="joint", slice={"v": v}) for v in (1, 2)), Prediction(case=0, value=1.0, name="x"),
    ]  # fmt: skip

    rows = Judge().measure(answers, [case()], [Truth()], stream(0, "attack"))

    assert asked == ([2] if jointly else [1, 1])
    assert [row.name for row in rows] == (["x", "joint", "joint"] if jointly else ["joint", "joint", "x"])


@pytest.mark.parametrize("number", [-1, 2])
def test_an_answer_about_no_case_is_refused(number: int):
    with pytest.raises(ValueError, match=f"names case {number}; there are 2"):
        grouped([Prediction(case=number, value=1.0, name="x")], [case()] * 2, [Truth()] * 2)
    with pytest.raises(ValueError, match="2 cases and 1 truths"):
        grouped([], [case()] * 2, [Truth()])


def test_a_group_of_another_type_is_refused():
    entry: Entry[Answer] = Entry(answer=Prediction(case=0, value=1.0, name="x"), case=case(), truth=Truth())
    group = Group(slice={}, question="released", subject="x", entries=(entry,))

    assert group.of(Prediction)[0] is entry
    with pytest.raises(TypeError, match="holds a Prediction; expected Ranking"):
        group.of(Ranking)


def test_numbers_that_are_not_finite_are_counted_and_constants_are_told():
    assert (
        finite({"a": torch.ones(2), "b": torch.tensor([1.0, math.nan, math.inf])})
        == "2 of 3 values of the b are not finite"
    )
    assert finite({"a": torch.ones(2)}) == ""
    assert [constant(torch.tensor(values)) for values in ([], [1.0], [2.0, 2.0], [2.0, 2.1])] == [
        True,
        True,
        True,
        False,
    ]
    assert [row.unavailable for row in unavailable(["x", "y"], {}, "a\n  b", n=3)] == ["a b", "a b"]
