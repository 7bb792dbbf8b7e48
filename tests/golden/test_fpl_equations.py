"""FPL's losses and prototypes against loops over records, prototypes and clients."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import Prototypes
from fdgsec.methods.fpl import ClassMeans, PrototypeLoss, cluster_prototypes
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch, TrainingSet, epoch_of_batches
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.slow_finch import slow_finch

T = 0.02


def classifier(classes: int = 4, records: int = 12) -> Classifier:
    network = build_classifier("tiny", classes, rng=stream(0, "world", "network")).eval()
    network.add_module("class_means", ClassMeans(classes=classes, width=network.features_width, records=records))
    return network


def images(count: int, name: str) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=stream(0, "world", name))


def prototypes(classes: list[int], width: int) -> Prototypes:
    features = torch.rand(len(classes), width, generator=stream(0, "world", "prototypes"))
    return Prototypes(features=features, classes=torch.tensor(classes))


def cosine(first: list[float], second: list[float]) -> float:
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


def slow_loss(feature: list[float], label: int, given: Prototypes) -> float:
    """-log(sum of exp(cos / t) over the class's prototypes / over all) + MSE to the mean of the class's prototypes."""
    rows, classes = given.features.double().tolist(), given.classes.tolist()
    own = [row for row, name in zip(rows, classes, strict=True) if name == label]
    if not own:
        return 0.0
    contrast = -math.log(
        sum(math.exp(cosine(feature, row) / T) for row in own) / sum(math.exp(cosine(feature, row) / T) for row in rows)
    )
    center = [sum(values) / len(own) for values in zip(*own, strict=True)]
    return contrast + sum((f - c) ** 2 for f, c in zip(feature, center, strict=True)) / len(feature)


@pytest.mark.parametrize("classes", [[0, 0, 1, 3], [2], [1, 1, 1], [0, 1, 2, 3]])
def test_losses_are_cross_entropy_plus_contrast_and_consistency(classes: list[int]):
    model, labels = classifier(), torch.tensor([0, 1, 2, 3, 0, 1])
    batch = Batch(images=images(6, "batch"), labels=labels, records=torch.arange(6))
    given = prototypes(classes, model.features_width)

    losses = PrototypeLoss(given, T)(batch, model)

    features = model.features(batch.images).detach().double()
    plain = functional.cross_entropy(model.head(features.float()).detach().double(), labels, reduction="none")
    slow = [float(ce) + slow_loss(f.tolist(), int(y), given) for ce, f, y in zip(plain, features, labels, strict=True)]
    assert losses.tolist() == pytest.approx(slow, rel=1e-4, abs=1e-5)  # cosines over .02 in float32


def test_in_half_precision_only_the_networks_own_passes_are_half_precise():
    model, labels = classifier(), torch.tensor([0, 1, 2, 3, 0, 1])
    batch = Batch(images=images(6, "batch"), labels=labels, records=torch.arange(6))
    given = prototypes([0, 0, 1, 2, 3], model.features_width)

    with torch.autocast("cpu", torch.bfloat16):
        losses = PrototypeLoss(given, T)(batch, model)
        features = model.features(batch.images).detach()
        plain = functional.cross_entropy(model.head(features).detach().float(), labels, reduction="none")

    slow = [
        float(ce) + slow_loss(f.double().tolist(), int(y), given)
        for ce, f, y in zip(plain, features, labels, strict=True)
    ]
    assert losses.tolist() == pytest.approx(slow, rel=1e-4, abs=1e-5)  # cosines of eight bits over .02 are off by .1


def test_a_loss_without_prototypes_is_cross_entropy():
    model = classifier()
    batch = Batch(images=images(5, "batch"), labels=torch.tensor([0, 1, 2, 3, 0]), records=torch.arange(5))

    losses = PrototypeLoss(None, T)(batch, model)

    assert torch.equal(losses, functional.cross_entropy(model(batch.images), batch.labels, reduction="none"))


def test_no_gradient_is_lost_or_undefined_where_a_class_has_no_prototype():
    model = classifier()
    batch = Batch(images=images(4, "batch"), labels=torch.tensor([0, 1, 2, 3]), records=torch.arange(4))

    PrototypeLoss(prototypes([2, 2], model.features_width), T)(batch, model).mean().backward()

    slopes = [value.grad for value in model.parameters()]
    assert all(slope is not None and bool(torch.isfinite(slope).all()) for slope in slopes)


def test_class_means_are_those_of_the_last_pass():
    model, plan = classifier(records=12), TrainingPlan(batch_size=5, crop=None, flip=0.0)
    data = TrainingSet(images=(images(12, "set") * 255).to(torch.uint8), labels=torch.arange(12) % 3)
    loss, rng = PrototypeLoss(None, T), stream(0, "world", "epochs")

    seen: dict[int, tuple[int, list[float]]] = {}
    for epoch in range(2):
        for batch in epoch_of_batches(data, plan, rng, device=torch.device("cpu"), layout=torch.contiguous_format):
            with torch.no_grad():
                model.get_parameter("body.stem.0.weight").mul_(1.05 + epoch)
                for record, label, row in zip(batch.records, batch.labels, model.features(batch.images), strict=True):
                    seen[int(record)] = (int(label), row.double().tolist())
            loss(batch, model)

    means = model.get_submodule("class_means")
    assert isinstance(means, ClassMeans)
    made = means.prototypes()
    assert made.classes.tolist() == [0, 1, 2]  # class 3 has no image
    for label, found in enumerate(made.features.double()):
        rows = [row for name, row in seen.values() if name == label]
        assert found.tolist() == pytest.approx(
            [sum(v) / len(rows) for v in zip(*rows, strict=True)], rel=1e-4, abs=1e-6
        )


def test_cluster_prototypes_are_the_means_of_finchs_last_partition_per_class():
    rng = stream(0, "world", "clients")
    centers = {name: torch.randn(2, 8, generator=rng) * 3 for name in (0, 1)}
    received = {
        f"client:{i}": Prototypes(
            features=torch.stack([centers[name][i % 2] + 0.1 * torch.randn(8, generator=rng) for name in (0, 1)]),
            classes=torch.tensor([0, 1]),
        )
        for i in range(16)
    }
    lonely = torch.randn(1, 8, generator=rng)
    received["client:16"] = Prototypes(features=lonely, classes=torch.tensor([5]))

    made = cluster_prototypes(received)

    for name in (0, 1):
        rows = torch.stack([sent.features[name].double() for key, sent in received.items() if key != "client:16"])
        partition = slow_finch(rows)[-1]
        assert len(slow_finch(rows)) > 1  # the last partition is not the first
        wanted = sorted(
            rows[[j for j, label in enumerate(partition) if label == cluster]].mean(0).tolist()
            for cluster in set(partition)
        )
        found = sorted(made.features[made.classes == name].double().tolist())
        assert len(found) == len(wanted) >= 2
        for row, expected in zip(found, wanted, strict=True):
            assert row == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert torch.equal(made.features[made.classes == 5], lonely)
    assert made.features.dtype == torch.float32  # as the clients sent them


def test_cluster_prototypes_do_not_depend_on_the_order_of_clients():
    rng = stream(1, "world", "clients")
    sent = {
        f"client:{i}": Prototypes(features=torch.randn(2, 6, generator=rng), classes=torch.tensor([0, 3]))
        for i in range(9)
    }

    forwards, backwards = cluster_prototypes(sent), cluster_prototypes(dict(reversed(sent.items())))

    for name in (0, 3):
        first, second = (sorted(made.features[made.classes == name].tolist()) for made in (forwards, backwards))
        assert torch.allclose(torch.tensor(first), torch.tensor(second), rtol=1e-6)
