"""FedADG's three losses and steps against plain gradient descent written out, and who learns."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.methods.fedadg import (
    Discriminator,
    FedADG,
    Generator,
    SmoothedCrossEntropy,
    discriminator_loss,
    generator_loss,
)
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream

CLASSES, NOISE, HIDDEN, PROJECTED = 4, 5, 16, 12
RATE = 0.5
METHOD = FedADG(
    alpha=0.3, label_smoothing=0.2, label_value=0.6, noise=NOISE, hidden=HIDDEN, projected=PROJECTED,
    game=TrainingPlan(learning_rate=RATE),
)  # fmt: skip
State = Mapping[str, Tensor]


def classifier() -> Classifier:
    return build_classifier("tiny", CLASSES, rng=stream(0, "world", "network")).eval()


def players(width: int = 96) -> tuple[Generator, Discriminator]:
    rng = stream(0, "world", "players")
    generator = Generator(noise=NOISE, classes=CLASSES, hidden=HIDDEN, width=width)
    discriminator = Discriminator(width=width, classes=CLASSES, projected=PROJECTED)
    generator.draw(rng)
    discriminator.draw(rng)
    return generator, discriminator


def batch() -> Batch:
    rng = stream(0, "world", "batch")
    return Batch(
        images=torch.rand(6, 3, 16, 16, generator=rng), labels=torch.randint(CLASSES, (6,), generator=rng),
        records=torch.arange(6),
    )  # fmt: skip


def generated(weights: State, noise: Tensor, condition: Tensor) -> Tensor:
    hidden = torch.cat([noise, condition], 1) @ weights["first.weight"].T + weights["first.bias"]
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    return (hidden @ weights["second.weight"].T + weights["second.bias"]).clamp_min(0)


def judged(weights: State, features: Tensor, condition: Tensor) -> Tensor:
    hidden = (
        torch.cat([features, condition], 1) @ weights["projection"] @ weights["first.weight"].T + weights["first.bias"]
    )
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    return torch.sigmoid(hidden @ weights["second.weight"].T + weights["second.bias"])[:, 0]


def descended(weights: State, loss: Tensor, trained: list[str]) -> dict[str, Tensor]:
    slopes = torch.autograd.grad(loss, [weights[name] for name in trained])
    moved = {name: weights[name] - RATE * slope for name, slope in zip(trained, slopes, strict=True)}
    return {name: moved.get(name, value).detach() for name, value in weights.items()}


def free(module: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: value.detach().clone().requires_grad_("projection" not in name)
        for name, value in module.state_dict().items()
    }


LAYERS = ["first.weight", "first.bias", "second.weight", "second.bias"]


@pytest.mark.parametrize("seeks", ["reference", "features"])
def test_one_batch_moves_discriminator_and_generator_and_gives_the_extractors_losses(seeks: str):
    method = replace(METHOD, generator_seeks="features" if seeks == "features" else "reference")
    model, given, (generator, discriminator) = classifier(), batch(), players()
    g, d = free(generator), free(discriminator)
    aligned = method.alignment(
        (generator, discriminator), error=SmoothedCrossEntropy(0.2), rng=stream(0, "world", "noise")
    )

    losses = aligned(given, model)

    features = model.features(given.images).detach()
    condition = torch.zeros(6, CLASSES)
    condition[torch.arange(6), given.labels] = 0.6
    noise = torch.rand(6, NOISE, generator=stream(0, "world", "noise"))
    reference = generated(g, noise, condition)
    advd = -(judged(d, reference.detach(), condition) ** 2 + (1 - judged(d, features, condition)) ** 2).mean()
    d = descended(d, advd, LAYERS)
    given_to = judged(d, reference, condition)
    advg = (given_to**2).mean() if seeks == "features" else ((1 - given_to) ** 2).mean()
    g = descended(g, advg, LAYERS)
    smooth = functional.cross_entropy(model.head(features), given.labels, reduction="none", label_smoothing=0.2)
    wanted = 0.3 * smooth + 0.7 * (1 - judged(d, features, condition)) ** 2
    assert torch.allclose(losses, wanted, rtol=1e-5, atol=1e-6)
    for module, weights in ((generator, g), (discriminator, d)):
        for name, value in module.state_dict().items():
            assert torch.allclose(value, weights[name], rtol=1e-4, atol=1e-6), name


def test_the_extractor_learns_from_both_terms():
    model, given, pair = classifier(), batch(), players()
    frozen = [value.clone() for player in pair for value in player.parameters()]
    aligned = replace(METHOD, game=TrainingPlan(learning_rate=1e-12)).alignment(
        pair, error=SmoothedCrossEntropy(0.0), rng=stream(0, "world", "noise")
    )

    aligned(given, model).mean().backward()

    slow = classifier()
    features = slow.features(given.images)
    condition = functional.one_hot(given.labels, CLASSES) * 0.6
    fooled = (1 - judged(free(pair[1]), features, condition)).square()
    (0.3 * functional.cross_entropy(slow.head(features), given.labels) + 0.7 * fooled.mean()).backward()
    for name, value in slow.named_parameters():
        found = model.get_parameter(name).grad
        assert found is not None
        assert value.grad is not None
        assert torch.allclose(found, value.grad, rtol=1e-3, atol=1e-6), name
    kept = [value for player in pair for value in player.parameters()]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(frozen, kept, strict=True))


def test_as_released_the_generator_never_learns():
    moved = []
    for released in (False, True):
        generator, discriminator = players()
        before = generator.first.weight.detach().clone()
        aligned = replace(METHOD, released=released).alignment(
            (generator, discriminator), error=SmoothedCrossEntropy(0.2), rng=stream(0, "world", "noise")
        )
        for _ in range(3):
            aligned(batch(), classifier())
        moved.append(not torch.equal(generator.first.weight, before))

    assert moved == [True, False]


def test_the_losses_are_least_where_each_player_wins():
    class Fixed(Discriminator):
        """Gives what the first feature says."""

        def forward(self, features: Tensor, condition: Tensor) -> Tensor:
            return features[:, 0]

    judge = Fixed(width=1, classes=1, projected=1)
    zero, one, condition = torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3, 1)

    assert float(discriminator_loss(judge, one, zero, condition)) == -2.0
    assert float(discriminator_loss(judge, zero, one, condition)) == 0.0
    assert float(generator_loss(judge, one, condition, seeks="reference")) == 0.0
    assert float(generator_loss(judge, zero, condition, seeks="features")) == 0.0


def test_label_smoothing_spreads_a_fifth_of_a_label_over_all_classes():
    logits, label = torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([1])

    made = SmoothedCrossEntropy(0.2).of(logits, label)

    logs = [value - math.log(sum(math.exp(v) for v in (2.0, 0.5, -1.0))) for value in (2.0, 0.5, -1.0)]
    shares = [0.2 / 3, 0.8 + 0.2 / 3, 0.2 / 3]
    assert made.item() == pytest.approx(-sum(s * v for s, v in zip(shares, logs, strict=True)), rel=1e-6)


def test_the_projection_keeps_lengths_on_average_and_is_not_trained():
    judge = Discriminator(width=60, classes=4, projected=4096)
    judge.draw(stream(0, "world", "wide"))
    rows = torch.randn(50, 64, generator=stream(0, "world", "rows"))

    ratio = (rows @ judge.projection).norm(dim=1) / rows.norm(dim=1)

    assert float((ratio - 1).abs().max()) < 0.06  # 5 / sqrt(2 * 4096)
    assert "projection" not in dict(judge.named_parameters())
