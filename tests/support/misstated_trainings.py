"""Private trainers whose steps are not what they state: some without noise, more of them, noise that comes again, layers
that are left as they are, or versions of a record that count as records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fdgsec.nn.training.batches import Batch, TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import clipped_sum
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import Made, Patched, in_each, length, noisy_tensor, summed

PERIOD = 499
MOVES = "one image moves a step of training"


@dataclass(kw_only=True)
class At:
    """The step, the tensor in it, and the noise of each tensor in the step before."""

    step: int = 0
    tensor: int = 0
    before: dict[int, Tensor] = field(default_factory=dict)


NoiseAt = Callable[[At, Tensor, float, SecretStream], Tensor]


def but_for_kernels(_at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Kernels of convolutions have no noise."""
    return noisy_tensor(total, noise if total.ndim < 4 else 0.0, secret)


def but_for_every_eighth(at: At, total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Every eighth step has no noise."""
    return noisy_tensor(total, 0.0 if at.step % 8 == 7 else noise, secret)


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

        with patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, on_step=told, **named)


def every_entry(data: TrainingSet, plan: TrainingPlan) -> Batch:
    """All entries of a training set as one batch."""
    return batch_of(
        data, torch.arange(len(data)), plan, torch.Generator(), device=torch.device("cpu"),
        layout=torch.contiguous_format,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class WithAPlainStepAtTheEnd(PrivateTrainer):
    """Takes a step of plain gradients after the last one that is told of."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan = given[:4]
        found = super().__call__(*given, **named)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(objective(every_entry(data, plan), model).mean(), parameters, allow_unused=True)
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


Left = Callable[[nn.Module, str], bool]


def of_norms(layer: nn.Module, _name: str) -> bool:
    """Weights and biases of group norms."""
    return isinstance(layer, nn.GroupNorm)


def of_norms_scale(layer: nn.Module, name: str) -> bool:
    """Weights of group norms."""
    return isinstance(layer, nn.GroupNorm) and name == "weight"


def of_wide_kernels(layer: nn.Module, _name: str) -> bool:
    """Kernels of more than one pixel."""
    return isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)


def of_depthwise_kernels(layer: nn.Module, _name: str) -> bool:
    """Kernels of one input each."""
    return isinstance(layer, nn.Conv2d) and layer.groups > 1


def of_biases(layer: nn.Module, name: str) -> bool:
    """Biases of convolutions."""
    return isinstance(layer, nn.Conv2d) and name == "bias"


def of_the_first_convolution(layer: nn.Module, _name: str) -> bool:
    """The convolution of an image's three channels."""
    return isinstance(layer, nn.Conv2d) and layer.in_channels == 3


@dataclass(frozen=True, kw_only=True, eq=False)
class WithLayersLeftOut(PrivateTrainer):
    """Measures lengths without the `left` parameters; where these are `plain`, they have neither clip nor noise."""

    left: Left
    plain: bool = False

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        flags = [
            self.left(layer, name) for layer in given[0].modules() for name, _ in layer.named_parameters(recurse=False)
        ]
        turn = cycle(flags)

        def clipped(given_rows: Sequence[Tensor], bound: float) -> list[Tensor]:
            rows = [part.nan_to_num(0.0, 0.0, 0.0) for part in given_rows]
            kept = [part for part, left in zip(rows, flags, strict=True) if not left]
            found = summed(rows, (bound / (length(kept) * (1 + 1e-5)).clamp_min(1e-12)).clamp_max(1))
            plain = [part.sum(0) for part in rows]
            return [own if left and self.plain else one for one, own, left in zip(found, plain, flags, strict=True)]

        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, 0.0 if next(turn) and self.plain else noise, secret)

        with patch.object(dp_sgd, "clipped_sum", clipped), patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, **named)


def as_usual(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """A gradient times the bound over its length, which is no number where the gradient is not finite."""
    return summed(rows, (bound / (length(rows) * (1 + 1e-5)).clamp_min(1e-12)).clamp_max(1))


def refused(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Gradients that are not finite end the training."""
    if not bool(length(rows).isfinite().all()):
        raise ValueError("a gradient is not finite.")
    return clipped_sum(rows, bound)


def longer_where_infinite(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Infinite numbers become ten times the bound, after the clip."""
    finite = [part.nan_to_num(0.0, 0.0, 0.0) for part in rows]
    infinite = [torch.where(part.isinf(), part.sign(), 0.0).sum(0) for part in rows]
    return [one + 10 * bound * far for one, far in zip(clipped_sum(finite, bound), infinite, strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class WithLessNoiseInLaterRounds(PrivateTrainer):
    """Every round has nine tenths of the noise of the one before, stated as that of the first."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, noise * 0.9 ** named["round"], secret)

        with patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, **named)


STEPS: Mapping[str, tuple[Made, str]] = {
    "no noise on kernels": (partial(WithNoiseAt, noise=but_for_kernels), "in which nothing hides it"),
    "no noise in every eighth step": (partial(WithNoiseAt, noise=but_for_every_eighth), "in which nothing hides it"),
    "noise taken back": (partial(WithNoiseAt, noise=taken_back), "comes again in another one"),
    "noise over and over": (partial(WithNoiseAt, noise=over_and_over), "comes again in the numbers of a tensor"),
    "a plain step at the end": (WithAPlainStepAtTheEnd, "in which nothing hides it"),
    "one step stated": (StatingOneStep, "steps; its cost is of"),
    "owners ignored": (IgnoringOwners, "one image of several versions moves a step"),
    "a usual clip": (partial(Patched, clip=as_usual), "makes the weights so"),
    "a clip that refuses": (partial(Patched, clip=refused), "fails with an image whose gradient is not finite"),
    "a longer clip where infinite": (partial(Patched, clip=longer_where_infinite), "further than its noise hides"),
    "less noise in later rounds": (WithLessNoiseInLaterRounds, MOVES),
    "norms as they are": (partial(WithLayersLeftOut, left=of_norms, plain=True), "in which nothing hides it"),
    "the first convolution as it is": (
        partial(WithLayersLeftOut, left=of_the_first_convolution, plain=True),
        "of the network, in which nothing hides it",
    ),
    "without norms' weights": (partial(WithLayersLeftOut, left=of_norms_scale), MOVES),
    "without 3x3 kernels": (partial(WithLayersLeftOut, left=of_wide_kernels), MOVES),
    "without depthwise kernels": (partial(WithLayersLeftOut, left=of_depthwise_kernels), MOVES),
    "without biases of convolutions": (partial(WithLayersLeftOut, left=of_biases), MOVES),
}
"""Trainers, by what they do, and what is said of them."""
