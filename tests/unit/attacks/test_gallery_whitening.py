"""The whitening from all images that an adversary holds: stronger than from auxiliary ones, and honest about it."""

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.membership.gallery_whitening import gallery_whitening
from fdgsec.attacks.statistics.tracing import fit_whitening, likelihood_ratio
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream

DIMENSION, AUXILIARY, GALLERY, SIZE = 60, 60, 240, 60


def images_of(seed: int) -> Tensor:
    """Records (AUXILIARY + GALLERY, D) with a spectrum as steep as that of image statistics, and heavy tails."""
    rng = stream(seed, "world", "records")
    count = AUXILIARY + GALLERY
    plain = (
        torch.randn(count, DIMENSION, generator=rng, dtype=torch.float64) * torch.logspace(0, -3, DIMENSION).double()
    )
    return plain * (0.5 + torch.rand(count, 1, generator=rng, dtype=torch.float64))


def measured(seed: int, *, noise: float = 0.0, clients: int = 20, absent: bool = False) -> tuple[float, float, float]:
    """The AUC with the whitening of all images, in its rehearsals, and with that of auxiliary images."""
    images, rng = images_of(seed), stream(seed, "world", "clients")
    variance = torch.full((DIMENSION,), noise**2, dtype=torch.float64)
    chosen = gallery_whitening(
        images[AUXILIARY:],
        images[:AUXILIARY],
        (),
        records=SIZE,
        variance=variance,
        test=likelihood_ratio,
        rng=stream(seed, "attack", "rehearsals"),
    )
    few = fit_whitening(images[:AUXILIARY])
    few = few.blurred(variance / (1 / SIZE + 1 / (AUXILIARY + 1))) if noise else few
    gallery, found = images[AUXILIARY:], []
    for _ in range(clients):
        order = torch.randperm(GALLERY, generator=rng)
        members, others = gallery[order[:SIZE]], gallery[order[SIZE : 2 * SIZE]]
        behind = images[torch.randint(AUXILIARY, (SIZE,), generator=rng)] if absent else members
        release = behind.mean(0) + noise * torch.randn(DIMENSION, generator=rng, dtype=torch.float64)
        both = torch.cat([members, others])
        scores = [
            likelihood_ratio(whiten(release), whiten(both), records=SIZE, reference=count)
            for whiten, count in ((chosen.whiten, chosen.images), (few, AUXILIARY))
        ]
        found.append([auc(row[:SIZE], row[SIZE:]) for row in scores])
    mine, theirs = torch.tensor(found).mean(0).tolist()
    return mine, chosen.rehearsed, theirs


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_candidates_in_the_whitening_find_more_members(seed: int):
    mine, rehearsed, theirs = measured(seed)

    assert mine > theirs + 0.1
    assert mine == pytest.approx(rehearsed, abs=0.04)  # 20 and 8 clients of 60 against 60


@pytest.mark.parametrize("noise", [0.001, 0.05])
def test_behind_noise_rehearsals_say_what_is_found(noise: float):
    mine, rehearsed, theirs = measured(3, noise=noise, clients=40)

    assert mine == pytest.approx(rehearsed, abs=0.05)
    assert mine > theirs - 0.03


def test_nothing_is_found_behind_a_release_of_other_images():
    found = [measured(seed, absent=True)[0] for seed in range(12)]

    assert sum(found) / len(found) == pytest.approx(
        0.5, abs=0.02
    )  # 240 areas of 60 against 60: a standard error of .004


def test_two_images_are_enough_and_rehearse_nothing():
    found = gallery_whitening(
        torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64), (), records=5,
        variance=torch.zeros(2, dtype=torch.float64), test=likelihood_ratio, rng=stream(0, "attack"),
    )  # fmt: skip

    assert found.rehearsed == 0.5
    assert bool(torch.isfinite(found.whiten(torch.zeros(2))).all())
