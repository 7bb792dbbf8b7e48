"""Simulated likelihood ratios: the Gaussian densities that they claim, and on a mean those of the exact test."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.distributions import Normal

from fdgsec.attacks.membership.shadow_likelihood import ShadowRatio, fit_shadow_ratio, shifts, shrink_shifts
from fdgsec.attacks.statistics.tracing import likelihood_ratio
from fdgsec.runtime.random_streams import stream


def noise(*shape: int, name: str = "noise") -> Tensor:
    return torch.randn(shape, generator=stream(0, "world", name), dtype=torch.float64)


def test_the_ratio_is_the_difference_of_two_log_densities():
    v = noise(5, 3)
    test = ShadowRatio(v=v, center=noise(5, name="center"), shift=noise(5, name="shift"), spread=0.7)
    u, rows = noise(3, name="release"), torch.tensor([4, 0, 2])

    ratio = test(u, rows)

    s = torch.stack([v[i] @ u / v[i].norm() for i in rows])
    inside = Normal(test.center[rows] + test.shift[rows], 0.7).log_prob(s)
    torch.testing.assert_close(ratio, inside - Normal(test.center[rows], 0.7).log_prob(s))


def test_a_shift_is_measured_along_its_candidate():
    v = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    before = torch.zeros(2, 2, 2, dtype=torch.float64)
    after = before + torch.tensor([1.0, 1.0], dtype=torch.float64)

    moved = shifts(before, after, v)

    torch.testing.assert_close(moved, torch.tensor([[1.4, 1.4], [1.0, 1.0]], dtype=torch.float64))


def test_shifts_that_agree_with_each_other_are_kept_and_those_that_do_not_fall_on_the_line():
    v = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    own = torch.tensor([0.1, 0.5, 0.2, 0.6], dtype=torch.float64)
    sure = torch.stack([own, own], dim=1)
    unsure = torch.stack([own - 5, own + 5], dim=1)
    tried = torch.arange(4)
    slope = float(own @ torch.tensor([1.0, 2, 3, 4]).double()) / 30

    torch.testing.assert_close(shrink_shifts(sure, tried, v), own)
    torch.testing.assert_close(shrink_shifts(unsure, tried, v), slope * torch.tensor([1.0, 2, 3, 4]).double())


def test_candidates_that_were_not_tried_lie_on_the_line_of_the_others():
    v = torch.diag(torch.tensor([1.0, 2.0, 10.0], dtype=torch.float64))
    found = torch.tensor([[0.1, 0.1], [0.2, 0.2]], dtype=torch.float64)

    shift = shrink_shifts(found, torch.tensor([0, 1]), v)

    torch.testing.assert_close(shift, torch.tensor([0.1, 0.2, 1.0], dtype=torch.float64))


def test_one_shift_per_candidate_is_refused():
    with pytest.raises(ValueError, match="k two or more"):
        shrink_shifts(torch.zeros(3, 1), torch.arange(3), torch.ones(3, 2))


def test_shadows_that_are_all_alike_are_refused():
    with pytest.raises(ValueError, match="all alike"):
        fit_shadow_ratio(torch.ones(4, 2), torch.ones(1, 2), torch.tensor([0]), torch.ones(1, 2))


def test_simulating_a_mean_finds_as_much_as_its_exact_test():
    n, dimension, shadows, clients = 20, 120, 300, 25
    rng = stream(0, "world", "means")

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dimension, generator=rng, dtype=torch.float64)

    candidates = draw(clients, 2 * n)
    v = candidates.reshape(-1, dimension)
    held = draw(shadows, n)
    out = held.mean(1)
    pairs = torch.arange(len(v) * 2).remainder(shadows).reshape(-1, 2)
    after = out[pairs] + (v.unsqueeze(1) - held[pairs, 0]) / n
    test = fit_shadow_ratio(out, shifts(out[pairs], after, v), torch.arange(len(v)), v)

    simulated, exact = [], []
    truth = [1] * n + [0] * n
    for number, mine in enumerate(candidates):
        release = mine[:n].mean(0)
        rows = torch.arange(2 * n) + number * 2 * n
        simulated.append(roc_auc_score(truth, test(release, rows).numpy()))
        exact.append(roc_auc_score(truth, likelihood_ratio(release, mine, records=n).numpy()))

    assert sum(exact) / clients > 0.9  # d' = sqrt(120/20): .96
    assert sum(simulated) / clients == pytest.approx(sum(exact) / clients, abs=0.01)
    assert test.spread == pytest.approx(1 / math.sqrt(n), rel=0.05)
    assert float((test.shift / v.norm(dim=1)).mean()) == pytest.approx(1 / n, rel=0.05)


def test_a_candidate_from_elsewhere_moves_the_center_by_its_share_of_the_reference():
    v, out = noise(4, 6), noise(9, 6, name="out")
    found = noise(4, 2, name="found")

    known = fit_shadow_ratio(out, found, torch.arange(4), v)
    unknown = fit_shadow_ratio(out, found, torch.arange(4), v, reference=99)

    torch.testing.assert_close(unknown.center - known.center, v.norm(dim=1) / 100)
