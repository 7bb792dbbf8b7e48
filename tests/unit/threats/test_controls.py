from dataclasses import replace

import pytest
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels, Membership, Ranking, Reconstructions, Recovered
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow

CASE = Case(question="released", views=(), victim="client:1", slice={"domain": "photo"})
NULL = NullRow(name="auc", value=0.6, p_value=0.04, n=100, permutations=999)


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


KNOWLEDGE = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def p_value(answers: list[Answer], cases: list[Case], truths: list[Truth], seed: int = 0) -> float:
    (found,) = Judge().null(answers, cases, truths, stream(seed, "attack"), permutations=199)
    return found.p_value


def numbered(ids: list[int]) -> DomainDataset:
    size = len(ids)
    zero = torch.zeros(size, dtype=torch.int64)
    return DomainDataset(
        name="blank", store=torch.zeros(1, 3, 1, 1, dtype=torch.uint8), rows=zero, labels=zero, domains=zero,
        ids=[str(i) for i in ids], class_names=["any"], domain_names=["photo"],
    )  # fmt: skip


def random_answers(seed: int) -> dict[str, tuple[list[Answer], list[Case], list[Truth]]]:
    """What an attack that knows nothing might answer, of every kind."""
    rng = stream(seed, "attack")
    images = torch.randint(0, 256, (9, 3, 6, 6), generator=rng, dtype=torch.uint8)
    statistic = torch.randn(9, 5, generator=rng)
    return {
        "rows": ([Ranking(case=0, distances=torch.rand(15, 40, generator=rng))], [CASE], [Truth(rows=torch.arange(15))]),
        "partner": (
            [Ranking(case=i, distances=torch.rand(1, 12, generator=rng), of="partner") for i in range(12)],
            [CASE] * 12, [Truth(partner=i) for i in range(12)],
        ),
        "labels": (
            [Labels(case=0, predicted=torch.randint(0, 4, (60,), generator=rng), of="labels", classes=4)],
            [CASE], [Truth(labels=torch.arange(60) % 4)],
        ),
        "recovered": (
            [Recovered(case=i, statistic=torch.randn(1, 5, generator=rng), without=torch.zeros(5)) for i in range(9)],
            [CASE] * 9, [Truth(statistic=statistic[i : i + 1]) for i in range(9)],
        ),
        "reconstructions": (
            [Reconstructions(case=0, images=torch.rand(9, 3, 6, 6, generator=rng), controls={})],
            [CASE], [Truth(images=images)],
        ),
        "membership": shared_pool(seed, torch.randn(60, generator=rng)),
    }  # fmt: skip


def shared_pool(seed: int, ease: torch.Tensor) -> tuple[list[Answer], list[Case], list[Truth]]:
    """Eight clients drawn from 30 images, asked about beside 30 outsiders; a score is mostly the image's own `ease`."""
    rng = stream(seed, "attack", "pool")
    answers: list[Answer] = []
    cases, truths = [], []
    for number in range(8):
        ids = torch.cat([torch.randperm(30, generator=rng)[:20], 30 + torch.randperm(30, generator=rng)[:20]])
        answers.append(Membership(case=number, scores=ease[ids] + 0.2 * torch.randn(40, generator=rng)))
        cases.append(replace(CASE, candidates=numbered(ids.tolist())))
        truths.append(Truth(members=torch.arange(40) < 20))
    return answers, cases, truths


@pytest.mark.parametrize("kind", sorted(random_answers(0)))
@pytest.mark.medium
def test_a_guess_that_knows_nothing_is_rarely_significant(kind: str):
    alarms = sum(p_value(*random_answers(seed)[kind]) < 0.05 for seed in range(100))

    assert alarms <= 12  # Binomial(100, .05) exceeds 12 with probability .0015


def test_every_kind_of_guess_that_knows_the_truth_is_significant():
    rows = torch.arange(15)
    distances = 1 - torch.nn.functional.one_hot(rows, 40).float()
    images = torch.randint(0, 256, (9, 3, 6, 6), generator=stream(0, "attack"), dtype=torch.uint8)
    statistic = torch.randn(9, 5, generator=stream(1, "attack"))
    labels = torch.arange(60) % 4
    knowing: list[tuple[list[Answer], list[Case], list[Truth]]] = [
        ([Ranking(case=0, distances=distances)], [CASE], [Truth(rows=rows)]),
        (
            [Ranking(case=i, distances=distances[i : i + 1, :15], of="partner") for i in range(15)],
            [CASE] * 15, [Truth(partner=i) for i in range(15)],
        ),
        ([Labels(case=0, predicted=labels, of="labels", classes=4)], [CASE], [Truth(labels=labels)]),
        (
            [Recovered(case=i, statistic=statistic[i : i + 1] + 0.1, without=torch.zeros(5)) for i in range(9)],
            [CASE] * 9, [Truth(statistic=statistic[i : i + 1]) for i in range(9)],
        ),
        ([Reconstructions(case=0, images=images / 255, controls={})], [CASE], [Truth(images=images)]),
        shared_pool(0, (torch.arange(60) < 30).float()),
    ]  # fmt: skip

    found = [p_value(*guess) for guess in knowing]

    assert max(found) < 0.002


def test_a_significant_p_value_is_drawn_again_with_ten_times_the_permutations():
    rows = torch.arange(15)
    distances = 1 - torch.nn.functional.one_hot(rows, 40).float()

    (found,) = Judge().null([Ranking(case=0, distances=distances)], [CASE], [Truth(rows=rows)], stream(0, "attack"))

    assert found.permutations == 9999
    assert found.p_value == pytest.approx(1 / 10000)
    assert (found.name, found.value, found.n) == ("rank_percentile", 1.0, 15)


def test_a_style_that_tells_only_its_domain_is_no_alarm():
    rng = stream(2, "attack")
    near = torch.rand(20, 50, generator=rng)
    distances = torch.cat([near, 5 + torch.rand(20, 950, generator=rng)], dim=1)  # the domain's 50 images come first

    p = p_value([Ranking(case=0, distances=distances)], [CASE], [Truth(rows=torch.arange(20))])

    assert p > 0.05


def test_the_auc_of_a_control_is_the_mean_within_clients():
    answers, cases, truths = shared_pool(3, torch.randn(60, generator=stream(3, "attack")))

    (found,) = Judge().null(answers, cases, truths, stream(0, "attack"), permutations=49)

    by_hand = [auc(a.scores[:20], a.scores[20:]) for a in answers if isinstance(a, Membership)]
    assert found.value == pytest.approx(sum(by_hand) / 8)


def test_negative_controls_are_corrected_for_all_rows_of_the_report():
    (alone,) = negative_controls([NULL], comparisons=1)
    (among,) = negative_controls([NULL], comparisons=20)

    assert not alone.passed
    assert among.passed
    assert among.expected == "permutation p = 0.04 >= 0.05/20"
    assert among.measurement.verdict == "descriptive"


def test_a_p_value_at_the_floor_of_its_permutations_fails_among_any_number_of_rows():
    (control,) = negative_controls([replace(NULL, p_value=1 / 1000)], comparisons=500)

    assert not control.passed


def test_fewer_comparisons_than_rows_are_refused():
    with pytest.raises(ValueError, match="comparisons=1"):
        negative_controls([NULL, NULL], comparisons=1)


def test_a_positive_control_passes_only_where_every_row_reaches_its_mark():
    rows = torch.arange(10)
    perfect, blind = 1 - torch.eye(10), torch.ones(10, 10)
    planted_control = PositiveControl(
        cases=[CASE], truths=[Truth(rows=rows)], knowledge=KNOWLEDGE, measurement="top1", at_least=0.9
    )
    guess = [Ranking(case=0, distances=perfect, slice={"v": 1}), Ranking(case=0, distances=blind, slice={"v": 2})]

    controls = positive_control(planted_control, guess, Judge(bootstrap_repeats=100), stream(0, "attack"))

    assert [control.passed for control in controls] == [True, False]
    assert controls[0].expected == ">= 0.9"


def test_a_positive_control_that_was_not_measured_fails():
    planted_control = PositiveControl(
        cases=[CASE], truths=[Truth()], knowledge=KNOWLEDGE, measurement="auc", at_least=0.9
    )

    (control,) = positive_control(planted_control, [], Judge(), stream(0, "attack"))

    assert not control.passed
    assert control.measurement.verdict == "unavailable"
