"""FedAlign's and FedCCRL's losses against slow transcriptions of the paper's numbered equations."""

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import Discriminator, FedAlign, discriminator_network
from fdgsec.methods.fedccrl import CrossClientAlignment, FedCCRL
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.losses import inconsistency, jensen_shannon, supervised_contrastive
from fdgsec.runtime.random_streams import stream
from tests.support.slow_alignment import rows_of, slow_contrast, slow_cross_entropy, slow_jensen_shannon, slow_softmax
from tests.support.three_clients import noise, pixels


@pytest.mark.parametrize("include_self", [False, True])
def test_supervised_contrast_is_equation_17(include_self: bool):
    features, labels = noise(9, 5), [0, 1, 0, 2, 1, 0, 3, 2, 2]  # 3 stands alone

    made = supervised_contrastive(features, torch.tensor(labels), temperature=0.1, include_self=include_self)

    assert made.tolist() == pytest.approx(
        slow_contrast(rows_of(features), labels, 0.1, include_self=include_self), rel=1e-4, abs=1e-5
    )


def test_consistency_is_equation_21():
    original, first, second = (noise(4, 6, name=name) for name in ("z", "z1", "z2"))

    summed = inconsistency(original, [first, second], summed=True)

    for n in range(4):
        squares = [
            sum((float(a) - float(b)) ** 2 for a, b in zip(original[n], view[n], strict=True))
            for view in (first, second)
        ]
        assert float(summed[n]) == pytest.approx(sum(squares) / 2, rel=1e-5)
    assert torch.allclose(inconsistency(original, [first, second]), summed / 6, rtol=1e-6)


def test_the_divergence_of_predictions_is_equation_23():
    logits = [3 * noise(5, 7, name=name) for name in ("y", "y1", "y2")]

    made = jensen_shannon(logits)

    for n in range(5):
        assert float(made[n]) == pytest.approx(
            slow_jensen_shannon([slow_softmax(rows_of(given)[n]) for given in logits]), rel=1e-4
        )


@pytest.mark.parametrize("sums", [False, True])
def test_the_local_loss_is_equation_24(sums: bool):
    method = FedAlign(sums=sums, consistency=0.3, contrast=0.2, agreement=0.4)
    z, z1, z2 = (noise(6, 5, name=name) for name in ("z", "z1", "z2"))
    y, y1, y2 = (noise(6, 4, name=name) for name in ("y", "y1", "y2"))
    labels = [0, 1, 2, 0, 1, 0]

    made = float(method.losses([z, z1, z2], [y, y1, y2], torch.tensor(labels)).mean())

    classification = sum(
        slow_cross_entropy(row, label)
        for given in (y, y1, y2)
        for row, label in zip(rows_of(given), labels, strict=True)
    ) / (3 * 6)
    pairs = [slow_contrast(rows_of(torch.cat([view, z])), labels * 2, 0.1, include_self=False) for view in (z1, z2)]
    contrast = sum(sum(pair) if sums else sum(pair) / 12 for pair in pairs) / 2  # eqs. 18 to 20
    squares = [float((view.double() - z.double()).square().sum()) for view in (z1, z2)]
    consistency = sum(squares) / 2 / (1 if sums else 6 * 5)
    agreement = sum(slow_jensen_shannon([slow_softmax(rows_of(g)[n]) for g in (y, y1, y2)]) for n in range(6)) / 6
    assert made == pytest.approx(classification + 0.2 * contrast + 0.3 * consistency + 0.4 * agreement, rel=1e-4)


def test_fedccrl_adds_up_three_cross_entropies_and_a_tenth_of_both_alignment_terms():
    z, z1, z2 = (noise(4, 5, name=name) for name in ("z", "z1", "z2"))
    y, y1, y2 = (noise(4, 3, name=name) for name in ("y", "y1", "y2"))
    labels = [0, 1, 1, 2]

    made = float(FedCCRL().losses([z, z1, z2], [y, y1, y2], torch.tensor(labels)).mean())

    classification = sum(
        sum(slow_cross_entropy(row, label) for row, label in zip(rows_of(given), labels, strict=True)) / 4
        for given in (y, y1, y2)
    )
    pairs = [slow_contrast(rows_of(torch.cat([view, z])), labels * 2, 0.1, include_self=False) for view in (z1, z2)]
    agreement = sum(slow_jensen_shannon([slow_softmax(rows_of(g)[n]) for g in (y, y1, y2)]) for n in range(4)) / 4
    expected = classification + 0.1 * sum(sum(pair) / 8 for pair in pairs) / 2 + 0.1 * agreement
    assert made == pytest.approx(expected, rel=1e-4)


def test_the_discriminators_loss_and_step_are_equations_12_to_14():
    features = [noise(4, 6, name=name) for name in ("z", "z1", "z2")]
    made, twin = (discriminator_network(6, stream(0, "world", "d")) for _ in range(2))
    judge = Discriminator(network=made, optimizer=torch.optim.SGD(made.parameters(), lr=0.5), reversal=0.0)

    judge.oppose(features)

    logits = twin(torch.cat(features)).flatten()
    loss = torch.zeros(())
    for i in range(12):
        domain = 0.0 if i < 4 else 1.0
        sigma = 1 / (1 + torch.exp(-logits[i]))
        loss = loss - (domain * torch.log(sigma) + (1 - domain) * torch.log(1 - sigma)) / 12
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    for stepped, before, slope in zip(made.parameters(), twin.parameters(), slopes, strict=True):
        assert torch.allclose(stepped, before - 0.5 * slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("views", ["independent", "sequential"])
def test_features_are_equations_3_and_5_in_three_passes_of_their_own(views: str):
    method = FedAlign(views="sequential" if views == "sequential" else "independent")
    bank = StyleBank(mean=noise(20, 3, name="m"), std=noise(20, 3, name="s").abs(), owner=torch.zeros(20).long())
    pool = method.build_pool(bank, stream(0, "world", "pool"))
    network = build_classifier("tiny", 4, rng=stream(0, "world", "network")).train()
    images, labels = as_float(pixels(6, 16)), torch.tensor([0, 1, 2, 0, 1, 0])
    batch = Batch(images=images, labels=labels, records=torch.arange(6))

    made = CrossClientAlignment(method=method, pool=pool, rng=stream(0, "world", "views"))(batch, network)

    rng = stream(0, "world", "views")
    first = method.augmented_view(images, pool, rng)
    second = method.augmented_view(first if views == "sequential" else images, pool, rng)
    twin = build_classifier("tiny", 4, rng=stream(0, "world", "network")).train()
    found = [twin.features(seen) for seen in (images, first, second)]  # each batch normalized by itself
    assert torch.allclose(made, method.losses(found, [twin.head(z) for z in found], labels), rtol=1e-5)
    assert not torch.equal(first, second)
