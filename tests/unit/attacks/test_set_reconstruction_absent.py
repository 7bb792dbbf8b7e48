"""Set reconstruction where members are missing from the gallery: how many they are, and who the others are."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.absent_members import distribution_of
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.set_reconstruction.list_solver import list_solver, propagated_part
from fdgsec.attacks.statistics.domain_populations import Population
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream

NUMBERS, AUXILIARY = 80, 100


def draws(count: int, rng: np.random.Generator) -> Tensor:
    """Images whose principal components have spreads from 1 down to .001, as those of styles have."""
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((NUMBERS, NUMBERS)))[0]
    return torch.from_numpy(rng.standard_normal((count, NUMBERS)) * np.logspace(0, -3, NUMBERS) @ turned)


def partial_gallery(
    *, images: int, absent: int, seed: int, noise: float = 1e-6, members: bool = True
) -> tuple[ListEquations, Tensor]:
    """A mean over `images`, of which `absent` are no candidates, among as many others as there are members left.

    `noise` is the deviation of the mean's error; without `members`, none of those behind the mean is a candidate."""
    rng = np.random.default_rng([images, absent, seed])
    reference, behind, others = draws(AUXILIARY, rng), draws(images, rng), draws(images, rng)
    population = Population(
        whiten=fit_whitening(reference), about=reference.mean(0), reference=reference, others=(draws(AUXILIARY, rng),)
    )
    listed = images - absent
    shown = torch.cat([(behind if members else draws(images, rng))[:listed], others[:listed]])
    error = noise * torch.from_numpy(rng.standard_normal(NUMBERS))
    known = list_equations(
        shown, behind.mean(0) + error, population, noise=torch.full((NUMBERS,), noise).double(), images=images
    )
    return known, torch.arange(len(shown)) < listed


@pytest.mark.parametrize("absent", [4, 10, 20, 30])
def test_the_share_of_absent_members_is_not_biased(absent: int):
    """Shrunk toward the identity, the smallest variances are too large by orders, and half as many seemed absent."""
    found = [partial_gallery(images=40, absent=absent, seed=seed)[0].likeliest_absent() for seed in range(12)]
    assert abs(np.mean(found) - absent) < 3  # of 40: .075; the standard error of the mean is 1 or less


def test_a_list_that_errors_hide_is_not_taken_for_absent_members():
    """An error of a tenth of the mean's own spread: with all members among the candidates, few seem absent."""
    found = [partial_gallery(images=40, absent=0, seed=seed, noise=0.01)[0].likeliest_absent() for seed in range(8)]
    assert np.mean(found) < 2


def test_members_of_a_partial_gallery_are_ranked_by_what_they_explain():
    """Absent members are white in coordinates of their own covariance; weights are marginals of 0 and 1 there."""
    areas, listed = [], []
    for seed in range(8):
        known, members = partial_gallery(images=40, absent=4, seed=seed)
        found = propagated_part(known, known.likeliest_absent())
        areas.append(auc(found.scores()[members], found.scores()[~members]))
        listed.append(found.listed)
        assert found.listed + found.absent == 40
    assert np.mean(areas) > 0.93  # .89 with a covariance that is shrunk toward the identity
    assert abs(np.mean(listed) - 36) < 2


def test_a_solver_propagates_where_half_of_the_members_are_absent():
    """There are as many candidates as members, and none of the lists that bounds find is believed."""
    known, members = partial_gallery(images=40, absent=20, seed=0)
    found = list_solver(known, stream(0, "attack")).solved(known)
    assert np.array_equal(found.weights, propagated_part(known, known.likeliest_absent()).weights)
    assert auc(found.scores()[members], found.scores()[~members]) > 0.7
    assert abs(found.listed - 20) < 6


def test_releases_of_others_leave_no_evidence_in_partial_galleries():
    """Nearly all members are found to be absent, and those who are called members are not ranked first."""
    areas, listed = [], []
    for seed in range(10):
        known, asked = partial_gallery(images=40, absent=10, seed=seed, members=False)
        found = propagated_part(known, known.likeliest_absent())
        areas.append(auc(found.scores()[asked], found.scores()[~asked]))
        listed.append(found.listed)
    assert 0.4 < np.mean(areas) < 0.6  # of 30 and 30, ten times: a standard deviation of .024
    assert np.mean(listed) < 8


def test_variances_are_those_of_images_that_components_were_not_found_with():
    """Fewer images than numbers: held-out ones are white on average, which they are not by linear shrinkage."""
    rng = np.random.default_rng(0)
    images, related, fresh = (draws(count, rng).numpy() for count in (60, 60, 400))

    found = distribution_of(images, [related])

    white = np.linalg.solve(np.linalg.cholesky(found.covariance), (fresh - found.mean).T)
    assert abs(np.square(white).mean() - 1) < 0.15
    shrunk = fit_whitening(torch.from_numpy(np.concatenate([images, related])))
    assert float(shrunk(torch.from_numpy(fresh)).square().mean()) < 0.7


def test_a_mean_of_few_images_is_an_error_of_every_absent_member():
    found = distribution_of(np.random.default_rng(0).standard_normal((50, 3)))
    mean, covariance = found.sum_of(100)
    assert np.allclose(mean, 100 * found.mean)
    assert np.allclose(covariance, (100 + 100**2 / 50) * found.covariance)


@pytest.mark.parametrize("images", [2, 3])
def test_a_distribution_of_few_images_is_positive_definite(images: int):
    found = distribution_of(np.random.default_rng(0).standard_normal((images, 5)))
    assert np.linalg.eigvalsh(found.covariance).min() > 0
