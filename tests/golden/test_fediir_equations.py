"""FedIIR's gradients against automatic differentiation, its smoothing against the messages of a run."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import HeadGradient, Scores
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fediir import FedIIR, InvariantLoss, head_gradient, mean_head_gradient
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.round_loop import four_clients

CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1"))


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def classifier() -> Classifier:
    return build_classifier("tiny", 7, rng=stream(0, "world", "network")).eval()


def batch() -> Batch:
    rng = stream(0, "world", "batch")
    return Batch(
        images=torch.rand(6, 3, 16, 16, generator=rng), labels=torch.randint(7, (6,), generator=rng),
        records=torch.arange(6),
    )  # fmt: skip


def target(scale: float = 0.1) -> HeadGradient:
    rng = stream(0, "world", "target")
    return HeadGradient(weight=scale * torch.randn(7, 96, generator=rng), bias=scale * torch.randn(7, generator=rng))


def differentiated(model: Classifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss = functional.cross_entropy(model(images), labels)
    weight, bias = torch.autograd.grad(loss, [model.head.weight, model.head.bias], create_graph=True)
    return weight, bias


def test_the_closed_form_is_the_gradient_in_the_head():
    model, given = classifier(), batch()
    features = model.features(given.images)

    made = head_gradient(features, model.head(features), given.labels)

    for found, slope in zip(made, differentiated(model, given.images, given.labels), strict=True):
        assert torch.allclose(found, slope, rtol=1e-4, atol=1e-7)


def test_the_penalty_has_the_value_and_the_gradient_of_one_that_is_differentiated_twice():
    model, slow, given, gamma = classifier(), classifier(), batch(), 3.0

    losses = InvariantLoss(target(), gamma)(given, model)
    losses.mean().backward()

    weight, bias = differentiated(slow, given.images, given.labels)
    away = (weight - target().weight).square().sum() + (bias - target().bias).square().sum()
    total = functional.cross_entropy(slow(given.images), given.labels) + gamma * away
    total.backward()
    assert float(losses.detach().mean()) == pytest.approx(float(total.detach()), rel=1e-5)
    for name, value in slow.named_parameters():
        found = model.get_parameter(name).grad
        assert found is not None
        assert value.grad is not None
        assert torch.allclose(found, value.grad, rtol=1e-3, atol=1e-5), name


def test_penalty_0_is_cross_entropy():
    model, given = classifier(), batch()

    losses = InvariantLoss(target(), 0.0)(given, model)

    assert torch.equal(losses, functional.cross_entropy(model(given.images), given.labels, reduction="none"))


def test_a_client_averages_its_batches_gradients_however_short_the_last(members: list[Client]):
    data = members[0].data  # 17 images: batches of 8, 8 and 1

    made, count = mean_head_gradient(classifier(), members[0], batch_size=8)

    slopes = [
        differentiated(classifier(), as_float(data.pixels(rows)), data.labels[rows])
        for rows in torch.arange(17).split(8)
    ]
    assert count == len(slopes) == 3
    assert torch.allclose(
        made.weight, sum(s[0].detach() for s in slopes) / 3 + torch.zeros(7, 96), rtol=1e-4, atol=1e-6
    )
    assert torch.allclose(made.bias, sum(s[1].detach() for s in slopes) / 3 + torch.zeros(7), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("mean", "shares"), [("batches", (0.75, 0.25)), ("clients", (0.5, 0.5))])
def test_the_server_averages_over_batches_or_clients_and_smooths_from_0(mean: str, shares: tuple[float, float]):
    method = FedIIR(smoothing=0.9, mean="batches" if mean == "batches" else "clients")
    sent = [target(1.0), target(-2.0)]
    server: dict[str, Tensor] = {}
    smoothed = torch.zeros(7, 96).double()
    for number in range(3):
        shared = {}
        for i, batches in enumerate((3.0, 1.0)):
            gradient = HeadGradient(weight=sent[i].weight + number, bias=sent[i].bias)
            extra = {"batches": Scores(values=torch.tensor([batches]))} if mean == "batches" else {}
            shared[f"client:{i}"] = {"gradient": gradient, **extra}

        handed, state = method.combine(shared, server=server, clock=CLOCK, rng=simulated_stream(0, "c"))

        server = dict(state)
        average = sum(share * (part.weight.double() + number) for share, part in zip(shares, sent, strict=True))
        smoothed = 0.9 * smoothed + 0.1 * average
        found = handed["client:1"]["gradient"].tensors()["weight"].double()
        assert torch.allclose(found, smoothed, rtol=1e-6, atol=1e-7)
