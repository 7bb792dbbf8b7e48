"""Linking releases under noise: by who knows of it, by who does not, and by chance."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.linkage.linking_space import linking_space
from fdgsec.attacks.linkage.pair_likelihood_ratio import independent_directions
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.federation.artifacts import Artifact, ImageStyles
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Ranking
from fdgsec.threats.attack import Case, QuestionKind, Truth
from fdgsec.threats.judging.controls import negative_controls
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload
from tests.support.noisy_styles import Noise, holding, knowing, world

CLIENTS, SIZE, PUBLIC = 30, 20, 300


def populations(
    whole: Knowledge, noise: Noise, *, question: QuestionKind, rows: bool = False, seed: int = 0
) -> tuple[list[Case], list[Truth]]:
    """Two noisy releases of each of 30 clients of 20 images, of the same images in sessions, of as many others in halves."""
    cases, truths = [], []
    order = torch.randperm(CLIENTS, generator=stream(seed, "world", "order"))
    for half in ("A", "B"):
        for place in range(CLIENTS):
            client = place if half == "A" else int(order[place])
            start = 2 * SIZE * client + (SIZE if half == "B" and question == "halves" else 0)
            found = whole.statistics(holding(whole, torch.arange(start, start + SIZE)))
            artifact: Artifact = pooled_release(found, whole.released_statistic)
            if rows:
                mean, std = found.style(unbiased=True)
                artifact = ImageStyles(mean=mean.float(), std=std.float())
            noisy = noise.on(artifact, stream(seed, "attack", half, place))
            cases.append(
                Case(
                    question=question, views=(upload(noisy),), victim="client:0", records=SIZE, domain="planted 0",
                    slice={"clients": "iid", "half": half},
                )
            )  # fmt: skip
            truths.append(Truth(partner=int((order == place).nonzero()) if half == "A" else None))
    return cases, truths


def linked(knowledge: Knowledge, cases: list[Case], truths: list[Truth], *, control: bool = False) -> dict[str, float]:
    """The share of clients whose nearest second release is their own, by distance."""
    rng = stream(0, "attack")
    answers = (
        Linkage(noised=()).negative_control(cases, knowledge, rng)
        if control
        else Linkage(noised=()).run(cases, knowledge, rng)
    )
    found: dict[str, list[bool]] = {}
    for answer in answers:
        if isinstance(answer, Ranking):
            hit = int(answer.distances[0].argmin()) == truths[answer.case].partner
            found.setdefault(str(answer.slice["distance"]), []).append(hit)
    return {name: sum(hits) / len(hits) for name, hits in found.items()}


@pytest.fixture(scope="module")
def whole() -> Knowledge:
    return world(2 * SIZE * CLIENTS + PUBLIC, channels=32, domains=1, rng=stream(1, "attack"))


PUBLIC_ROWS = torch.arange(2 * SIZE * CLIENTS, 2 * SIZE * CLIENTS + PUBLIC)


def own_styles(whole: Knowledge, *, spread: float) -> Knowledge:
    """Each client's images lie about a style of its own, in the widest directions of all."""
    found = whole.statistics(holding(whole, torch.arange(2 * SIZE * CLIENTS + PUBLIC)))
    middle = spread * torch.randn(CLIENTS, 1, found.mean.shape[1], generator=stream(9, "attack"), dtype=torch.float64)
    middle = middle * torch.logspace(-1, 1, found.mean.shape[1], dtype=torch.float64)
    mean = found.mean.clone()
    mean[: 2 * SIZE * CLIENTS] += middle.expand(-1, 2 * SIZE, -1).reshape(2 * SIZE * CLIENTS, -1)
    moved = replace(found, mean=mean)
    return replace(whole, statistics=lambda images: moved.rows(images.rows))


@pytest.mark.medium
def test_halves_of_clients_with_a_style_of_their_own_are_linked_better_by_who_knows_of_the_noise(whole: Knowledge):
    noise = Noise(scale=1.0)
    mine = own_styles(whole, spread=0.5)
    cases, truths = populations(mine, noise, question="halves")
    aware = knowing(mine, PUBLIC_ROWS, noise)

    knows, ignores = (linked(each, cases, truths)["whitened"] for each in (aware, replace(aware, defended=None)))

    assert knows > ignores + 0.2
    assert knows > 0.5


@pytest.mark.medium
def test_the_same_images_are_linked_best_by_the_likelihood_ratio(whole: Knowledge):
    noise, seeds = Noise(scale=1.0), range(4)
    aware = knowing(whole, PUBLIC_ROWS, noise)
    questions = [populations(whole, noise, question="sessions", seed=seed) for seed in seeds]

    knows = [linked(aware, *question) for question in questions]
    ignores = [linked(replace(aware, defended=None), *question) for question in questions]

    ratio = sum(rates["likelihood ratio"] for rates in knows) / len(seeds)
    without = sum(max(rates.values()) for rates in ignores) / len(seeds)
    assert all("likelihood ratio" not in rates for rates in ignores)
    assert ratio > without + 0.1  # of 120 clients each: a difference of .06 is one standard deviation
    assert all(rates["likelihood ratio"] >= max(rates.values()) for rates in knows)


@pytest.mark.medium
def test_noise_that_drowns_everything_links_as_often_as_chance(whole: Knowledge):
    noise = Noise(scale=1e3)
    aware = knowing(whole, PUBLIC_ROWS, noise)

    rates = [
        linked(aware, *populations(whole, noise, question="sessions", seed=seed))["likelihood ratio"]
        for seed in range(3)
    ]

    assert sum(rates) / 3 < 0.1  # 1/30 with a standard deviation of .019


@pytest.mark.medium
def test_exchanged_noisy_releases_are_linked_as_often_as_chance(whole: Knowledge):
    noise = Noise(scale=0.5)
    aware = knowing(whole, PUBLIC_ROWS, noise)
    failed = rows = 0
    for seed in range(2):
        cases, truths = populations(whole, noise, question="sessions", seed=seed)
        answers = Linkage(noised=()).negative_control(cases, aware, stream(seed, "attack", "ring"))
        null = Judge().null(answers, cases, truths, stream(seed, "attack", "null"), permutations=199)
        rows += len(null)
        failed += sum(not control.passed for control in negative_controls(null, comparisons=len(null)))

    assert rows == 2 * 3  # three distances
    assert failed == 0


def test_rows_of_single_images_are_found_again_by_who_weighs_the_noise(whole: Knowledge):
    noise = Noise(scale=1.0)
    cases, truths = populations(whole, noise, question="sessions", rows=True)
    aware = knowing(whole, PUBLIC_ROWS, noise)

    knows, ignores = linked(aware, cases, truths), linked(replace(aware, defended=None), cases, truths)

    assert knows["nearest row"] > ignores["nearest row"] + 0.2


def test_one_row_of_a_single_image_is_no_mean_of_a_client(whole: Knowledge):
    seen: list[str] = []

    def looking(artifact: Artifact, images: object, rng: torch.Generator) -> Artifact:
        seen.append(artifact.kind)
        return artifact

    mean, std = whole.statistics(holding(whole, torch.arange(8))).style(unbiased=True)
    cases = [
        Case(
            question="halves", views=(upload(ImageStyles(mean=mean[n : n + 1].float(), std=std[n : n + 1].float())),),
            victim="client:0", records=9, slice={"clients": "iid", "half": "AB"[n % 2]},
        )
        for n in range(8)
    ]  # fmt: skip
    aware = replace(knowing(whole, PUBLIC_ROWS, None), defended=looking)

    Linkage(noised=()).run(cases, aware, stream(0, "attack"))

    assert set(seen) == {"ImageStyles"}


def test_without_a_defense_the_space_is_the_same_object(whole: Knowledge):
    bare = knowing(whole, PUBLIC_ROWS, None)
    space = linking_space(bare)

    assert space.under_noise(bare, 20, single=False, rng=stream(0, "attack")) is space


def test_a_defense_without_effect_leaves_distances_as_they_were(whole: Knowledge):
    aware = knowing(whole, PUBLIC_ROWS, Noise(scale=0.0))
    space = linking_space(aware)
    some = whole.released_statistic.records(whole.statistics(holding(whole, torch.arange(12))))

    same = space.under_noise(aware, 20, single=False, rng=stream(0, "attack"))

    assert torch.allclose(torch.cdist(same(some), same(some)), torch.cdist(space(some), space(some)), rtol=1e-3)


def test_a_single_public_image_does_not_tell_how_images_differ(whole: Knowledge):
    with pytest.raises(UsageError, match="2 public ones or more; there are 1"):
        linking_space(knowing(whole, torch.tensor([0]), None))


def test_a_client_takes_others_to_hold_as_many_images_as_itself(whole: Knowledge):
    sizes: list[int] = []

    def looking(artifact: Artifact, images: object, rng: torch.Generator) -> Artifact:
        sizes.append(len(images))  # type: ignore[arg-type]
        return artifact

    aware = replace(knowing(whole, PUBLIC_ROWS, None), defended=looking)

    linking_space(aware).under_noise(aware, None, single=False, rng=stream(0, "attack"))

    assert set(sizes) == {PUBLIC}


def covariance(size: int, rng: torch.Generator) -> Tensor:
    root = torch.randn(size, size, generator=rng, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def test_the_log_ratio_of_a_pair_is_the_difference_of_two_gaussian_log_densities():
    rng = stream(0, "attack")
    signal, noise = covariance(4, rng), covariance(4, rng)
    center, scale = torch.randn(4, generator=rng).double(), 0.5 + torch.rand(4, generator=rng).double()
    first, second = torch.randn(3, 4, generator=rng).double(), torch.randn(5, 4, generator=rng).double()

    found = independent_directions(signal, noise, center=center, scale=scale).distances(first, second)

    total = signal + noise
    both = torch.cat([torch.cat([total, signal], 1), torch.cat([signal, total], 1)])
    same, alone = MultivariateNormal(torch.zeros(8).double(), both), MultivariateNormal(torch.zeros(4).double(), total)
    a, b = (first - center) / scale, (second - center) / scale
    oracle = torch.stack(
        [torch.stack([alone.log_prob(x) + alone.log_prob(y) - same.log_prob(torch.cat([x, y])) for y in b]) for x in a]
    )
    assert torch.allclose(found - found[0, 0], oracle - oracle[0, 0], atol=1e-8)


def test_noise_that_is_not_positive_definite_is_refused():
    with pytest.raises(ValueError, match="positive definite"):
        independent_directions(torch.eye(2), torch.zeros(2, 2), center=torch.zeros(2), scale=torch.ones(2))
