"""FISC against slow transcriptions of its numbered equations."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fisc import (
    FISC,
    Contrast,
    Median,
    Partition,
    Triplet,
    interpolation_style,
    negatives,
    triplet_losses,
)
from fdgsec.nn.networks.classifiers import Classifier, Normalization, build_classifier
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.nn.training.batches import Batch, batch_of
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.slow_finch import slow_finch, two_blobs

CLOCK = Clock(round=0, rounds=1, participants=("client:0",))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])


@pytest.fixture(scope="module")
def client() -> Client:
    data: DomainDataset = shapes(image_size=32, per_domain=12)
    return Client(name="client:0", data=data.subset(data.domains != 3))  # a mixture of three domains


def random(*shape: int, name: str = "numbers") -> Tensor:
    return torch.rand(shape, generator=stream(0, "world", name), dtype=torch.float64)


def pooled(maps: Sequence[Tensor], channel: int) -> tuple[float, float]:
    """Eq. (2) for one channel: mean and std over all pixels of all images of a cluster, eps inside the root."""
    values = [value for image in maps for row in image[channel].tolist() for value in row]
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)


def test_a_clients_style_is_the_average_of_equation_2_over_the_clusters_of_equation_1(client: Client):
    maps = encoder_named("mini").encode(as_float(client.data.pixels())).double()
    image_styles = torch.cat([maps.mean((2, 3)), (maps.var((2, 3)) + 1e-5).sqrt()], dim=1)
    labels = slow_finch(image_styles)[-1]
    clusters = [[maps[i] for i, label in enumerate(labels) if label == j] for j in range(max(labels) + 1)]

    shared, _ = FISC().share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    style = shared["style"]
    assert isinstance(style, StyleStatistics)
    assert len(clusters) >= 2
    for channel in (0, 17, 255):
        found = [pooled(cluster, channel) for cluster in clusters]
        mean, std = (sum(values) / len(clusters) for values in zip(*found, strict=True))
        assert style.mean[channel].item() == pytest.approx(mean, rel=1e-5, abs=1e-4)  # sent as float32
        assert style.std[channel].item() == pytest.approx(std, rel=1e-5)


def test_the_released_codes_sigma_is_that_of_the_clusters_mean_moments(client: Client):
    maps = encoder_named("mini").encode(as_float(client.data.pixels())).double()
    image_styles = torch.cat([maps.mean((2, 3)), (maps.var((2, 3)) + 1e-5).sqrt()], dim=1)
    labels = torch.tensor(slow_finch(image_styles)[-1])
    first = torch.stack([maps[labels == j].mean((0, 2, 3)) for j in labels.unique()]).mean(0)
    second = torch.stack([maps[labels == j].square().mean((0, 2, 3)) for j in labels.unique()]).mean(0)

    shared, _ = FISC(sigma="mixture").share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    expected = (second - first.square() + 1e-5).sqrt()
    torch.testing.assert_close(shared["style"].tensors()["std"].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("partition", ["first", "last"])
@pytest.mark.parametrize("median", ["lower", "mean_of_middle"])
def test_the_interpolation_style_is_the_median_of_the_cluster_means_of_equation_3(partition: Partition, median: Median):
    middle = statistics.median_low if median == "lower" else statistics.median
    for number in range(20):
        means, stds, _ = two_blobs(number, channels=8)
        styles = torch.cat([means, stds], dim=1).double()
        labels = slow_finch(styles)[0 if partition == "first" else -1]
        members = [
            [row for row, label in zip(styles, labels, strict=True) if label == j] for j in range(max(labels) + 1)
        ]
        averages = [[sum(row[i].item() for row in rows) / len(rows) for i in range(16)] for rows in members]

        made = interpolation_style(means.double(), stds.double(), partition=partition, median=median)

        expected = [middle([average[i] for average in averages]) for i in range(16)]
        torch.testing.assert_close(torch.cat([made.mean, made.std]), torch.tensor(expected).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("preset", "which", "middle"), [
    ("fisc-paper", -1, statistics.median), ("fisc-released", 0, statistics.median_low),
])  # fmt: skip
def test_a_presets_server_takes_the_papers_or_the_codes_partition_and_median(
    preset: str, which: int, middle: Callable[[list[float]], float]
):
    method = build(FISC, load_preset(preset)["method"], where="method")
    even = 0
    for number in range(20):
        means, stds, _ = two_blobs(number, channels=8)
        rows = [[*m, *s] for m, s in zip(means.tolist(), stds.tolist(), strict=True)]
        labels = slow_finch(torch.tensor(rows).double())[which]
        clusters = [
            [row for row, label in zip(rows, labels, strict=True) if label == j] for j in range(max(labels) + 1)
        ]
        averages = [[sum(row[i] for row in members) / len(members) for i in range(16)] for members in clusters]
        uploads = {
            f"client:{i}": {"style": StyleStatistics(mean=means[i].float(), std=stds[i].float())}
            for i in range(len(rows))
        }

        sent, _ = method.combine(uploads, server={}, clock=CLOCK, rng=simulated_stream(0))

        even += len(clusters) % 2 == 0
        style = sent["client:0"]["style"]
        assert isinstance(style, InterpolationStyle)
        expected = torch.tensor([middle([average[i] for average in averages]) for i in range(16)])
        torch.testing.assert_close(torch.cat([style.mean, style.std]), expected, rtol=1e-5, atol=1e-6)  # float32
    assert even >= 3  # where the two medians differ


def test_a_transferred_image_is_equation_4_decoded(client: Client):
    style = InterpolationStyle(mean=random(256, name="mean").float() * 30, std=random(256, name="std").float() * 20)
    pixels = client.data.pixels()[:2]
    content = encoder_named("mini").encode(as_float(pixels))
    adain = torch.empty_like(content)
    for image in range(2):
        for channel in range(256):
            s = content[image, channel]
            sigma = (((s - s.mean()) ** 2).sum() / (s.numel() - 1) + 1e-5).sqrt()
            adain[image, channel] = style.std[channel] * ((s - s.mean()) / sigma) + style.mean[channel]

    whole, half = FISC(alpha=1.0).transfer(pixels, style), FISC(alpha=0.5).transfer(pixels, style)

    for made, features in ((whole, adain), (half, 0.5 * adain + 0.5 * content)):
        drawn = encoder_named("mini").decode(features)
        assert float((as_float(made) - drawn).abs().max()) <= 0.5 / 255 + 1e-4  # rounding to 8 bits
    assert not torch.equal(whole, half)


def test_the_released_network_gets_what_the_decoder_drew_beyond_0_and_1(client: Client):
    method = build(FISC, {**load_preset("fisc-released")["method"], "encoder": "mini"}, where="method")
    style = InterpolationStyle(mean=random(256, name="mean").float() * 30, std=random(256, name="std").float() * 20)
    pixels = client.data.pixels()[:2]
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    content = encoder_named("mini").encode((pixels.float() / 255 - mean) / std)
    center, spread = content.mean((2, 3), keepdim=True), (content.var((2, 3), keepdim=True) + 1e-5).sqrt()
    adain = style.std.view(-1, 1, 1) * (content - center) / spread + style.mean.view(-1, 1, 1)
    drawn = encoder_named("mini").decode(0.5 * adain + 0.5 * content, clamp=False)

    state: dict[str, Tensor] = {}
    plan = TrainingPlan(batch_size=2, crop=None, flip=0.0)
    whole, _ = replace(method, plan=plan).training_set(
        replace(client, data=client.data.subset(torch.arange(2))),
        inbox={"style": style},
        state=state,
        rng=stream(0, "world", "t"),
    )
    batch = batch_of(
        whole,
        torch.arange(2),
        plan,
        stream(0, "world", "t"),
        device=torch.device("cpu"),
        layout=torch.contiguous_format,
    )

    assert batch.partners is not None
    received = Normalization()(batch.partners)  # the first thing that the network does
    torch.testing.assert_close(received, drawn, rtol=1e-4, atol=1e-4)  # float32, denormalized and normalized again
    assert float(drawn.min()) < 0  # no picture: clamping to [0, 1] would change it
    assert float((received - drawn.clamp(0, 1)).norm() / drawn.norm()) > 0.05


def test_the_printed_triplet_loss_is_a_term_of_equation_5():
    anchor, positive, negative = (random(4, 6, name=name) for name in ("a", "p", "n"))
    expected = [
        sum((a - p) ** 2 for a, p in zip(anchor[i].tolist(), positive[i].tolist(), strict=True))
        - sum((a - n) ** 2 for a, n in zip(anchor[i].tolist(), negative[i].tolist(), strict=True))
        + 0.3
        for i in range(4)
    ]

    losses = triplet_losses(anchor, positive, negative, margin=0.3, form="printed")

    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_the_default_triplet_loss_is_that_of_the_released_code():
    anchor, positive, negative = (random(6, 5, name=name) - 0.5 for name in ("a", "p", "n"))
    unit = [features / features.norm(dim=1, keepdim=True) for features in (anchor, positive, negative)]
    theirs = nn.TripletMarginLoss(margin=0.3, p=2, eps=1e-7, reduction="none")(*unit)

    losses = triplet_losses(anchor, positive, negative, margin=0.3, form="hinge")

    assert 0 < int((losses > 0).sum()) < 6
    torch.testing.assert_close(losses, theirs, rtol=0, atol=1e-6)  # theirs adds 1e-7 to every difference


def network() -> Classifier:
    """A float64 classifier whose batch norm does not train, with statistics that are not the identity."""
    model = build_classifier("tiny", 3, rng=stream(0, "world", "network")).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * random(module.num_features, name="running mean")
            module.running_var = 0.1 + 0.1 * random(module.num_features, name="running var")
    return model


def batch() -> Batch:
    images, partners = random(8, 3, 32, 32, name="images"), random(8, 3, 32, 32, name="partners")
    return Batch(images=images, labels=LABELS, records=torch.arange(8), partners=partners)


def contrast(triplet: Triplet = "hinge", regularizer: Literal["mean", "sum"] = "mean") -> Contrast:
    return Contrast(
        gamma1=0.75, gamma2=0.2, margin=0.3, triplet=triplet, regularizer=regularizer, rng=stream(0, "world", "draws")
    )


def five_passes(model: Classifier, given: Batch, picked: Tensor, triplet: str, regularizer: str) -> Tensor:
    """Eq. (7) as the released code computes it: every term from passes of its own, image by image."""
    assert given.partners is not None
    f, f_p = model.features(given.images), model.features(given.partners)
    entropy = [-model.head(f[i]).log_softmax(0)[given.labels[i]] for i in range(len(f))]
    squares = [(f[i] ** 2 + f_p[i] ** 2).sum() / (1 if regularizer == "sum" else f.shape[1]) for i in range(len(f))]
    triplets = []
    for i in range(len(f)):
        a, p, n = (
            model.features(images)[0]
            for images in (given.images[[i]], given.partners[[i]], given.partners[[int(picked[i])]])
        )
        if triplet == "printed":
            triplets.append(((a - p) ** 2).sum() - ((a - n) ** 2).sum() + 0.3)
        else:
            a, p, n = (z / (z**2).sum().sqrt() for z in (a, p, n))
            triplets.append(torch.clamp(((a - p) ** 2).sum().sqrt() - ((a - n) ** 2).sum().sqrt() + 0.3, min=0.0))
    mean = [torch.stack(terms).mean() for terms in (entropy, triplets, squares)]
    return mean[0] + 0.75 * mean[1] + 0.2 * mean[2]


@pytest.mark.parametrize("triplet", ["hinge", "printed"])
@pytest.mark.parametrize("regularizer", ["mean", "sum"])
def test_two_passes_give_the_loss_and_the_gradient_of_equation_7_in_five(
    triplet: Triplet, regularizer: Literal["mean", "sum"]
):
    model, given = network(), batch()
    picked = negatives(LABELS, stream(0, "world", "draws"))
    parameters = list(model.parameters())

    slow = five_passes(model, given, picked, triplet, regularizer)
    fast = contrast(triplet, regularizer)(given, model).mean()

    assert fast.dtype == torch.float64
    assert fast.item() == pytest.approx(slow.item(), rel=1e-12)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(slow, parameters)])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(fast, parameters)])
    assert float((gradient - expected).norm() / expected.norm()) < 1e-12


def test_the_objective_makes_two_passes():
    model, passes = network(), []
    model.body.register_forward_hook(lambda module, given, made: passes.append(len(made)))

    contrast()(batch(), model)

    assert passes == [8, 8]


def test_the_printed_objective_with_the_papers_coefficients_falls_without_bound():
    f = torch.eye(3, dtype=torch.float64)[LABELS]  # every class its own direction, transferred images like originals
    other = torch.eye(3, dtype=torch.float64)[(LABELS + 1) % 3]

    def terms(length: float) -> float:
        triplet = triplet_losses(length * f, length * f, length * other, margin=0.3, form="printed")
        return float(0.75 * triplet.mean() + 0.2 * 2 * length**2)  # eq. (6) summed over the coordinates

    assert terms(10) < terms(1) < 0
    assert terms(100) < -10_000  # cross-entropy is near 0 for long features of different directions
