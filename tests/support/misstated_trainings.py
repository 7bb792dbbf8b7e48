"""Private trainers whose steps are not what they state: some without noise, more of them, or noise that comes again;
versions of a record that count as records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fdgsec.nn.training.batches import batch_of
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer, noisy
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import Made

PERIOD = 499


@dataclass(kw_only=True)
class At:
    """The step, the tensor in it, and the noise of each tensor in the step before."""

    step: int = 0
    tensor: int = 0
    before: dict[int, Tensor] = field(default_factory=dict)


NoiseAt = Callable[[At, Tensor, float, SecretStream], Tensor]


def but_for_kernels(_at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Kernels of convolutions have no noise."""
    return noisy(total, noise if total.ndim < 4 else 0.0, secret)


def but_for_every_eighth(at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Every eighth step has no noise."""
    return noisy(total, 0.0 if at.step % 8 == 7 else noise, secret)


def taken_back(at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Every second step takes back the noise of the one before."""
    if at.step % 2 == 0:
        at.before[at.tensor] = noise * secret.normal(*total.shape).to(total)
        return total + at.before[at.tensor]
    return total - at.before[at.tensor]


def over_and_over(_at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """A few numbers of noise are repeated."""
    few = noise * secret.normal(PERIOD)
    return total + few.repeat(total.numel() // PERIOD + 1)[: total.numel()].view_as(total).to(total)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithNoiseAt(PrivateTrainer):
    """Draws its noise by step and tensor."""

    noise: NoiseAt

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        at, on_step = At(), named.pop("on_step", None)

        def told(step: int, loss: float) -> None:
            at.step, at.tensor = step, 0
            if on_step is not None:
                on_step(step, loss)

        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            found = self.noise(at, total, noise, secret)
            at.tensor += 1
            return found

        with patch.object(dp_sgd, "noisy", drawn):
            return super().__call__(*given, on_step=told, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithAPlainStepAtTheEnd(PrivateTrainer):
    """Takes a step of plain gradients after the last one that is told of."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan = given[:4]
        found = super().__call__(*given, **named)
        every = batch_of(
            data, torch.arange(len(data)), plan, torch.Generator(), device=torch.device("cpu"),
            layout=torch.contiguous_format,
        )  # fmt: skip
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(objective(every, model).mean(), parameters, allow_unused=True)
        with torch.no_grad():
            for weights, gradient in zip(parameters, gradients, strict=True):
                weights -= 0 if gradient is None else gradient
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class StatingOneStep(PrivateTrainer):
    """Takes all steps and pays for one."""

    def spend(self, use: Use) -> None:
        super().spend(replace(use, count=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class TellingNoStep(PrivateTrainer):
    """Never calls `on_step`."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        return super().__call__(*given, **{**named, "on_step": None})


@dataclass(frozen=True, kw_only=True, eq=False)
class IgnoringOwners(PrivateTrainer):
    """Takes every version of a record for a record."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, *others = given
        return super().__call__(model, replace(data, owners=None), *others, **named)


STEPS: Mapping[str, tuple[Made, str]] = {
    "no noise on kernels": (partial(WithNoiseAt, noise=but_for_kernels), "in which nothing hides it"),
    "no noise in every eighth step": (partial(WithNoiseAt, noise=but_for_every_eighth), "in which nothing hides it"),
    "noise taken back": (partial(WithNoiseAt, noise=taken_back), "comes again in another one"),
    "noise over and over": (partial(WithNoiseAt, noise=over_and_over), "comes again in the numbers of a tensor"),
    "a plain step at the end": (WithAPlainStepAtTheEnd, "in which nothing hides it"),
    "one step stated": (StatingOneStep, "steps; its cost is of"),
    "owners ignored": (IgnoringOwners, "one image of several versions moves a step"),
}
"""Trainers, by what they do, and what is said of them."""
