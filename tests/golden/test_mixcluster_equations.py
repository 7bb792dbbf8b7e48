"""What FedAlign releases and mixes, against eqs. (7) to (10) and Algorithms 2 and 3 written out slowly."""

import math
from dataclasses import replace

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.methods.fedalign import ClusteredPool, FedAlign, allocation, cluster_weights, difficulty_score
from fdgsec.methods.fedccrl import interpolate_statistics, normalized
from fdgsec.nn.styles.feature_styles import instance_statistics
from fdgsec.nn.training.augmix import AugMix, Operation, blend_chains, dirichlet
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.slow_alignment import rows_of, slow_softmax, slow_statistics
from tests.support.three_clients import CLOCK, clients, noise, pixels

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_released_rows_are_equations_7_to_9_of_the_normalized_images():
    client = clients()[0]

    shared, state = FedAlign(upload_ratio=0.25).share(
        client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )

    released = shared["statistics"].tensors()
    chosen = [int(row) for row in state["shared_rows"]]
    assert len(chosen) == len(set(chosen)) == 3  # floor(0.25 * 14)
    for row, image in enumerate(chosen):
        for c in range(3):
            values = [(float(x) / 255 - MEAN[c]) / STD[c] for x in client.data.pixels()[image, c].flatten()]
            mu, sigma = slow_statistics(values)
            assert float(released["mean"][row, c]) == pytest.approx(mu, rel=1e-6, abs=1e-6)
            assert float(released["std"][row, c]) == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize(("preset", "complete"), [("fedalign-paper", True), ("fedalign-released", False)])
def test_the_papers_pool_has_the_clients_own_statistics_and_the_released_one_the_others_alone(
    preset: str, complete: bool
):
    """Below eq. (10): "both its own statistics and those collected from other clients, forming the complete pool"."""
    made = build(FedAlign, load_preset(preset)["method"], where="method")
    method = replace(
        made, upload_ratio=0.25, ignore_pool=False
    )  # what arrives, although the code then leaves it unused
    members, sent, states = clients(), {}, {}
    for client in members:
        sent[client.name], states[client.name] = method.share(
            client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", client.name)
        )
    inboxes, _ = method.combine(sent, server={}, clock=CLOCK, rng=simulated_stream(0))

    me, *others = members
    pool = method.received_pool(me, inboxes[me.name], states[me.name], stream(0, "world", "t"))

    expected = []
    for client in [*others, me] if complete else others:
        for image in states[client.name]["shared_rows"].tolist():
            values = [
                [(float(x) / 255 - MEAN[c]) / STD[c] for x in client.data.pixels()[image, c].flatten()]
                for c in range(3)
            ]
            expected.append([number for pair in zip(*map(slow_statistics, values), strict=True) for number in pair])
    assert pool is not None
    assert (
        len(pool.mean)
        == len(expected)
        == sum(math.floor(len(c.data) / 4) for c in ([*others, me] if complete else others))
    )
    for row, numbers in enumerate(expected):
        assert [*pool.mean[row].tolist(), *pool.std[row].tolist()] == pytest.approx(
            numbers, rel=1e-5, abs=1e-5
        )  # float32


def test_mixcluster_is_lines_10_to_21_of_algorithm_2():
    images, other_mean, other_std = noise(4, 3, 5, 6), noise(4, 3, name="m"), noise(4, 3, name="s").abs()
    lam = torch.tensor([0.0, 0.3, 0.7, 1.0])

    made = interpolate_statistics(
        images, instance_statistics(images), (other_mean[..., None, None], other_std[..., None, None]), lam
    )

    for n in range(4):
        for c in range(3):
            channel = [float(x) for x in images[n, c].flatten()]
            mu, sigma = slow_statistics(channel)
            mu_mix = float(lam[n]) * mu + (1 - float(lam[n])) * float(other_mean[n, c])
            sigma_mix = float(lam[n]) * sigma + (1 - float(lam[n])) * float(other_std[n, c])
            expected = [(x - mu) / sigma * sigma_mix + mu_mix for x in channel]
            assert made[n, c].flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_cluster_weights_are_lines_3_to_8_of_algorithm_2():
    rows, labels = noise(7, 6).double(), [0, 1, 0, 2, 1, 0, 2]
    entries = rows_of(rows)
    variances = []
    for entry in entries:
        middle = sum(entry) / 6
        variances.append(sum((x - middle) ** 2 for x in entry) / 5)

    made = cluster_weights(rows, torch.tensor(labels))

    for i in range(7):
        total = sum(variances[j] for j in range(7) if labels[j] == labels[i])
        assert float(made[i]) == pytest.approx(variances[i] / total, rel=1e-12)


@pytest.mark.parametrize("batch", [1, 5, 7, 32, 33])
def test_allocation_is_line_13_of_algorithm_2_with_what_is_left_given_to_the_largest(batch: int):
    sizes = [5, 1, 9, 4, 9, 2]
    floors = [math.floor(batch * size / 30) for size in sizes]
    largest_first = sorted(range(6), key=lambda k: (-sizes[k], k))
    for k in largest_first[: batch - sum(floors)]:
        floors[k] += 1

    assert allocation(torch.tensor(sizes), batch).tolist() == floors
    assert sum(floors) == batch


def test_the_difficulty_score_is_line_17_of_algorithm_2():
    channels = noise(6, 3)
    expected = [1 - max(slow_softmax(row)) for row in rows_of(channels)]

    assert difficulty_score(channels).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("difficulty", ["normalized", "input"])
def test_lambda_is_line_18_of_algorithm_2(difficulty: str):
    method = FedAlign(difficulty="input" if difficulty == "input" else "normalized", sharpness=2.0)
    inputs = normalized(as_float(pixels(5, 16)))
    beta = dirichlet(5, 2, 0.1, stream(0, "world", "t"))[:, 0]

    made = method.ratio(inputs, *instance_statistics(inputs), rng=stream(0, "world", "t"))

    for n in range(5):
        means = [float(inputs[n, c].double().mean()) for c in range(3)] if difficulty == "input" else [0.0, 0.0, 0.0]
        d = 1 - max(slow_softmax(means))
        assert float(made[n]) == pytest.approx(float(beta[n]) / (1 + math.exp(-2 * d)), rel=1e-5)


def test_augmix_is_lines_9_to_13_of_algorithm_3():
    images = pixels(3, 16)
    chains = [[Operation(name="Rotate", magnitude=10.0), Operation(name="Equalize")], [Operation(name="AutoContrast")]]
    original, weights = torch.tensor([0.0, 0.25, 1.0]), torch.tensor([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])

    made = blend_chains(images, original=original, shares=((1 - original)[:, None] * weights).unbind(1), chains=chains)

    chained = [chains[0][1](chains[0][0](images)), chains[1][0](images)]
    for n in range(3):
        m, w = float(original[n]), [float(x) for x in weights[n]]
        augmented = w[0] * chained[0][n].double() + w[1] * chained[1][n].double()
        expected = m * images[n].double() + (1 - m) * augmented
        gap = expected - made[n].double()  # cut off to 8 bits
        assert float(gap.min()) > -1e-3
        assert float(gap.max()) < 1 + 1e-3


def test_the_difficulty_of_algorithm_3_scales_the_originals_share():
    images, method = pixels(4, 16), FedAlign(augmix_difficulty=True, sharpness=3.0)
    expected = []
    for n in range(4):
        means = [float(((images[n, c].double() / 255 - MEAN[c]) / STD[c]).mean()) for c in range(3)]
        expected.append(1 / (1 + math.exp(-3.0 * (1 - max(slow_softmax(means))))))

    made = method.augmix_scale(images)

    assert made is not None
    assert made.tolist() == pytest.approx(expected, rel=1e-5)
    assert FedAlign().augmix_scale(images) is None


def test_a_view_is_mixcluster_and_then_augmix_of_what_it_gives():
    method = FedAlign()
    mean, std = noise(9, 3, name="m"), noise(9, 3, name="s").abs() + 0.5
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    pool = ClusteredPool(mean=mean, std=std, labels=labels, weights=cluster_weights(torch.cat([mean, std], 1), labels))
    images = as_float(pixels(6, 16))

    made = method.augmented_view(images, pool, stream(0, "world", "view"))

    rng = stream(0, "world", "view")
    drawn = pool.rows(6, rng)
    inputs = (images.double() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    own_mean, own_std = inputs.mean((2, 3)), (inputs.flatten(2).var(2) + 1e-6).sqrt()
    lam = dirichlet(6, 2, 0.1, rng)[:, 0].double() / (1 + math.exp(-15 * 2 / 3))
    new_mean = lam[:, None] * own_mean + (1 - lam[:, None]) * mean[drawn]
    new_std = lam[:, None] * own_std + (1 - lam[:, None]) * std[drawn]
    mixed = (inputs - own_mean[..., None, None]) / own_std[..., None, None] * new_std[..., None, None]
    mixed = (mixed + new_mean[..., None, None]) * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    eight_bits = (mixed.clamp(0, 1) * 255).round().to(torch.uint8)
    expected = as_float(AugMix()(eight_bits, rng))
    assert float((made == expected).float().mean()) > 0.99  # float64 may round a value on the edge the other way
