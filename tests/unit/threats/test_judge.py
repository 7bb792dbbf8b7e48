from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.report.schema import AttackResult
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import tpr_at_fpr
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Labels, Membership, Prediction, Ranking, Recovered
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.groups import Scale, median_row
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.labels import present_classes
from tests.support.judged import case, judged


def test_a_ranking_with_all_distances_equal_scores_exactly_chance():
    answer = Ranking(case=0, distances=torch.zeros(7, 40))

    rows = judged([answer], [case()], [Truth(rows=torch.arange(7))])

    assert rows["top1",].value == rows["top1",].chance == 1 / 40
    assert rows["top5",].value == rows["top5",].chance == 5 / 40
    assert rows["median_rank",].value == rows["median_rank",].chance == 20.5
    assert rows["top1",].verdict == "undecided: the interval reaches 0.444"  # of so few


def test_top5_and_median_rank_agree_with_counting_nearer_candidates():
    distances = torch.rand(50, 30, generator=stream(1, "attack"))
    truth = torch.randint(0, 30, (50,), generator=stream(2, "attack"))

    rows = judged([Ranking(case=0, distances=distances)], [case()], [Truth(rows=truth)])

    places = sorted(1 + sum(float(d) < float(line[t]) for d in line) for line, t in zip(distances, truth, strict=True))
    assert rows["top5",].value == pytest.approx(sum(place <= 5 for place in places) / 50)
    assert rows["median_rank",].value == (places[24] + places[25]) / 2
    assert rows["median_rank",].higher_is == "safe"


def test_chance_is_averaged_over_rows_when_galleries_differ():
    answers = [Ranking(case=0, distances=torch.zeros(3, 10)), Ranking(case=1, distances=torch.zeros(1, 20))]

    rows = judged(answers, [case(), case()], [Truth(rows=torch.arange(3)), Truth(rows=torch.tensor([4]))])

    assert rows["top1",].chance == pytest.approx((3 / 10 + 1 / 20) / 4)
    assert rows["top1",].n == 4


def test_a_gallery_too_small_for_top5_says_so():
    rows = judged([Ranking(case=0, distances=torch.zeros(2, 4))], [case()], [Truth(rows=torch.tensor([0, 1]))])

    assert rows["top5",].value is None
    assert "gallery of 4" in str(rows["top5",].unavailable)


def test_the_median_interval_holds_the_true_median_95_times_in_100_or_more():
    rng = stream(3, "attack")

    held = 0
    for _ in range(400):
        measured = median_row(
            "x",
            {},
            torch.randn(21, generator=rng).exp(),
            Scale(chance=None, chance_kind="none"),
            bounds=(0, None),
        )
        assert measured.low is not None
        assert measured.high is not None
        held += measured.low <= 1 <= measured.high

    assert held >= 372  # 93% of 400; exact coverage at n = 21 is 97.3%


def halves(distances: Tensor, partners: list[int]) -> tuple[list[Answer], list[Case], list[Truth]]:
    n = len(partners)
    cases = [case(question="halves", slice={"domain": "photo", "half": half}) for half in "AB" for _ in range(n)]
    answers: list[Answer] = [Ranking(case=i, distances=distances[i : i + 1], of="partner") for i in range(n)]
    return answers, cases, [*(Truth(partner=p) for p in partners), *(Truth() for _ in partners)]


def test_the_assignment_corrects_what_the_nearest_neighbor_gets_wrong():
    distances = torch.tensor([[1.0, 2.0, 9.0], [1.5, 9.0, 9.0], [9.0, 9.0, 1.0]])  # the first two both like column 0

    rows = judged(*halves(distances, [1, 0, 2]))

    assert rows["top1",].value == pytest.approx(2 / 3)
    assert rows["top1", "hungarian"].value == 1
    assert (rows["median_rank",].value, rows["median_rank",].chance) == (1, 2)
    assert rows["top1",].chance == rows["top1", "hungarian"].chance == pytest.approx(1 / 3)
    assert rows["top1",].slice == {"domain": "photo"}  # "half" names no population


def test_linkage_with_equal_distances_does_not_find_the_diagonal():
    rows = judged(*halves(torch.ones(30, 30), list(range(30))))

    assert rows["top1",].value == pytest.approx(1 / 30)
    assert float(rows["top1", "hungarian"].value or 0) < 0.15  # 8 matchings of 30: mean 1/30, sd .012


def domain_clients(distances: Tensor, domains: list[int], partners: list[int]) -> dict[tuple[str, ...], Measurement]:
    """Links of clients of several domains; `domains` are those of the second releases."""
    answers, cases, truths = halves(distances, partners)
    alike = [[j for j, other in enumerate(domains) if other == domains[partner]] for partner in partners]
    firsts = [replace(truth, alike=own) for truth, own in zip(truths[: len(partners)], alike, strict=True)]
    return judged(answers, cases, [*firsts, *truths[len(partners) :]])


def test_who_tells_domains_alone_links_no_client():
    domains = [number % 3 for number in range(30)]
    apart = torch.tensor([[float(own != other) for other in domains] for own in domains])

    rows = domain_clients(apart, domains, list(range(30)))

    assert rows["top1",].value == pytest.approx(0.1)
    assert rows["top1",].chance == pytest.approx(0.1)
    assert (rows["median_rank",].value, rows["median_rank",].chance) == (5.5, 5.5)
    assert not any(row.leaks for row in rows.values())


def test_clients_of_several_domains_are_linked_within_theirs():
    domains, partners = [0, 1, 0, 1, 1], [2, 3, 0, 4, 1]
    distances = torch.full((5, 5), 2.0)
    distances[range(5), partners] = 1.0
    for row, partner in enumerate(partners):
        for other, domain in enumerate(domains):
            if domain != domains[partner]:
                distances[row, other] = 0.0  # clients of other domains are nearer, and no candidates

    rows = domain_clients(distances, domains, partners)

    assert rows["top1",].value == rows["top1", "hungarian"].value == 1
    assert rows["top1",].chance == pytest.approx((2 / 2 + 3 / 3) / 5)  # one hit in each domain
    assert rows["median_rank",].chance == 2  # of five ranks, two among 1 and 2, three among 1 to 3; their mean is 1.8


def test_links_by_domain_alone_are_flagged_no_more_often_than_stated():
    domains, flagged = [number % 3 for number in range(30)], 0
    rng = stream(0, "attack", "domains")
    blocks = torch.tensor([[float(own != other) for other in domains] for own in domains])
    for _ in range(200):
        rows = domain_clients(10 * blocks + torch.rand(30, 30, generator=rng), domains, list(range(30)))
        flagged += rows["top1",].leaks or False

    assert flagged <= 11  # 2.5% of 200, and a tail of 1%


def test_a_client_alone_in_its_domain_is_not_linked():
    domains = [0, 0, 1, 2]

    rows = domain_clients(torch.rand(4, 4, generator=stream(0, "attack", "alone")), domains, list(range(4)))

    assert {row.n for row in rows.values()} == {2}
    assert rows["top1",].chance == 0.5
    assert rows["median_rank",].chance == 1.5


def test_where_every_client_is_alone_there_is_nobody_to_link():
    rows = domain_clients(torch.zeros(3, 3), [0, 1, 2], [0, 1, 2])

    assert {row.verdict for row in rows.values()} == {"unavailable"}
    assert "only one of its domain" in str(rows["top1",].unavailable)


@pytest.mark.parametrize(
    "sizes", [(2, 1, 1, 1, 1, 1), (2, 2, 1, 1, 1), (2, 2, 2, 2, 1, 1, 1, 1), (20, 3, 3, 3, 3, 3, 3, 3)]
)
@pytest.mark.medium
def test_links_in_domains_of_unequal_size_are_flagged_no_more_often_than_stated(sizes: tuple[int, ...]):
    """With the mean of (N + 1)/2 for the chance of a median, 8% to 43% were flagged."""
    domains = [domain for domain, size in enumerate(sizes) for _ in range(size)]
    clients, rng, flagged = len(domains), stream(0, "attack", "unequal domains"), 0
    for _ in range(100):
        rows = domain_clients(torch.rand(clients, clients, generator=rng), domains, list(range(clients)))
        flagged += rows["median_rank",].leaks or False

    assert flagged <= 7  # 2.5% of 100, and a tail of 1%


@pytest.mark.parametrize("sizes", [(20, 3, 3, 3, 3, 3, 3, 3), (8, 8, 7, 7), (3, 3, 3, 2, 2, 2)])
def test_links_in_domains_of_unequal_size_are_found(sizes: tuple[int, ...]):
    domains = [domain for domain, size in enumerate(sizes) for _ in range(size)]
    clients, rng = len(domains), stream(0, "attack", "linked in domains")

    rows = domain_clients(
        torch.rand(clients, clients, generator=rng) - torch.eye(clients), domains, list(range(clients))
    )

    assert rows["median_rank",].value == 1
    assert all(row.leaks for row in rows.values())


def test_ranks_that_many_equal_distances_share_are_no_links():
    """Where most candidates are equally near, most have a rank below (N + 1)/2."""
    flagged, rng = 0, stream(0, "attack", "equally near")
    for _ in range(40):
        far = torch.rand(30, 30, generator=rng) < 0.15
        flagged += judged(*halves(far.float(), list(range(30))))["median_rank",].leaks or False

    assert flagged <= 4  # 2.5% of 40, and a tail of 1%; all 40 without regard to which are equal


def test_auc_is_averaged_within_clients_not_pooled_across_them():
    members = torch.tensor([True, True, False, False])
    scores = [torch.tensor([2.0, 3, 0, 1]), torch.tensor([100.0, 103, 101, 102])]  # AUC 1 and .5; pooled .75

    rows = judged(
        [Membership(case=i, scores=s) for i, s in enumerate(scores)], [case(), case()], [Truth(members=members)] * 2
    )

    assert rows["auc",].value == 0.75
    assert rows["auc",].method == "cluster-bootstrap"


def test_low_false_positive_rates_are_unresolvable_below_ten_false_positives():
    members = torch.arange(1400) < 200
    scores = torch.randn(1400, generator=stream(4, "attack")) + members

    rows = judged([Membership(case=0, scores=scores)], [case()], [Truth(members=members)])

    assert rows["tpr_at_1pct_fpr",].value == tpr_at_fpr(scores[members], scores[~members], fpr=0.01)
    assert rows["tpr_at_1pct_fpr",].chance == 0.01
    assert str(rows["tpr_at_01pct_fpr",].unavailable).startswith("unresolvable: 1200 non-members")


@pytest.mark.medium
def test_the_interval_of_tpr_at_a_low_rate_covers_across_clients():
    members = torch.arange(60) < 30
    guesses, held = 100, 0

    for seed in range(guesses):
        rng = stream(seed, "attack")
        answers = [Membership(case=i, scores=torch.randn(60, generator=rng) + 1.5 * members) for i in range(40)]
        row = judged(answers, [case()] * 40, [Truth(members=members)] * 40)["tpr_at_1pct_fpr",]
        assert row.low is not None
        assert row.high is not None
        held += row.low <= 0.2044 <= row.high  # Phi(1.5 - 2.3263)

    assert held >= 88  # 93% less two standard deviations of 100 draws


def test_balanced_accuracy_stands_against_the_classes_present():
    true, predicted = torch.tensor([0, 0, 0, 0, 2, 2]), torch.tensor([0, 0, 0, 1, 2, 1])

    rows = judged([Labels(case=0, predicted=predicted, of="labels", classes=3)], [case()], [Truth(labels=true)])

    assert rows["balanced_accuracy",].value == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert rows["balanced_accuracy",].chance == 0.5
    assert rows["accuracy",].value == pytest.approx(4 / 6)
    assert rows["accuracy",].chance == pytest.approx((4 * 3 + 2 * 1) / 36)  # predicted 0 three times, 2 once
    assert rows["majority_share",].value == pytest.approx(4 / 6)


def test_a_prediction_of_an_absent_class_stays_wrong():
    true, predicted, classes = present_classes(torch.tensor([5, 2, 5]), torch.tensor([9, 2, 0]))

    assert classes == 2
    assert (true == predicted).tolist() == [False, True, False]


def test_relative_error_is_the_median_over_records_beside_the_blind_guess():
    true = torch.eye(8) * 2
    estimate = true + torch.diag(torch.arange(8.0))  # errors 0, .5, 1 ... 3.5
    answers = [Recovered(case=i, statistic=estimate[i : i + 1], without=torch.zeros(8)) for i in range(8)]

    row = judged(answers, [case()] * 8, [Truth(statistic=true[i : i + 1]) for i in range(8)])["relative_error",]

    assert row.value == pytest.approx(1.75)
    assert row.chance == 1
    assert row.chance_kind == "measured"
    assert row.higher_is == "safe"


def test_missing_truth_and_nan_are_reasons():
    answers = [Ranking(case=0, distances=torch.zeros(1, 9)), Membership(case=1, scores=torch.tensor([float("nan"), 1]))]

    rows = judged(answers, [case(), case()], [Truth(), Truth(members=torch.tensor([True, False]))])

    assert "no true candidate" in str(rows["top1",].unavailable)
    assert "1 of 2 scores" in str(rows["auc",].unavailable)


def test_a_prediction_is_descriptive_and_averaged_within_its_slice():
    rows = judged(
        [Prediction(case=i, name="d_eff", value=v) for i, v in enumerate((3.0, 5.0))], [case()] * 2, [Truth()] * 2
    )

    assert rows["d_eff",].value == 4
    assert rows["d_eff",].verdict == "descriptive"


def test_slices_that_differ_by_request_alone_are_told_apart():
    cases = [case(), case(question="as_if_released")]

    rows = Judge().measure(
        [Ranking(case=i, distances=torch.rand(9, 9)) for i in (0, 1)],
        cases,
        [Truth(rows=torch.arange(9))] * 2,
        stream(0, "attack"),
    )

    AttackResult(name="x", adversary={}, status="done", measurements=rows).document()  # raises where a slice repeats
    assert [row.slice["request"] for row in rows if row.name == "top1"] == ["released", "as_if_released"]


def test_two_answers_to_one_question_are_refused():
    answer = Ranking(case=0, distances=torch.zeros(1, 9))

    with pytest.raises(ValueError, match="answers a case twice"):
        Judge().measure([answer, answer], [case()], [Truth(rows=torch.tensor([0]))], stream(0, "attack"))


def test_intervals_do_not_depend_on_which_other_answers_are_judged():
    members = torch.arange(40) < 20
    answers = [Membership(case=i, scores=torch.randn(40, generator=stream(i, "attack"))) for i in range(6)]
    other = Prediction(case=0, name="d_eff", value=1.0)

    alone = judged(answers, [case()] * 6, [Truth(members=members)] * 6)
    beside = judged([other, *answers], [case()] * 6, [Truth(members=members)] * 6)

    assert alone["auc",] == beside["auc",]


def test_domains_are_permuted_across_cases_since_within_one_nothing_would_change():
    cases = [Case(question="as_if_released", views=(), victim="client:1", slice={"domain": "all"}) for _ in range(2)]
    truths = [Truth(domains=torch.full((30,), domain)) for domain in (0, 1)]
    honest = [Labels(case=n, predicted=torch.full((30,), n), of="domains", classes=2) for n in (0, 1)]
    blind = [Labels(case=n, predicted=torch.arange(30) % 2, of="domains", classes=2) for n in (0, 1)]

    found = Judge().null(honest, cases, truths, stream(0, "world", "null"))
    silent = Judge().null(blind, cases, truths, stream(0, "world", "null"))

    assert found[0].p_value < 0.001
    assert 0.05 < silent[0].p_value <= 1
