"""What an adversary finds out about a defense by passing its own images through it, and what that wins."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.attacks.statistics.defense_noise import (
    defense_noise_of_mean,
    defense_noise_of_rows,
    noisy_rows,
    read_style_rows,
    style_rows_of,
)
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleStatistics, renumbered
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership as Scores
from fdgsec.threats.answers import Prediction, Ranking
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload
from tests.support.known_whitening import known_whitening
from tests.support.noisy_styles import Noise, holding, knowing, world


def means_of(artifact: Artifact) -> Tensor:
    return artifact.tensors()["mean"].double()


def test_shift_and_variance_of_gaussian_noise_are_those_of_t():
    knowledge = replace(world(60, channels=8, domains=1, rng=stream(0, "attack")), defended=Noise(scale=0.5, bias=0.3))
    assert knowledge.auxiliary is not None
    about = knowledge.released_statistic.records(knowledge.statistics(knowledge.auxiliary)).mean(0)

    defense_noise = defense_noise_of_mean(
        knowledge, knowledge.auxiliary, records=20, about=about, rng=stream(1, "attack")
    )

    assert defense_noise is not None
    assert torch.allclose(defense_noise.shift[:8], torch.full((8,), 0.3).double(), atol=4 * 0.5 / 200**0.5)
    assert torch.allclose(
        defense_noise.variance[:8], torch.full((8,), 0.25).double(), rtol=0.4
    )  # 4 standard errors of 200 draws


def test_rounding_draws_nothing_and_is_found_to_scatter_all_the_same():
    step = 0.5
    knowledge = replace(
        world(60, channels=8, domains=1, rng=stream(0, "attack")),
        defended=lambda artifact, images, rng: renumbered(artifact, lambda _, value: (value / step).round() * step),
    )
    assert knowledge.auxiliary is not None
    about = torch.zeros(16, dtype=torch.float64)

    defense_noise = defense_noise_of_mean(
        knowledge, knowledge.auxiliary, records=20, about=about, rng=stream(1, "attack")
    )

    assert defense_noise is not None
    wide = defense_noise.variance[4:8]  # channels whose mean varies over several steps from client to client
    assert torch.allclose(wide, torch.full((4,), step**2 / 12).double(), rtol=0.35)
    assert defense_noise.shift[4:8].abs().max() < 4 * step / 12**0.5 / 200**0.5


def test_without_a_defense_there_is_no_blur_and_rows_stay_as_they_are():
    knowledge = world(20, channels=4, domains=2, rng=stream(0, "attack"))
    assert knowledge.auxiliary is not None
    mean, std = knowledge.statistics(knowledge.auxiliary).style(unbiased=True)
    rng = stream(0, "attack")

    defense_noise = defense_noise_of_mean(knowledge, knowledge.auxiliary, records=5, about=mean[0], rng=rng)
    rows = defense_noise_of_rows(
        knowledge, knowledge.auxiliary, made=style_rows_of(knowledge), read=read_style_rows, rng=rng
    )
    noisy = noisy_rows(knowledge, knowledge.auxiliary, mean, std, rng)

    assert defense_noise is None
    assert rows is None
    assert noisy[0] is mean
    assert noisy[2] == 1


def grouped(artifact: Artifact, images: DomainDataset, rng: torch.Generator) -> Artifact:
    """Every row becomes the mean of five neighbors."""
    assert len(images.domains.unique()) == 1  # what one client sends is of its own images
    return renumbered(
        artifact, lambda _, value: value.view(-1, 5, value.shape[1]).mean(1).repeat_interleave(5, dim=0).contiguous()
    )


def test_a_row_that_is_a_mean_of_five_keeps_a_fifth_of_its_image():
    knowledge = replace(world(400, channels=8, domains=2, rng=stream(0, "attack")), defended=grouped)
    assert knowledge.auxiliary is not None

    defense_noise = defense_noise_of_rows(
        knowledge, knowledge.auxiliary, made=style_rows_of(knowledge), read=read_style_rows, rng=stream(1, "attack")
    )

    assert defense_noise is not None
    assert abs(defense_noise.gain - 0.2) < 0.05
    assert defense_noise.shift.abs().max() < 1e-4  # a mean over groups is the mean over all; float32


def test_noisy_rows_are_made_domain_by_domain():
    knowledge = replace(world(40, channels=4, domains=2, rng=stream(0, "attack")), defended=grouped)
    assert knowledge.auxiliary is not None
    mean, std = knowledge.statistics(knowledge.auxiliary).style(unbiased=True)

    noisy, _, copies = noisy_rows(knowledge, knowledge.auxiliary, mean, std, stream(0, "attack"))

    assert copies == 3
    own = mean[knowledge.auxiliary.domains == 1][:5].mean(0)
    assert torch.allclose(noisy[:40][knowledge.auxiliary.domains == 1][0], own, atol=1e-5)


def test_whitening_blurred_by_nothing_is_the_same_map():
    rng = stream(0, "attack")
    basis = torch.linalg.qr(torch.randn(6, 6, generator=rng, dtype=torch.float64))[0]
    whiten = known_whitening(torch.randn(6, generator=rng), (basis * torch.logspace(-1, 1, 6).double()) @ basis.T)
    some = torch.randn(9, 6, generator=rng, dtype=torch.float64)

    same = whiten.blurred(torch.zeros(6))

    assert torch.allclose(same(some) @ same(some).T, whiten(some) @ whiten(some).T, atol=1e-9)


def test_whitening_blurred_is_that_of_the_sum_of_both_covariances():
    rng = stream(0, "attack")
    basis = torch.linalg.qr(torch.randn(6, 6, generator=rng, dtype=torch.float64))[0]
    covariance, variance = (basis * torch.logspace(-1, 1, 6).double()) @ basis.T, torch.rand(6, generator=rng).double()
    mean = torch.zeros(6)
    some = torch.randn(9, 6, generator=rng, dtype=torch.float64)

    whitening_under_noise = known_whitening(mean, covariance).blurred(variance)

    oracle = known_whitening(mean, covariance + variance.diag())
    assert torch.allclose(whitening_under_noise(some).norm(dim=1), oracle(some).norm(dim=1), atol=1e-9)


def clients(knowledge: Knowledge, noise: Noise, *, count: int, size: int, seed: int) -> tuple[list[Case], list[Tensor]]:
    """Noisy releases of clients of `size` of the images 0..199, among as many that are in none."""
    rng, cases, members = stream(seed, "world", "clients"), [], []
    for number in range(count):
        order = torch.randperm(200, generator=rng)
        inside, outside = order[:size], order[size : 2 * size]
        release = pooled_release(knowledge.statistics(holding(knowledge, inside)), knowledge.released_statistic)
        asked = torch.cat([inside, outside])[torch.randperm(2 * size, generator=rng)]
        candidates = replace(holding(knowledge, asked), domains=torch.zeros(2 * size, dtype=torch.int64))
        cases.append(
            Case(
                question="resampled_clients", views=(upload(noise.on(release, stream(seed, "attack", number))),),
                victim="client:0", records=size, domain="planted 0", slice={"n_per_client": size}, candidates=candidates,
            )
        )  # fmt: skip
        members.append(torch.isin(asked, inside))
    return cases, members


def areas(answers: Sequence[object], members: Sequence[Tensor]) -> float:
    found = [a for a in answers if isinstance(a, Scores)]
    return sum(auc(a.scores[members[a.case]].numpy(), a.scores[~members[a.case]].numpy()) for a in found) / len(found)


@pytest.mark.parametrize("scale", [0.1, 0.4])
def test_membership_under_noise_reaches_what_rehearsals_predict_and_more_than_who_ignores_it(scale: float):
    noise = Noise(scale=scale)
    whole = world(1400, channels=24, domains=1, rng=stream(3, "attack"))
    cases, members = clients(whole, noise, count=30, size=40, seed=0)
    aware = knowing(whole, torch.arange(200, 1400), noise)

    answers = Membership().run(cases, aware, stream(0, "attack"))
    naive = Membership().run(cases, replace(aware, defended=None), stream(0, "attack"))

    expected = [a.value for a in answers if isinstance(a, Prediction) and a.slice.get("line") == "rehearsal"]
    assert len(expected) == 1
    assert (
        abs(areas(answers, members) - expected[0]) < 0.03
    )  # 30 clients with 1,600 pairs each: a standard error of .01
    assert areas(answers, members) > areas(naive, members)


def test_the_negative_control_of_membership_knows_of_noise_and_shift_and_is_silent():
    noise = Noise(scale=0.4, bias=0.5)
    whole = world(600, channels=24, domains=1, rng=stream(3, "attack"))
    cases, members = clients(whole, noise, count=30, size=40, seed=0)
    aware = knowing(whole, torch.arange(200, 600), noise)

    answers = Membership().negative_control(cases, aware, stream(0, "attack"))

    assert abs(areas(answers, members) - 0.5) < 0.035  # candidates meet 30 clients: a standard error of about .012


def test_a_defense_without_effect_leaves_membership_as_it_was():
    whole = world(600, channels=24, domains=1, rng=stream(3, "attack"))
    cases, members = clients(whole, Noise(scale=0.0), count=10, size=40, seed=0)
    aware = knowing(whole, torch.arange(200, 600), Noise(scale=0.0))

    answers = Membership().run(cases, aware, stream(0, "attack"))
    bare = Membership().run(cases, replace(aware, defended=None), stream(0, "attack"))

    assert math.isclose(areas(answers, members), areas(bare, members), abs_tol=1e-3)


def hits(knowledge: Knowledge, case: Case) -> float:
    answers = Reidentification().run([case], knowledge, stream(0, "attack"))
    found = next(a for a in answers if isinstance(a, Ranking) and a.slice["transform"] == "known")
    return float((found.distances.argmin(1) == torch.arange(len(found.distances))).double().mean())


def test_rows_under_noise_are_found_by_who_whitens_the_noise():
    noise = Noise(scale=0.5)
    whole = world(400, channels=24, domains=1, rng=stream(5, "attack"))
    shown = holding(whole, torch.arange(200))
    mean, std = whole.statistics(shown).style(unbiased=True)
    released = noise.on(ImageStyles(mean=mean.float(), std=std.float()), stream(0, "attack"))
    case = Case(
        question="as_if_released", views=(upload(released),), victim="client:0", slice={"domain": "planted"},
        candidates=shown,
    )  # fmt: skip
    aware = knowing(whole, torch.arange(200, 400), noise)

    assert hits(aware, case) > 0.9
    assert hits(aware, case) > hits(replace(aware, defended=None), case) + 0.2


def test_releases_are_passed_with_the_images_behind_them():
    seen: list[tuple[int, int]] = []

    def looking(artifact: Artifact, images: DomainDataset, rng: torch.Generator) -> Artifact:
        assert isinstance(artifact, StyleStatistics)
        seen.append((len(images), int(images.rows.max())))
        return artifact

    whole = world(50, channels=4, domains=1, rng=stream(0, "attack"))
    knowledge = replace(whole, auxiliary=holding(whole, torch.arange(10)), defended=looking)
    assert knowledge.auxiliary is not None

    defense_noise = defense_noise_of_mean(
        knowledge, knowledge.auxiliary, records=7, about=torch.zeros(8).double(), rng=stream(0, "attack")
    )

    assert defense_noise is not None
    assert {size for size, _ in seen} == {7}
    assert max(row for _, row in seen) < 10  # of the adversary's own images alone
    assert float(defense_noise.variance.max()) == 0.0
