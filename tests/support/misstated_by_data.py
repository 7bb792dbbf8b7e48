"""Private trainers that let the images, their labels or those held for validation decide where nothing is paid for it,
and sound ones that look as if they did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fdgsec.federation.method import Client, Clock, Method
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.per_sample_gradients import clipped_sum
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import DPSGDWith, Made, in_each, noisy_tensor
from tests.support.misstated_counts import Weighted
from tests.support.misstated_trainings import NoiseAt, WithNoiseAt, every_entry


@dataclass(frozen=True, kw_only=True, eq=False)
class PayingForOneStepOfLittleNoise(WithNoiseAt):
    """States so many `times` less noise for one step, and the whole for all others."""

    times: float

    def spend(self, use: Use) -> None:
        super().spend(replace(use, noise=use.noise / self.times, count=1))
        super().spend(replace(use, count=use.count - 1))


def less_noise(times: float, steps: float) -> NoiseAt:
    """So many times less noise in the first `steps`."""
    return lambda at, total, noise, secret: noisy_tensor(total, noise / times if at.step < steps else noise, secret)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuietWhereNothingIsDrawn(PrivateTrainer):
    """Adds no noise to a step that takes no image."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        any_drawn, told = [False], named.pop("on_step", None)

        def clipped(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
            any_drawn[0] = True
            return clipped_sum(rows, bound)

        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, noise if any_drawn[0] else 0.0, secret)

        def on_step(step: int, loss: float) -> None:
            any_drawn[0] = False
            if told is not None:
                told(step, loss)

        with patch.object(dp_sgd, "clipped_sum", clipped), patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, on_step=on_step, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightingLabels(PrivateTrainer):
    """Weighs every image by how rare its label is among those of its client."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, *others = given
        _, places, counts = data.labels.unique(return_inverse=True, return_counts=True)
        weights = len(data) / (len(counts) * counts[places].double())
        return super().__call__(model, data, Weighted(objective=objective, weights=weights), *others, **named)


def _entropy(labels: Tensor) -> float:
    shares = labels.unique(return_counts=True)[1].double() / len(labels)
    return 1 - float((shares * shares.log()).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class WithARateByItsLabels(PrivateTrainer):
    """Takes longer steps the more labels its images have."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan, *others = given
        plan = replace(plan, learning_rate=plan.learning_rate * _entropy(data.labels))
        return super().__call__(model, data, objective, plan, *others, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithItsClient(PrivateTrainer):
    """A trainer that knows its client."""

    client: Client | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class WithAClipByItsClient(WithItsClient):
    """Clips, and has noise, in proportion to the brightness of its client's images."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        assert self.client is not None
        times = 0.2 + float(self.client.data.pixels().double().mean()) / 255

        def clipped(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
            return clipped_sum(rows, times * bound)

        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, times * noise, secret)

        with patch.object(dp_sgd, "clipped_sum", clipped), patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class BeginningFromItsLabels(PrivateTrainer):
    """Sets the biases of the last layer to the logarithms of label counts before the first step."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data = given[:2]
        if model.head.bias is not None:
            counts = torch.bincount(data.labels, minlength=len(model.head.bias))[: len(model.head.bias)]
            with torch.no_grad():
                model.head.bias.copy_((1 + counts).log())
        return super().__call__(*given, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class EndingOnValidationImages(WithItsClient):
    """Takes a plain step on its client's validation images at the end."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, _, objective, plan = given[:4]
        found = super().__call__(*given, **named)
        if self.client is None or self.client.validation is None:
            return found
        batch, parameters = every_entry(TrainingSet.of(self.client.validation), plan), list(model.parameters())
        gradients = torch.autograd.grad(objective(batch, model).mean(), parameters, allow_unused=True)
        with torch.no_grad():
            for weights, gradient in zip(parameters, gradients, strict=True):
                weights -= 0.1 * (0 if gradient is None else gradient)
        return found


@dataclass(frozen=True, kw_only=True)
class DPSGDKnowingItsClient(DPSGDWith):
    """Makes trainers that know their client."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        made = super().trainer(client, method, clock, rng)
        assert isinstance(made, WithItsClient)
        return replace(made, client=client)


class _Optimizer(torch.optim.SGD):
    """Plain steps, of which a subclass changes something in public."""

    def __init__(self, like: torch.optim.Optimizer) -> None:
        super().__init__(like.param_groups[0]["params"], lr=like.param_groups[0]["lr"])
        self.taken = 0

    def step(self, closure: Any = None) -> Any:
        self.before()
        self.taken += 1
        return super().step(closure)

    def before(self) -> None:
        """What is done before a step."""

    @property
    def gradients(self) -> list[Tensor]:
        """The noisy gradients."""
        return [one.grad for one in self.param_groups[0]["params"] if one.grad is not None]


class WarmingUp(_Optimizer):
    """Rates that grow from 0."""

    def before(self) -> None:
        for gradient in self.gradients:
            gradient *= min(self.taken / 10, 1.0)


class Decaying(_Optimizer):
    """A weight decay of .01."""

    decay = 0.01

    def before(self) -> None:
        for one in self.param_groups[0]["params"]:
            if one.grad is not None:
                one.grad += self.decay * one.detach()


class DecayingFast(Decaying):
    """A weight decay of .05."""

    decay = 0.05


class ClippingNoisyMeans(_Optimizer):
    """Noisy means of a length of at most 1."""

    def before(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)


class BySign(_Optimizer):
    """The signs of noisy means."""

    def before(self) -> None:
        for gradient in self.gradients:
            gradient.sign_().mul_(0.01)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stepping(PrivateTrainer):
    """Sound: steps by an optimizer of its own."""

    by: type[_Optimizer]

    def __call__(self, model: Classifier, data: TrainingSet, objective: Any, plan: TrainingPlan, *others: Any,
                 **named: Any) -> dict[str, float]:  # fmt: skip
        named["optimizer"] = self.by(optimizer_of(model.parameters(), plan))
        return super().__call__(model, data, objective, plan, *others, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingTheHeadAlone(PrivateTrainer):
    """Sound: trains the last layer."""

    def __call__(self, model: Classifier, *others: Any, **named: Any) -> dict[str, float]:
        for name, weights in model.named_parameters():
            weights.requires_grad_(name.startswith("head"))
        return super().__call__(model, *others, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class OverdrawingAndDecaying(Stepping):
    """Draws records half as often again as it states, behind a weight decay of its own."""

    by: type[_Optimizer] = Decaying

    def spend(self, use: Use) -> None:
        super().spend(replace(use, sampling_rate=use.sampling_rate / 1.5 if use.sampling_rate < 1 else 1.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class PayingForNothing(PrivateTrainer):
    """Pays for its steps, and moves no weight."""

    def __call__(self, model: Classifier, *others: Any, **named: Any) -> dict[str, float]:
        begun = [weights.detach().clone() for weights in model.parameters()]
        told = named.pop("on_step", None)

        def on_step(step: int, loss: float) -> None:
            with torch.no_grad():
                for weights, before in zip(model.parameters(), begun, strict=True):
                    weights.copy_(before)
            if told is not None:
                told(step, loss)

        return super().__call__(model, *others, on_step=on_step, **named)


SOUND: Mapping[str, Made] = {
    "two sizes of noise": partial(PayingForOneStepOfLittleNoise, times=5, noise=less_noise(5, 1)),
    "from a rate of 0": partial(Stepping, by=WarmingUp),
    "weight decay": partial(Stepping, by=Decaying),
    "a larger weight decay": partial(Stepping, by=DecayingFast),
    "noisy means clipped": partial(Stepping, by=ClippingNoisyMeans),
    "signs of noisy means": partial(Stepping, by=BySign),
    "the head alone": TrainingTheHeadAlone,
}
"""Trainers that are sound, by what they do."""
BY_DATA: Mapping[str, tuple[Made, str]] = {
    "one step of little noise paid for": (
        partial(PayingForOneStepOfLittleNoise, times=5, noise=less_noise(5, math.inf)),
        "in all;",
    ),
    "five steps of little noise and one paid for": (
        partial(PayingForOneStepOfLittleNoise, times=10, noise=less_noise(10, 5)),
        "in all;",
    ),
    "quiet where nothing is drawn": (QuietWhereNothingIsDrawn, "takes no image moves nothing"),
    "weights by labels": (WeightingLabels, "changes what a step of training makes of the others"),
    "a rate by labels": (WithARateByItsLabels, "follows what one image is"),
    "a clip by its client": (WithAClipByItsClient, "follows what one image is"),
    "begun from labels": (BeginningFromItsLabels, "'head.bias'"),
    "ended on validation images": (EndingOnValidationImages, "of the network"),
}
"""Trainers that let data decide, by what they do, and what is said of them."""
