"""The statistics of tracing against densities, scikit-learn and simulation."""

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.distributions import MultivariateNormal

from fdgsec.attacks.statistics.tracing import (
    Whitening,
    effective_dimension,
    fit_whitening,
    gaussian_auc,
    held_out_dimension,
    likelihood_ratio,
    separation,
    standardized_score,
)
from fdgsec.runtime.errors import TooFewImagesError
from fdgsec.runtime.random_streams import stream
from tests.support.known_whitening import known_whitening


def draw(whiten: Whitening, *shape: int, rng: torch.Generator) -> Tensor:
    """Gaussian records (*shape, D) of the population of a whitening: the inverse map of white noise."""
    white = torch.randn(*shape, whiten.center.shape[0], generator=rng, dtype=torch.float64)
    along = white @ whiten.directions
    z = white * whiten.floor + (along * (whiten.roots - whiten.floor)) @ whiten.directions.T
    return whiten.center + whiten.scale * z


def population(dimension: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A mean and a full covariance whose eigenvalues span two decades."""
    basis = torch.linalg.qr(torch.randn(dimension, dimension, generator=rng, dtype=torch.float64))[0]
    values = torch.logspace(-1, 1, dimension, dtype=torch.float64)
    return torch.randn(dimension, generator=rng, dtype=torch.float64), (basis * values) @ basis.T


def test_likelihood_ratio_is_the_difference_of_two_gaussian_log_densities():
    rng = stream(0, "world", "densities")
    mean, covariance = population(5, rng)
    n, release, candidates = 7, torch.randn(5, generator=rng).double(), torch.randn(11, 5, generator=rng).double()
    whiten = known_whitening(mean, covariance)

    ratio = likelihood_ratio(whiten(release), whiten(candidates), records=n)

    inside = [
        MultivariateNormal(mean + (y - mean) / n, covariance * (n - 1) / n**2).log_prob(release) for y in candidates
    ]
    outside = MultivariateNormal(mean, covariance / n).log_prob(release)
    assert torch.allclose(ratio, torch.stack(inside) - outside, atol=1e-8, rtol=0)


def test_likelihood_ratio_has_the_four_terms_of_the_formula():
    rng = stream(0, "world", "terms")
    u, v, n = torch.randn(6, generator=rng).double(), torch.randn(4, 6, generator=rng).double(), 12

    ratio = likelihood_ratio(u, v, records=n)

    expected = (
        n / (n - 1) * v @ u - v.square().sum(1) / (2 * (n - 1)) - n / (2 * (n - 1)) * u @ u + 3 * math.log(n / (n - 1))
    )
    assert torch.allclose(ratio, expected, atol=1e-10, rtol=0)


def test_unknown_mean_is_integrated_out_of_the_joint_density():
    rng = stream(0, "world", "joint")
    n, reference = 4, 3
    u, v = torch.randn((), generator=rng).double(), torch.randn((), generator=rng).double()
    wide = 1e4  # the flat prior on m as a very wide one; its error is of order 1/wide^2

    def log_density(
        share: float,
    ) -> Tensor:  # of (release, candidate, reference mean), covariance `share` between the first two
        covariance = (
            torch.tensor([[1 / n, share, 0.0], [share, 1.0, 0.0], [0.0, 0.0, 1 / reference]]).double() + wide**2
        )
        return MultivariateNormal(torch.zeros(3).double(), covariance).log_prob(
            torch.stack([u, v, torch.zeros(()).double()])
        )

    ratio = likelihood_ratio(u.reshape(1), v.reshape(1, 1), records=n, reference=reference)

    assert abs(float(ratio) - float(log_density(1 / n) - log_density(0.0))) < 1e-5


def test_infinite_reference_and_known_mean_agree():
    rng = stream(0, "world", "limit")
    u, v = torch.randn(8, generator=rng).double() / 5, torch.randn(3, 8, generator=rng).double()

    difference = likelihood_ratio(u, v, records=25, reference=10**9) - likelihood_ratio(u, v, records=25)

    assert float(difference.abs().max()) < 1e-5


def test_one_record_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        likelihood_ratio(torch.zeros(3), torch.zeros(2, 3), records=1)


def test_standardized_score_is_standard_gaussian_for_a_non_member_however_far_out():
    rng = stream(0, "world", "calibration")
    n, reference, repeats = 9, 20, 20000
    far = torch.tensor([8.0, -6.0, 0.0]).double()  # a candidate ten standard deviations from the mean of its population
    release = torch.randn(repeats, 3, generator=rng).double() / n**0.5
    # Given the candidate, the mean of the reference deviates from the population's as the flat prior says.
    pull = 1 / (reference + 1)
    deviation = torch.randn(repeats, 3, generator=rng).double() * pull**0.5

    scores = standardized_score(
        release + deviation + pull * far, far.expand(repeats, 1, 3), records=n, reference=reference
    )

    assert float(scores.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(scores.std()) == pytest.approx(1.0, abs=0.02)


def test_standardized_score_ranks_almost_as_the_likelihood_ratio_where_records_are_gaussian():
    rng = stream(0, "world", "ranks")
    members, fresh = (torch.randn(40, 300, generator=rng).double() for _ in range(2))
    u, v, truth = members.mean(0), torch.cat([members, fresh]), [1] * 40 + [0] * 40

    areas = [roc_auc_score(truth, test(u, v, records=40).numpy()) for test in (likelihood_ratio, standardized_score)]

    assert areas[1] == pytest.approx(areas[0], abs=0.02)


def measured_auc(whiten: Whitening, n: int, rng: torch.Generator, *, clients: int, shown: int) -> float:
    """AUC of the test with a known population, all records drawn one by one."""
    areas = []
    for _ in range(clients):
        total, members = torch.zeros_like(whiten.center), draw(whiten, shown, rng=rng)
        total += members.sum(0)
        if n > shown:
            total += draw(whiten, n - shown, rng=rng).sum(0)
        candidates = torch.cat([members, draw(whiten, shown, rng=rng)])
        scores = likelihood_ratio(whiten(total / n), whiten(candidates), records=n)
        areas.append(roc_auc_score([1] * shown + [0] * shown, scores.numpy()))
    return float(np.mean(areas))


@pytest.mark.parametrize("n", [67, 500, 1670])
@pytest.mark.parametrize(("dimension", "clients"), [(50, 160), pytest.param(1024, 16, marks=pytest.mark.slow)])
def test_measured_auc_follows_the_law_of_dimension_over_records(dimension: int, clients: int, n: int):
    rng = stream(5, "world", "law", dimension, n)
    whiten = known_whitening(*population(dimension, rng))

    measured = measured_auc(whiten, n, rng, clients=clients, shown=67)

    assert measured == pytest.approx(gaussian_auc(separation(dimension, records=n)), abs=0.02)


@pytest.mark.medium
def test_unknown_mean_and_noise_lower_the_separation_as_the_law_says():
    rng = stream(1, "world", "reference")
    n, reference, dimension, noise = 100, 150, 400, 0.05
    whiten = known_whitening(torch.zeros(dimension), torch.eye(dimension))
    areas = []
    for _ in range(60):
        center = draw(whiten, reference, rng=rng).mean(0)
        members, fresh = draw(whiten, n, rng=rng), draw(whiten, n, rng=rng)
        release = members.mean(0) + noise * torch.randn(dimension, generator=rng, dtype=torch.float64)
        scores = torch.cat([members - center, fresh - center]) @ (release - center)
        areas.append(roc_auc_score([1] * n + [0] * n, scores.numpy()))

    expected = gaussian_auc(separation(dimension, records=n, reference=reference, noise=noise))

    assert float(np.mean(areas)) == pytest.approx(expected, abs=0.015)


def test_shrunk_covariance_is_scikit_learns_on_standardized_coordinates():
    rng = stream(2, "world", "shrinkage")
    mean, covariance = population(30, rng)
    reference = draw(known_whitening(mean, covariance), 20, rng=rng) * torch.logspace(0, 4, 30).double()

    whiten = fit_whitening(reference)

    z = ((reference - reference.mean(0)) / reference.std(0, correction=0)).numpy()
    oracle = LedoitWolf(assume_centered=True).fit(z)
    assert whiten.shrinkage == pytest.approx(oracle.shrinkage_, abs=1e-10)
    probe = torch.randn(9, 30, generator=rng, dtype=torch.float64)
    expected = torch.einsum("gi,ij,gj->g", probe, torch.from_numpy(oracle.precision_), probe)
    assert torch.allclose(whiten(whiten.center + whiten.scale * probe).square().sum(1), expected, rtol=1e-8)


def test_drawing_inverts_whitening():
    rng = stream(3, "world", "inverse")
    whiten = fit_whitening(torch.randn(15, 40, generator=rng).double())

    white = whiten(draw(whiten, 5, rng=stream(4, "world", "white")))

    assert torch.allclose(
        white, torch.randn(5, 40, generator=stream(4, "world", "white"), dtype=torch.float64), atol=1e-10
    )


def test_a_coordinate_that_never_varies_neither_breaks_nor_rules_the_whitening():
    rng = stream(6, "world", "dead")
    reference = torch.randn(60, 10, generator=rng).double()
    reference[:, 3] = 0.0

    white = fit_whitening(reference)(torch.cat([reference, reference + 1e-4]))

    assert bool(torch.isfinite(white).all())
    assert float((white[60:] - white[:60]).abs().max()) < 1.0


def test_differences_between_populations_do_not_enter_the_whitening():
    rng = stream(7, "world", "shift")
    reference, other = torch.randn(40, 12, generator=rng).double(), torch.randn(80, 12, generator=rng).double()

    near, far = fit_whitening(reference, others=[other]), fit_whitening(reference, others=[other * 3 + 1000])

    assert torch.allclose(near(reference), far(reference), atol=1e-8)


def test_nothing_that_varies_is_an_error():
    with pytest.raises(ValueError, match="none of the 4 coordinates varies"):
        fit_whitening(torch.ones(5, 4))


def test_one_record_has_no_effective_dimension():
    with pytest.raises(TooFewImagesError, match="two records"):
        effective_dimension(torch.ones(1, 3))


def test_effective_dimension_is_the_participation_ratio():
    rng = stream(8, "world", "participation")
    spread = torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5]).double()
    records = torch.randn(4000, 5, generator=rng, dtype=torch.float64) * spread

    measured = effective_dimension(records)

    assert measured == pytest.approx(float(spread.square().sum() ** 2 / spread.pow(4).sum()), rel=0.05)


def test_held_out_dimension_approaches_the_full_one_with_many_records():
    rng = stream(9, "world", "dimension")
    wide = known_whitening(*population(20, rng))

    few, many = held_out_dimension(draw(wide, 25, rng=rng)), held_out_dimension(draw(wide, 3000, rng=rng))

    assert few < many
    assert many == pytest.approx(20, rel=0.05)
