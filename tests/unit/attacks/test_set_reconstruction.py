"""Set reconstruction: whole lists from means of few numbers, under rounding, noise and with an incomplete gallery."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.attacks.statistics.release_precision import rounding_noise, rounding_of
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.report.presentation import figures_of
from fdgsec.federation.artifacts import Amplitudes, Artifact, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import MemberList, Membership
from fdgsec.threats.attack import Case, TargetFacts, Truth
from fdgsec.threats.judging.groups import grouped
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.member_lists import measure_lists
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload

AUXILIARY, CHANNELS = 80, 40
ATTACK = SetReconstruction()


def world(images: int, *, channels: int = CHANNELS, seed: int = 0) -> tuple[Moments, DomainDataset]:
    rng = stream(seed, "attack", "planted lists")
    mean = 4 + torch.randn(AUXILIARY + images, channels, generator=rng, dtype=torch.float64)
    variance = 9 + torch.randn(AUXILIARY + images, channels, generator=rng, dtype=torch.float64).clamp(-4, 4)
    nothing = torch.zeros(len(mean), dtype=torch.int64)
    return planted_moments(mean, variance), planted_images(
        nothing, nothing, class_names=("any",), domain_names=("planted",)
    )


def knowledge(moments: Moments, images: DomainDataset, statistic: ReleasedStatistic = PooledStyles()) -> Knowledge:  # noqa: B008 - frozen
    return Knowledge(
        statistics=PlantedStatistics(moments=moments), encoder="planted", class_names=("any",),
        domain_names=("planted",), auxiliary=images.subset(torch.arange(AUXILIARY)), unseen=None, own=None,
        released_statistic=statistic,
    )  # fmt: skip


def asked(
    artifact: Artifact, images: DomainDataset, members: int, *, shown: Sequence[int], seed: int = 0
) -> tuple[Case, Truth]:
    order = torch.tensor(shown)[torch.randperm(len(shown), generator=stream(seed, "attack", "order"))]
    case = Case(
        question="resampled_clients", views=(upload(artifact),), victim="client:0", records=members, domain="planted",
        slice={"domain": "planted", "n_per_client": members}, candidates=images.subset(AUXILIARY + order),
    )  # fmt: skip
    return case, Truth(members=order < members)


def released(moments: Moments, members: int, statistic: ReleasedStatistic = PooledStyles()) -> Artifact:  # noqa: B008 - frozen
    return pooled_release(moments.rows(AUXILIARY + torch.arange(members)), statistic)


def answered(case: Case, known: Knowledge) -> tuple[Tensor, Tensor]:
    scores, listed = ATTACK.run([case], known, stream(0, "attack"))
    assert isinstance(scores, Membership)
    assert isinstance(listed, MemberList)
    return scores.scores, listed.believed


def behind_noise(
    sd: float, moments: Moments, images: DomainDataset
) -> tuple[Callable[[Artifact, DomainDataset, torch.Generator], Artifact], Knowledge]:
    """A defense that adds noise of `sd`, and the knowledge of an adversary that knows its options."""

    def noisy(artifact: Artifact, _data: DomainDataset, rng: torch.Generator) -> Artifact:
        assert isinstance(artifact, StyleStatistics)
        noise = sd * torch.randn(2, CHANNELS, generator=rng)
        return replace(artifact, mean=artifact.mean + noise[0], std=(artifact.std + noise[1]).clamp_min(0))

    return noisy, replace(knowledge(moments, images), defended=noisy, shared=lambda data, _rng: pooled_release(
        moments.rows(data.rows), PooledStyles()
    ))  # fmt: skip


@pytest.mark.parametrize("statistic", [PooledStyles(), StyleDistributions(), StyleDistributions(released=True)])
def test_a_list_with_fewer_candidates_than_numbers_is_exact(statistic: ReleasedStatistic):
    moments, images = world(60)
    case, truth = asked(released(moments, 30, statistic), images, 30, shown=range(60))

    _, listed = answered(case, knowledge(moments, images, statistic))

    assert truth.members is not None
    assert torch.equal(listed, truth.members)


@pytest.mark.medium
def test_a_list_with_more_candidates_than_numbers_is_exact_up_to_twice_as_many():
    """80 numbers: 130 candidates are determined by the bounds 0 and 1 alone, 300 are not."""
    moments, images = world(300)
    few, many = (asked(released(moments, 50), images, 50, shown=range(count)) for count in (130, 300))

    found = [answered(case, knowledge(moments, images)) for case, _ in (few, many)]

    assert few[1].members is not None
    assert many[1].members is not None
    assert torch.equal(found[0][1], few[1].members)
    area = auc(found[1][0][many[1].members], found[1][0][~many[1].members])
    assert 0.6 < area < 0.999


def test_a_linear_program_finds_the_same_list():
    """The second implementation: the smallest sum of residuals in the box, by HiGHS."""
    moments, images = world(130)
    case, truth = asked(released(moments, 50), images, 50, shown=range(130))
    assert case.candidates is not None
    statistic = PooledStyles()
    t = statistic.records(moments.rows(case.candidates.rows))
    scale = t.std(0)
    matrix = (t / scale).T.numpy()
    target = (50 * statistic.release(case.release())[0] / scale).numpy()
    rows, columns = matrix.shape
    found = linprog(
        np.r_[np.zeros(columns), np.ones(2 * rows)],
        A_eq=np.hstack([matrix, np.eye(rows), -np.eye(rows)]), b_eq=target,
        bounds=[(0, 1)] * columns + [(0, None)] * (2 * rows), method="highs",
    )  # fmt: skip

    _, listed = answered(case, knowledge(moments, images))

    assert truth.members is not None
    assert found.x is not None
    assert (found.x[:columns] > 0.5).tolist() == truth.members.tolist() == listed.tolist()


def test_half_precision_is_seen_and_accounted_for():
    moments, images = world(60)
    sent = released(moments, 30)
    half = replace(sent, **{name: value.half().float() for name, value in sent.tensors().items()})
    case, truth = asked(half, images, 30, shown=range(60))

    scores, listed = answered(case, knowledge(moments, images))

    assert truth.members is not None
    assert torch.equal(listed, truth.members)
    assert auc(scores[truth.members], scores[~truth.members]) == 1.0


def test_a_release_is_read_once_more_in_each_rounding():
    moments, images = world(60)
    case, truth = asked(released(moments, 30), images, 30, shown=range(60))
    attack = SetReconstruction(roundings=("float16", "2 decimals"))

    answers = attack.run([case], knowledge(moments, images), stream(0, "attack"))

    lists = {answer.slice.get("rounding", ""): answer.believed for answer in answers if isinstance(answer, MemberList)}
    assert list(lists) == ["", "float16", "2 decimals"]
    assert truth.members is not None
    assert torch.equal(lists[""], truth.members)
    assert float((lists["2 decimals"] & truth.members).sum()) / 30 > 0.6  # of half of the candidates


def test_members_missing_from_the_gallery_leave_evidence_about_the_others():
    moments, images = world(80)
    areas, exact = [], []
    for missing in (0, 4, 20):
        shown = [*range(40 - missing), *range(40, 80)]
        case, truth = asked(released(moments, 40), images, 40, shown=shown)
        scores, listed = answered(case, knowledge(moments, images))
        assert truth.members is not None
        areas.append(auc(scores[truth.members], scores[~truth.members]))
        exact.append(torch.equal(listed, truth.members))

    assert exact[0]
    assert areas[0] == 1.0
    assert areas[1] > 0.9
    assert areas[2] > 0.65


def test_the_missing_share_is_read_from_the_release():
    moments, images = world(80, channels=60)
    believed = []
    for missing in (0, 20):
        shown = [*range(40 - missing), *range(40, 80)]
        case, _ = asked(released(moments, 40), images, 40, shown=shown)
        believed.append(int(answered(case, knowledge(moments, images))[1].sum()))

    assert believed[0] == 40
    assert 10 <= believed[1] <= 30


@pytest.mark.medium
def test_noise_of_a_defense_is_accounted_for():
    """A defense of sd .3 on means of 20: some evidence is left, and the list is no longer exact."""
    moments, images = world(40)
    sent = released(moments, 20)
    noisy, known = behind_noise(0.3, moments, images)
    areas = []
    for seed in range(6):
        case, truth = asked(noisy(sent, images, stream(seed, "attack", "noise")), images, 20, shown=range(40))
        scores, _ = answered(case, known)
        assert truth.members is not None
        areas.append(auc(scores[truth.members], scores[~truth.members]))
    assert 0.55 < sum(areas) / len(areas) < 0.999


def test_two_clients_of_one_name_and_gallery_are_both_answered():
    moments, images = world(60)
    cases = [asked(released(moments, members), images, 30, shown=range(60))[0] for members in (30, 29)]

    answers = ATTACK.run([*cases, cases[0]], knowledge(moments, images), stream(0, "attack"))

    assert [answer.case for answer in answers if isinstance(answer, MemberList)] == [0, 1]  # the third one is the first


@pytest.mark.medium
def test_half_a_gallery_behind_noise_is_not_taken_for_a_list_of_all():
    """Half of the members are missing from half of twice as many candidates: as many candidates are left as members."""
    moments, images = world(120)
    sent = released(moments, 60)
    noisy, known = behind_noise(0.1, moments, images)
    areas = []
    for seed in range(12):
        received = noisy(sent, images, stream(seed, "attack", "noise"))
        case, truth = asked(received, images, 60, shown=[*range(30), *range(60, 90)], seed=seed)
        scores, listed = answered(case, known)
        assert truth.members is not None
        assert int(listed.sum()) < 60
        areas.append(auc(scores[truth.members], scores[~truth.members]))
    assert sum(areas) / len(areas) > 0.6


def test_releases_of_others_give_no_list_and_no_evidence():
    moments, images = world(80)
    cases = [asked(released(moments, 40), images, 40, shown=range(80), seed=seed) for seed in range(8)]

    answers = ATTACK.negative_control(
        [case for case, _ in cases], knowledge(moments, images), stream(1, "attack", "null")
    )

    areas = []
    for answer in answers:
        members = cases[answer.case][1].members
        assert members is not None
        if isinstance(answer, MemberList):
            assert not torch.equal(answer.believed, members)
        if isinstance(answer, Membership):
            areas.append(auc(answer.scores[members], answer.scores[~members]))
    assert abs(sum(areas) / len(areas) - 0.5) < 0.12


def test_the_precision_of_a_release_is_read_from_its_numbers():
    values = torch.tensor([1.2345678, 250.123456, 137.654321, 61.987654, 3.3333333, 199.77777])
    for sent, error in (
        (values, 250.123456 * 2.0**-24), (values.half().float(), 250.125 * 2.0**-11),
        (values.round(decimals=2), 0.005 + 250.12 * 2.0**-24), (values.round(), 0.5),
    ):  # fmt: skip
        artifact = StyleStatistics(mean=sent, std=sent)
        assert float(rounding_of(artifact)(sent)[1]) == pytest.approx(error, rel=1e-3)


def test_rounding_of_every_kind_reaches_its_statistic():
    style = torch.tensor([3.14159, 2.71828])
    spectrum = Amplitudes(values=torch.rand(1, 3, 8, 5) + 1, owner=torch.zeros(1, dtype=torch.int64))
    spread = StyleDistribution(mean=style, std=style, mean_spread=style, std_spread=style)
    for artifact, statistic in (
        (StyleStatistics(mean=style, std=style), PooledStyles()), (spread, StyleDistributions()),
        (spread, StyleDistributions(released=True)), (spectrum, MeanSpectra()),
    ):  # fmt: skip
        size = statistic.release(artifact, images=10).shape[1]
        noise = rounding_noise(artifact, statistic, torch.zeros(size, dtype=torch.float64), images=10)
        assert noise.shape == (size,)
        assert bool((noise > 0).all())
        assert float(noise.max()) < 1e-4


def test_a_client_that_holds_every_candidate_is_a_list_of_all():
    equations = ListEquations(
        candidates=np.eye(3),
        release=np.full(3, 1 / 3),
        noise=np.full(3, 1e-6),
        spread=np.ones(3),
        images=3,
    )
    found = equations.solved(1.0, absent=0)
    assert found.believed().all()


def facts(**given: object) -> TargetFacts:
    usual: dict[str, object] = {
        "artifact_kinds": frozenset({"StyleStatistics"}), "clients": 3, "images_per_client": 100, "classes": 7,
        "profile": "quick",
    }  # fmt: skip
    return TargetFacts(**{**usual, **given})  # type: ignore[arg-type]


def test_styles_that_are_no_means_are_refused():
    with pytest.raises(UsageError, match="means over a client's images"):
        ATTACK.plan(facts(pooled=False))


def test_galleries_are_asked_for_once_in_full_and_twice_in_part():
    questions = SetReconstruction(sizes=(40,)).plan(facts())
    assert [(question.gallery, question.held) for question in questions[:3]] == [(80, 1.0), (80, 0.9), (80, 0.5)]
    assert questions[3].held == 1.0
    assert questions[3].gallery > 10_000


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("galleries", (1,), "galleries must be 0"), ("galleries", (-1,), "galleries must be 0"),
        ("held", (0.0,), "held must be shares"), ("held", (1.5,), "held must be shares"), ("sizes", (1,), "sizes"),
        ("clients", 0, "clients"), ("roundings", ("float8",), "unknown rounding 'float8'"),
    ],
)  # fmt: skip
def test_options_outside_their_range_are_refused(option: str, value: object, said: str):
    with pytest.raises(UsageError, match=said):
        SetReconstruction(**{option: value})  # type: ignore[arg-type]


def test_candidates_and_one_style_are_needed():
    moments, images = world(20)
    case, _ = asked(released(moments, 10), images, 10, shown=range(20))
    with pytest.raises(UsageError, match="without any"):
        ATTACK.run([replace(case, candidates=None)], knowledge(moments, images), stream(0, "attack"))


def listed(*believed: Sequence[bool], members: Sequence[bool]) -> dict[str, tuple[float | None, float | None]]:
    case = Case(question="resampled_clients", views=(View(messages=()),), victim="client:1", slice={"domain": "photo"})
    answers = [MemberList(case=number, believed=torch.tensor(said)) for number, said in enumerate(believed)]
    truths = [Truth(members=torch.tensor(members))] * len(believed)
    rows = measure_lists(grouped(answers, [case] * len(believed), truths)[0])
    return {row.name: (row.value, row.chance) for row in rows}


def test_a_list_is_exact_where_every_member_and_nobody_else_is_on_it():
    members = [True, True, False, False]
    found = listed(members, [True, False, True, False], members=members)

    assert found["exact_list"] == (0.5, pytest.approx(1 / 6))
    assert found["precision"] == (0.75, 0.5)


def test_a_list_of_another_length_cannot_be_exact_by_chance():
    found = listed([True, False, False, False], members=[True, True, False, False])
    assert found["exact_list"] == (0.0, 0.0)
    assert found["precision"] == (1.0, 0.5)


def test_a_list_that_is_not_one_flag_a_candidate_is_an_error():
    with pytest.raises(ValueError, match=r"believed must be bool \(4,\)"):
        listed([True, False], members=[True, True, False, False])


def test_the_judge_measures_lists_beside_scores():
    moments, images = world(60)
    cases = [asked(released(moments, 30), images, 30, shown=range(60), seed=seed) for seed in range(4)]
    answers = ATTACK.run([case for case, _ in cases], knowledge(moments, images), stream(0, "attack"))
    rows = Judge().measure(
        answers, [case for case, _ in cases], [truth for _, truth in cases], child(stream(0, "world", "judge"), "x")
    )
    assert {row.name for row in rows} >= {"auc", "exact_list", "precision"}
    assert all(row.value == 1.0 for row in rows if row.name in ("auc", "exact_list", "precision"))


@pytest.mark.medium
def test_galleries_are_not_drawn_as_tests_of_single_candidates():
    moments, images = world(60)
    case, truth = asked(released(moments, 30), images, 30, shown=range(60))
    answers = ATTACK.run([case], knowledge(moments, images), stream(0, "attack"))

    assert figures_of(answers, [case], [truth])
    assert not figures_of(answers, [replace(case, slice={**case.slice, "gallery": 60, "held": "100%"})], [truth])
