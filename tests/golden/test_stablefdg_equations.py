"""StableFDG's style half against slow transcriptions, in float64 loops, of section 3.1 and appendix G of its paper."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.method import Client
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.feature_styles import (
    apply_style,
    balancing_additions,
    greedy_seeds,
    mixed_statistics,
    oversampled_rows,
)
from fdgsec.nn.training.batches import Batch
from fdgsec.runtime.random_streams import integer_seed
from tests.support.stablefdg_setting import CLOCK, drawn, learning, maps, start, three_clients

EPS = 1e-6
PAPER = StableFDG(unbiased=False, cosine=False)


@pytest.fixture(scope="module")
def client() -> Client:
    return three_clients()[0]


def mu(s: Tensor) -> list[float]:
    """Eq. (1), mean, of one map (C, H, W)."""
    height, width = s.shape[1:]
    return [
        sum(float(s[c, h, w]) for h in range(height) for w in range(width)) / (height * width) for c in range(len(s))
    ]


def sigma(s: Tensor) -> list[float]:
    """Eq. (1), standard deviation, with eps inside the root."""
    height, width = s.shape[1:]
    means = mu(s)
    return [
        math.sqrt(
            sum((float(s[c, h, w]) - means[c]) ** 2 for h in range(height) for w in range(width)) / (height * width)
            + EPS
        )
        for c in range(len(s))
    ]


def adain(s: Tensor, means: list[float], stds: list[float]) -> Tensor:
    """Section 3.1: t (s - mu(s)) / sigma(s) + m, channel by channel."""
    own_means, own_stds = mu(s), sigma(s)
    return torch.stack([(s[c] - own_means[c]) / own_stds[c] * stds[c] + means[c] for c in range(len(s))])


def average(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def variance(rows: list[list[float]]) -> list[float]:
    """Eq. (2), right: about the average, by rho_n."""
    center = average(rows)
    return [sum((center[c] - row[c]) ** 2 for row in rows) / len(rows) for c in range(len(center))]


def stage1(network: Classifier, images: Tensor) -> Tensor:
    return network.body.get_submodule("stage1")(network.body.get_submodule("stem")(network.normalize(images)))


def test_shared_styles_are_equations_1_to_3(client: Client):
    few = Client(name="client:0", data=client.data.subset(torch.arange(4)))
    model = start(PAPER)
    with torch.no_grad():
        features = stage1(model.module().eval(), as_float(few.data.pixels())).double()

    shared, _ = PAPER.share(few, model=model, state={}, clock=CLOCK, rng=drawn("share"))

    means, stds = [mu(s) for s in features], [sigma(s) for s in features]
    phi = shared["distribution"]
    assert isinstance(phi, StyleDistribution)
    for found, expected in (
        (phi.mean, average(means)),
        (phi.std, average(stds)),
        (phi.mean_spread, variance(means)),
        (phi.std_spread, variance(stds)),
    ):
        assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_a_shifted_map_is_the_formula_of_step_2():
    received = StyleDistribution(
        mean=torch.tensor([1.0, -2.0, 0.5]), std=torch.tensor([0.3, 2.0, 1.0]),
        mean_spread=torch.zeros(3), std_spread=torch.zeros(3),
    )  # fmt: skip
    laws = PAPER.new_styles({"distribution.0": received}, {})
    assert laws is not None
    given = maps(6, channels=3, side=4).double()

    made = PAPER.shift_styles(given, laws, drawn("shift"))

    moved = [i for i in range(6) if not torch.equal(made[i], given[i])]
    assert len(moved) == 3  # B/2
    for i in moved:
        expected = adain(given[i], received.mean.tolist(), received.std.tolist())
        assert torch.allclose(made[i], expected, rtol=0, atol=1e-6)  # received in float32


def test_new_styles_follow_the_normal_law_of_the_received_center_and_variance():
    received = StyleDistribution(
        mean=torch.tensor([1.0, -2.0]), std=torch.tensor([5.0, 7.0]),
        mean_spread=torch.tensor([0.25, 4.0]), std_spread=torch.tensor([0.01, 1.0]),
    )  # fmt: skip
    laws = PAPER.new_styles({"distribution.0": received}, {})
    assert laws is not None

    mean, std = (values.flatten(1).double() for values in laws.drawn(40000, drawn("laws")))

    for found, center, spread in (
        (mean, received.mean, received.mean_spread),
        (std, received.std, received.std_spread),
    ):
        error = spread.double().sqrt() / 200  # one standard error of the mean of 40,000
        assert bool(((found.mean(0) - center).abs() < 5 * error).all())
        assert torch.allclose(found.var(0), spread.double(), rtol=0.05)  # seven standard errors


def slow_seeds(points: Tensor, count: int, rng: torch.Generator) -> list[int]:
    """Greedy k-means++ with the same draws, distances recomputed from scratch in every step."""
    chosen = [int(torch.randint(len(points), (1,), generator=rng))]
    for _ in range(count - 1):
        nearest = [min(float(((p - points[c]) ** 2).sum()) for c in chosen) for p in points]
        weights = torch.tensor(nearest, dtype=torch.float64)
        candidates = torch.multinomial(weights, 2 + int(math.log(count)), replacement=True, generator=rng).tolist()
        potentials = [
            sum(min(near, float(((p - points[candidate]) ** 2).sum())) for near, p in zip(nearest, points, strict=True))
            for candidate in candidates
        ]
        chosen.append(candidates[potentials.index(min(potentials))])
    return chosen


@pytest.mark.parametrize("number", range(5))
def test_selection_is_greedy_kmeans_plus_plus(number: int):
    points = torch.randn(12, 4, generator=drawn("points", number)).double()

    assert greedy_seeds(points, 6, drawn("seeds", number)).tolist() == slow_seeds(points, 6, drawn("seeds", number))


@pytest.mark.parametrize("number", range(20))
def test_oversampling_is_as_balanced_as_can_be(number: int):
    counts = torch.randint(1, 9, (5,), generator=drawn("counts", number))
    size = int(torch.randint(0, 40, (1,), generator=drawn("size", number)))
    filled = counts.tolist()
    for _ in range(size):  # appendix G, one sample at a time, to a class that has the fewest
        filled[filled.index(min(filled))] += 1

    additions = balancing_additions(counts, size, drawn("fill", number))

    assert int(additions.sum()) == size
    assert int(additions.min()) >= 0
    assert sorted((counts + additions).tolist()) == sorted(filled)


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_explored_maps_are_equations_4_and_5(level: float):
    method = replace(PAPER, exploration=level, mix_alpha=None)
    given, labels = (
        maps(4, channels=3, side=4).double(),
        torch.tensor([0, 0, 0, 1]),
    )  # so that both additions repeat the fourth
    center_mean, center_std = average([mu(s) for s in given]), average([sigma(s) for s in given])

    made, found, stds = method.explore_styles(given, labels, drawn("rows"), size=2)

    own_mean, own_std = mu(given[3]), sigma(given[3])
    new_mean = [m + level * (m - c) for m, c in zip(own_mean, center_mean, strict=True)]
    new_std = [s + level * (s - c) for s, c in zip(own_std, center_std, strict=True)]
    assert found.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.allclose(made[:4], given, rtol=0, atol=1e-12)
    assert torch.allclose(made[4:], adain(given[3], new_mean, new_std).expand(2, 3, 4, 4), rtol=0, atol=1e-10)
    assert torch.allclose(stds[0].flatten(), torch.tensor(new_std, dtype=torch.float64), rtol=0, atol=1e-12)


def test_mixed_styles_are_step_5():
    given = maps(5, channels=3, side=4).double()
    means, stds = [mu(s) for s in given], [sigma(s) for s in given]
    rng = drawn("mix")
    order = torch.randperm(5, generator=rng).tolist()
    weights = np.random.default_rng(integer_seed(rng)).beta(0.1, 0.1, 5).tolist()

    mean = torch.tensor(means, dtype=torch.float64)[..., None, None]
    std = torch.tensor(stds, dtype=torch.float64)[..., None, None]
    new_mean, new_std = mixed_statistics(mean, std, drawn("mix"), alpha=0.1)
    made = apply_style(given, mean, std, new_mean=new_mean, new_std=new_std)

    for i, (j, lam) in enumerate(zip(order, weights, strict=True)):
        mixed_mean = [lam * own + (1 - lam) * other for own, other in zip(means[i], means[j], strict=True)]
        mixed_std = [lam * own + (1 - lam) * other for own, other in zip(stds[i], stds[j], strict=True)]
        assert torch.allclose(made[i], adain(given[i], mixed_mean, mixed_std), rtol=0, atol=1e-12)


def test_explored_and_mixed_maps_are_one_adain_to_styles_mixed_with_their_sign():
    """Steps 3 to 5 together, as released: stds below 0 are mixed as they are, and turn content over."""
    method = replace(PAPER, exploration=6.0)
    given, labels = maps(4, channels=3, side=4).double(), torch.tensor([0, 0, 0, 1])
    rng = drawn("whole")
    assert oversampled_rows(labels, 2, rng).tolist() == [3, 3]
    order = torch.randperm(6, generator=rng).tolist()
    weights = np.random.default_rng(integer_seed(rng)).beta(0.1, 0.1, 6).tolist()
    means, stds = [mu(s) for s in given], [sigma(s) for s in given]
    center_mean, center_std = average(means), average(stds)
    means += 2 * [[7 * m - 6 * c for m, c in zip(means[3], center_mean, strict=True)]]
    stds += 2 * [[7 * s - 6 * c for s, c in zip(stds[3], center_std, strict=True)]]

    made, found, explored = method.explore_styles(given, labels, drawn("whole"), size=2)

    assert found.tolist() == [0, 0, 0, 1, 1, 1]
    assert 0 < int((explored < 0).sum()) < explored.numel()
    for i, (j, lam) in enumerate(zip(order, weights, strict=True)):
        mixed_mean = [lam * own + (1 - lam) * other for own, other in zip(means[i], means[j], strict=True)]
        mixed_std = [lam * own + (1 - lam) * other for own, other in zip(stds[i], stds[j], strict=True)]
        assert torch.allclose(made[i], adain(given[min(i, 3)], mixed_mean, mixed_std), rtol=0, atol=1e-10)


@pytest.mark.medium
def test_a_step_of_the_style_half_is_steps_2_to_4_at_the_first_stage_and_the_network_behind(client: Client):
    """One batch, everything certain to happen: half is shifted to a known style, class 1 is explored twice."""
    method = replace(
        PAPER, attention=False, probability=1.0, explore_at=("stage1",), oversampling=0.5, mix_alpha=None, selection="random"
    )  # fmt: skip
    records = torch.tensor([0, 7, 0, 1])  # classes 0, 0, 0, 1
    labels, images = client.data.labels[records], as_float(client.data.pixels(records))
    received = StyleDistribution(
        mean=torch.full((32,), 0.7), std=torch.full((32,), 0.4), mean_spread=torch.zeros(32), std_spread=torch.zeros(32)
    )
    objective, network = learning(method, client, inbox={"distribution.0": received})
    twin = start(method).module().train()
    seen: list[Tensor] = []
    network.body.get_submodule("stage2").register_forward_hook(lambda module, given, made: seen.append(given[0]))

    found = objective(Batch(images=images, labels=labels, records=records), network)

    with torch.no_grad():
        early = stage1(twin, images).double()
    reached = seen[0].detach().double()
    shifted = [adain(s, [0.7] * 32, [0.4] * 32) for s in early]
    moved = [i for i in range(4) if not torch.allclose(reached[i], early[i], rtol=0, atol=1e-4)]
    after = torch.stack([shifted[i] if i in moved else early[i] for i in range(4)])
    center_mean, center_std = average([mu(s) for s in after]), average([sigma(s) for s in after])
    new_mean = [4 * m - 3 * c for m, c in zip(mu(after[3]), center_mean, strict=True)]
    new_std = [4 * s - 3 * c for s, c in zip(sigma(after[3]), center_std, strict=True)]
    explored = adain(after[3], new_mean, new_std)
    whole = torch.cat([after, explored.expand(2, *explored.shape)]).float()
    assert len(moved) == 2
    assert torch.allclose(reached, whole.double(), rtol=0, atol=1e-3)  # stds down to sqrt(eps) = 1e-3 divide
    for name in ("stage2", "stage3", "stage4"):
        whole = twin.body.get_submodule(name)(whole)
    expected = functional.cross_entropy(twin.head(twin.neck(whole)), torch.tensor([0, 0, 0, 1, 1, 1]), reduction="none")
    assert torch.allclose(found.detach(), expected.detach(), rtol=0, atol=1e-3)
