"""Private trainers that are sound but for what few trainings show: how many steps they take and draw, what they make of
other images, what they tell, and between which neighbors they state a distance."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fdgsec.federation.method import Client, Clock, Method
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.per_sample_gradients import clipped_sum
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import (
    DPSGDWith,
    Made,
    Patched,
    in_each,
    length,
    noisy_tensor,
    on_matrices,
    tensor_by_tensor,
    without_the_last,
)
from tests.support.misstated_trainings import (
    StatingOneStep,
    WithNoiseAt,
    but_for_every_eighth,
    every_entry,
    taken_back,
)


def without_any(total: Tensor, _noise: float, _secret: SecretStream) -> Tensor:
    """No noise at all."""
    return total


class OwnRate:
    """Draws a tenth of the images in each step, whatever the plan says, and states so."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        with patch.object(dp_sgd, "sampling_rate", lambda _records, _plan: 0.1):
            found: dict[str, float] = super().__call__(*given, **named)  # type: ignore[misc]
            return found


@dataclass(frozen=True, kw_only=True, eq=False)
class RatedPatched(OwnRate, Patched):
    """Another clip, or other noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RatedNoiseAt(OwnRate, WithNoiseAt):
    """Noise by step and tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RatedStatingOneStep(OwnRate, StatingOneStep):
    """Takes all steps and pays for one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PayingByEpoch(PrivateTrainer):
    """Takes several steps in an epoch, and pays for one."""

    plans: list[TrainingPlan] = field(default_factory=list)

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        self.plans.append(given[3])
        return super().__call__(*given, **named)

    def spend(self, use: Use) -> None:
        plan = self.plans[-1]
        super().spend(replace(use, count=plan.epochs if plan.steps is None else plan.steps))


@dataclass(frozen=True, kw_only=True, eq=False)
class TakingStepsInEveryEpoch(PrivateTrainer):
    """Takes a plan's number of steps in each of its epochs, and pays for one of these."""

    given: list[int] = field(default_factory=list)

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan, *others = given
        if plan.steps is not None:
            self.given.append(plan.steps)
            plan = replace(plan, steps=plan.steps * plan.epochs)
        return super().__call__(model, data, objective, plan, *others, **named)

    def spend(self, use: Use) -> None:
        super().spend(replace(use, count=self.given[-1] if self.given else use.count))


class _Stop(Exception):
    """The loss is low enough."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoppingEarly(PrivateTrainer):
    """Stops where the mean loss of its images is low."""

    low: float = 0.5

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan = given[:4]
        batch, told, taken = every_entry(data, plan), named.pop("on_step", None), [0]

        def on_step(step: int, loss: float) -> None:
            taken[0] = step
            if told is not None:
                told(step, loss)
            with torch.no_grad():
                if float(objective(batch, model).mean()) < self.low:
                    raise _Stop

        try:
            return super().__call__(*given, on_step=on_step, **named)
        except _Stop:
            return {"steps": float(taken[0])}


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """The losses of images, each by its weight (n,)."""

    objective: Any
    weights: Tensor
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        losses: Tensor = self.objective(batch, model)
        return losses * self.weights[batch.records].to(losses)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithoutOutliers(PrivateTrainer):
    """Leaves out images whose brightness is two deviations from the mean of its client's."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, *others = given
        brightness = data.images.double().flatten(1).mean(1)
        off = (brightness - brightness.mean()).abs()
        kept = off <= 2 * brightness.std(correction=0) + 1e-9
        return super().__call__(model, data, Weighted(objective=objective, weights=kept), *others, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithoutCostlyImages(PrivateTrainer):
    """Leaves out images whose loss is above the mean of its client's before training."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan, *others = given
        with torch.no_grad():
            losses = objective(every_entry(data, plan), model)
        kept = losses >= losses.mean()
        return super().__call__(model, data, Weighted(objective=objective, weights=kept), plan, *others, **named)


@contextmanager
def frozen_norms(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The batch norms of a model, in evaluation mode and without gradients."""
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for norm in norms:
        norm.eval().requires_grad_(False)
        norm.train = lambda mode=True, norm=norm: norm  # type: ignore[method-assign, misc]
    try:
        yield list(norms)
    finally:
        for norm in norms:
            del norm.train


@dataclass(frozen=True, kw_only=True, eq=False)
class WithAveragesOfItsImages(PrivateTrainer):
    """Trains with frozen batch norms, whose averages it takes from its images afterwards."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, _, plan = given[:4]
        with patch.object(dp_sgd, "check_trainable", lambda *_: None), frozen_norms(model) as norms:
            found = super().__call__(*given, **named)
        if norms:
            with torch.no_grad():
                model.train()(every_entry(data, plan).images)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class WithCleanSecondMoments(PrivateTrainer):
    """Adam, which divides moments of noisy sums by lengths of sums without noise."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, _, plan = given[:4]
        if plan.optimizer != "adam":
            return super().__call__(*given, **named)
        weights = [one for one in model.parameters() if one.requires_grad]
        clean, first, second = list[Tensor](), *([torch.zeros_like(one) for one in weights] for _ in range(2))
        optimizer, steps, divisor = (
            torch.optim.SGD(weights, lr=plan.learning_rate),
            [0],
            min(plan.batch_size, len(data)),
        )

        def kept(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            clean.append(total.clone() / divisor)
            return noisy_tensor(total, noise, secret)

        def stepped(*_: Any) -> None:
            steps[0] += 1
            with torch.no_grad():
                for one, mean, square, own in zip(weights, first, second, clean, strict=True):
                    assert one.grad is not None
                    mean.mul_(0.9).add_(one.grad, alpha=0.1)
                    square.mul_(0.999).addcmul_(own, own, value=0.001)
                    size = (square / (1 - 0.999 ** steps[0])).sqrt() + 1e-8
                    one -= plan.learning_rate * mean / (1 - 0.9 ** steps[0]) / size
            clean.clear()

        with patch.object(optimizer, "step", stepped), patch.object(dp_sgd, "noisy", in_each(kept)):
            return super().__call__(*given, optimizer=optimizer, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class TellingItsAccuracy(PrivateTrainer):
    """Returns the accuracy on its images after training."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan = given[:4]
        found = super().__call__(*given, **named)
        if not isinstance(objective, CrossEntropy):
            return found
        batch = every_entry(data, plan)
        with torch.no_grad():
            return {**found, "accuracy": float((model(batch.images).argmax(1) == batch.labels).double().mean())}


@dataclass(frozen=True, kw_only=True, eq=False)
class TellingItsClippedShare(PrivateTrainer):
    """Returns the share of gradients that were clipped."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        shares = list[float]()

        def counted(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
            shares.append(float((length(rows) > bound).double().mean()))
            return clipped_sum(rows, bound)

        with patch.object(dp_sgd, "clipped_sum", counted):
            found = super().__call__(*given, **named)
        return {**found, "clipped": sum(shares) / max(len(shares), 1)}


@dataclass(frozen=True, kw_only=True, eq=False)
class WithAnAdaptiveClip(PrivateTrainer):
    """Sound: Andrew et al., "Differentially private learning with adaptive clipping" (NeurIPS 2021): the clip follows a
    noisy count of gradients below it, which is paid for."""

    counts: float = 10.0
    rate: float = 0.2

    def spend(self, use: Use) -> None:
        own = use.noise / self.max_grad_norm
        both = (own**-2 + (2 * self.counts) ** -2) ** -0.5
        super().spend(replace(use, noise=both * self.max_grad_norm))

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        clip, below, told = [self.max_grad_norm], [0.0], named.pop("on_step", None)
        expected = min(given[3].batch_size, len(given[1]))

        def clipped(rows: Sequence[Tensor], _bound: float) -> list[Tensor]:
            below[0] += float((length(rows) <= clip[0]).double().sum()) - len(rows[0]) / 2
            return clipped_sum(rows, clip[0])

        def drawn(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, noise * clip[0] / self.max_grad_norm, secret)

        def on_step(step: int, loss: float) -> None:
            count = below[0] + self.counts * float(self.secret.normal(1))
            clip[0] = min(max(clip[0] * math.exp(-self.rate * count / expected), 0.1), 10.0)
            below[0] = 0.0
            if told is not None:
                told(step, loss)

        with patch.object(dp_sgd, "clipped_sum", clipped), patch.object(dp_sgd, "noisy", in_each(drawn)):
            return super().__call__(*given, on_step=on_step, **named)


@dataclass(frozen=True, kw_only=True)
class DPSGDBetween(DPSGDWith):
    """States its clip, times a factor for each, as the distance between neighbors of these `relations`."""

    relations: Mapping[Relation, float] = field(default_factory=lambda: {"zero-out": 1.0})

    @property
    def promise(self) -> PlannedGuarantee:
        return PlannedGuarantee(by="dp-sgd", stage="update", unit="record", relations=frozenset(self.relations))

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        made = super().trainer(client, method, clock, rng)
        kept, bound = made.spend, made.max_grad_norm
        distances = {name: times * bound for name, times in self.relations.items()}
        object.__setattr__(made, "spend", lambda use: kept(replace(use, sensitivity=distances)))
        return made


RATED: Mapping[str, Made] = {
    "sound": RatedPatched,
    "without the last": partial(RatedPatched, clip=without_the_last),
    "tensor by tensor": partial(RatedPatched, clip=tensor_by_tensor),
    "no noise on vectors": partial(RatedPatched, noise=on_matrices),
    "no noise": partial(RatedPatched, noise=without_any),
    "no noise in every eighth step": partial(RatedNoiseAt, noise=but_for_every_eighth),
    "noise taken back": partial(RatedNoiseAt, noise=taken_back),
    "one step stated": RatedStatingOneStep,
}
"""Trainers with a rate of their own, by what is wrong with them."""
BETWEEN: Mapping[str, tuple[Made, Mapping[Relation, float]]] = {
    "no noise, replace-one": (partial(Patched, noise=without_any), {"replace-one": 2.0}),
    "no noise, add-remove": (partial(Patched, noise=without_any), {"add-remove": 1.0}),
    "tensor by tensor, replace-one": (partial(Patched, clip=tensor_by_tensor), {"replace-one": 2.0}),
    "tensor by tensor, add-remove": (partial(Patched, clip=tensor_by_tensor), {"add-remove": 1.0}),
    "half of replace-one": (Patched, {"replace-one": 1.0}),
    "half of a second relation": (Patched, {"zero-out": 1.0, "replace-one": 1.0}),
    "replace-one": (Patched, {"replace-one": 2.0}),
    "two relations": (Patched, {"zero-out": 1.0, "replace-one": 2.0}),
}
"""Trainers, and the distances that they state in clips; the last two are sound."""
COUNTS: Mapping[str, tuple[Made, str]] = {
    "a cost for each epoch": (PayingByEpoch, "steps; its cost is of"),
    "steps in every epoch": (TakingStepsInEveryEpoch, "steps; its cost is of"),
    "steps until the loss is low": (StoppingEarly, "the number of a training's steps follows its images"),
    "no outliers": (WithoutOutliers, "changes what a step of training makes of the others"),
    "no costly images": (WithoutCostlyImages, "changes what a step of training makes of the others"),
}
"""Trainers, by what they do, and what is said of them."""
