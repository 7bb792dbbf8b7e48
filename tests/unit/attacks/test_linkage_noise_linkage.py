import math

import pytest
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr
from torch import Tensor

from fdgsec.attacks.linkage.noise_linkage import NoiseLinkage, add_noise, between_client_sd, noise_linkage
from fdgsec.runtime.random_streams import stream

PUBLISHED = (0.02, 0.05)  # FISC's Table 10
LEVELS = [2.0**k for k in range(-1, 14)]  # 0.5 .. 8192


def clients(seed: int = 0, *, count: int = 100, dimension: int = 1024) -> Tensor:
    """Styles of VGG's scale: norm about 400, most of the spread along one axis of two domains, the rest of sd 1."""
    rng = stream(seed, "world", "styles")
    base = torch.rand(dimension, generator=rng, dtype=torch.float64)
    axis = torch.randn(dimension, generator=rng, dtype=torch.float64)
    side = torch.arange(count) % 2 * 2 - 1.0
    own = torch.randn(count, dimension, generator=rng, dtype=torch.float64)
    return 400 * base / base.norm() + 60 * side.unsqueeze(1) * axis / axis.norm() + own


def sweep(seed: int = 0) -> list[NoiseLinkage]:
    styles, rng = clients(seed), stream(seed, "attack", "sweep")
    return [noise_linkage(styles, noise=level, repeats=5, rng=rng) for level in LEVELS]


def test_the_synthetic_clients_have_the_scale_of_vgg_styles():
    styles = clients()
    centered = styles - styles.mean(0)
    spectrum = torch.linalg.svdvals(centered).square()

    assert 330 < float(styles.norm(dim=1).min()) < float(styles.norm(dim=1).max()) < 550
    assert 0.9 < between_client_sd(styles) < 3
    assert 1 < float(spectrum.sum() ** 2 / spectrum.square().sum()) < 2  # participation ratio: one axis dominates
    assert 50 < float(centered.norm(dim=1).median()) < 90


@pytest.mark.parametrize("scale", PUBLISHED)
@pytest.mark.parametrize("seed", range(3))
def test_the_published_noise_hides_no_client(scale: float, seed: int):
    found = noise_linkage(clients(seed), shrink=0.1, noise=scale, repeats=5, rng=stream(seed, "attack"))

    assert found.top1 >= 0.99
    assert found.interval.low >= 0.99
    assert found.chance == 0.01
    assert found.trials == 500
    assert found.noise_in_sds < 0.06


def test_linkage_falls_with_noise_and_reaches_chance():
    found = sweep()

    rates = [one.top1 for one in found]
    fit = isotonic_regression(rates, increasing=False).x
    assert all(one.interval.low <= level <= one.interval.high for one, level in zip(found, fit, strict=True))
    between = [(one.noise, one.top1) for one in found if 2 * one.chance <= one.top1 <= 0.98]
    assert len(between) >= 4
    assert spearmanr(LEVELS, rates).statistic <= -0.9
    assert found[0].top1 == 1
    assert found[-1].interval.low <= found[-1].chance <= found[-1].interval.high


def test_the_rank_correlation_holds_between_near_certainty_and_twice_chance():
    styles, rng = clients(), stream(3, "attack")
    levels = [4 * 1.4**k for k in range(9)]

    found = [noise_linkage(styles, noise=level, repeats=10, rng=rng) for level in levels]

    inside = [one for one in found if 2 * one.chance <= one.top1 <= 0.98]
    assert len(inside) >= 6
    assert spearmanr([one.noise for one in inside], [one.top1 for one in inside]).statistic <= -0.9


def test_noise_is_added_to_the_shrunk_value_and_not_multiplied_by_the_coefficient():
    values = torch.full((200, 500), 10.0, dtype=torch.float64)

    out = add_noise(values, shrink=0.1, noise=0.05, rng=stream(0, "attack"))

    assert float(out.mean()) == pytest.approx(9, abs=5 * 0.05 / math.sqrt(100_000))
    assert float(out.std()) == pytest.approx(0.05, rel=0.02)  # 100,000 draws: relative error .2%
    assert torch.equal(add_noise(values, shrink=0.1, noise=0, rng=stream(0, "attack")), 0.9 * values)


@pytest.mark.parametrize("noise", [0.05, 8.0, 30.0])
def test_dividing_by_the_public_factor_leaves_only_the_noise(noise: float):
    styles = clients()

    shrunk = noise_linkage(styles, shrink=0.1, noise=noise, repeats=5, rng=stream(1, "attack"))
    plain = noise_linkage(styles, shrink=0.0, noise=noise / 0.9, repeats=5, rng=stream(1, "attack"))

    assert shrunk.top1 == plain.top1  # the same draws, so the same hits


def test_clients_are_linked_by_the_nearest_style_as_a_loop_finds_it():
    styles = clients(count=12, dimension=40)
    found = noise_linkage(styles, shrink=0.2, noise=25.0, repeats=3, rng=stream(2, "attack"))

    rng, hits = stream(2, "attack"), 0
    for _ in range(3):
        seen = (0.8 * styles + 25 * torch.randn(12, 40, generator=rng, dtype=torch.float64)) / 0.8
        for client in range(12):
            gaps = [float((seen[client] - other).norm()) for other in styles]
            hits += gaps.index(min(gaps)) == client

    assert found.top1 == hits / 36
    assert 0 < hits < 36


def test_equal_styles_are_linked_by_chance():
    found = noise_linkage(torch.ones(10, 4), shrink=0.0, noise=0.0, repeats=2, rng=stream(0, "attack"))

    assert found.top1 == found.chance == 0.1
    assert found.noise_in_sds == float("inf")


def test_the_noise_axis_is_in_units_of_the_spread_between_clients():
    styles = clients()
    by_hand = sorted(float(styles[:, j].std()) for j in range(1024))

    found = noise_linkage(styles, noise=5.0, repeats=1, rng=stream(0, "attack"))

    assert found.noise_in_sds == pytest.approx(5 / ((by_hand[511] + by_hand[512]) / 2))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="shrink must lie"):
        add_noise(torch.ones(2), shrink=1.0, noise=0.1, rng=stream(0, "attack"))
    with pytest.raises(ValueError, match="repeats must be"):
        noise_linkage(torch.ones(2, 2), noise=0.1, repeats=0, rng=stream(0, "attack"))
    with pytest.raises(ValueError, match="two or more"):
        noise_linkage(torch.ones(1, 2), noise=0.1, rng=stream(0, "attack"))
