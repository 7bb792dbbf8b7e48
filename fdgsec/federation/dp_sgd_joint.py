"""DP-SGD steps of several networks on one sample (Abadi et al., CCS 2016), with per-record clipping.

A method that trains two networks on the same sample releases two gradients of it. They count as one release, of both
gradients concatenated: each is clipped to bound / sqrt(networks), so that all of a record's gradients together have a
length of at most `bound`, and each gets the noise for the whole bound. A step then costs what a step of one network
costs with that noise: one Poisson-sampled Gaussian release. (Two releases of one sample, accounted as if each had drawn
its own, would cost more than they seem to, because both share the sampling of a record. With noise z times the clipping
norm in each, the Renyi moment of such a step at alpha = 2 is 1 + q^2 (e^(2/z^2) - 1), and not
(1 + q^2 (e^(1/z^2) - 1))^2.)

Gradients are computed for one record at a time. Networks that never get two records together cannot couple them, and no
rules for single layers are needed: there is none for convolutions with reflection padding (Opacus 1.6.0 has one, which
takes them for convolutions with zero padding). On a CPU, passes of single records take about as long as per-record
gradients of a batch."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fdgsec.federation.method import Clock
from fdgsec.nn.training.batches import Batch, TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError, clipped_sum
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer, check_buffers, check_trainable, forget_gradients, noisy, uses_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

Gradients = Sequence[Sequence[Tensor]]
"""A record's gradients: for each optimizer one tensor for each parameter that it trains, in its order.

Those of the next record may lie in the same memory."""
STACKED = 2**18
"""Numbers of gradients that are clipped together: those of many records in small networks, of one in large ones."""


@runtime_checkable
class StepsJointly(Protocol):
    """A method whose clients, under a private trainer, train several networks in each step."""

    def network_count(self, clock: Clock) -> int:
        """Count these networks in a round."""
        ...


def trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """List the parameters that an optimizer trains, in its order."""
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


def single_records(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into batches of one record."""
    for i in range(len(batch.labels)):
        yield Batch(
            images=batch.images[i : i + 1], labels=batch.labels[i : i + 1], records=batch.records[i : i + 1],
            partners=None if batch.partners is None else batch.partners[i : i + 1],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class JointTraining:
    """What is trained jointly, and on what: `networks`, each by an optimizer of its own or several by one.

    `gradients` is called with one record at a time, a batch of one. What it gives may depend on that record, on the
    weights, and on draws of generators, but on no other record, nor on how many there are: only the length of each is
    bounded. `after` is called after each step."""

    networks: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    data: TrainingSet
    gradients: Callable[[Batch], Gradients]
    plan: TrainingPlan
    device: torch.device
    layout: torch.memory_format
    round: int
    rounds: int
    after: Callable[[], None]

    def check(self) -> None:
        """Raise UsageError for an empty set, and PrivateTrainingError for networks that cannot be trained so, or
        records of several versions."""
        if not len(self.data):
            raise UsageError("a client has no training images; every client needs at least one.")
        if self.data.owners is not None:
            raise PrivateTrainingError(
                "joint steps draw and clip every image alone, but these records have several versions; train on one "
                "of each."
            )
        for network in self.networks:
            check_trainable(network, self.plan, [])
        if not self.optimizers:
            raise PrivateTrainingError("joint steps take at least one optimizer.")

    def by(self, trainer: PrivateTrainer) -> dict[str, float]:
        """Take the steps, with the trainer's cost, samples, augmentations and noise; give {"steps": count}."""
        self.check()
        buffers = [{name: buffer.clone() for name, buffer in network.named_buffers()} for network in self.networks]
        for network in self.networks:
            forget_gradients([*network.parameters(), *network.buffers()], self.optimizers)
        bound = trainer.max_grad_norm
        use = uses_of(len(self.data), self.plan, noise_multiplier=trainer.noise_multiplier, max_grad_norm=bound)
        trainer.spend(use)
        per_epoch = _steps_per_epoch(use)
        views = trainer.secret.child("views", len(trainer.uses)).generator()
        for step in range(use.count):
            rate = self.plan.rate(round=self.round, rounds=self.rounds, epoch=step // per_epoch)
            for group in [group for optimizer in self.optimizers for group in optimizer.param_groups]:
                group["lr"] = rate
            drawn = trainer.secret.uniform(len(self.data)) < use.sampling_rate
            sample = drawn.nonzero().flatten()
            batch = batch_of(self.data, sample, self.plan, views, device=self.device, layout=self.layout)
            joint_step(
                self.optimizers, map(self.gradients, single_records(batch)), bound=bound, noise=use.noise,
                expected=use.sampling_rate * len(self.data), secret=trainer.secret,
            )  # fmt: skip
            self.after()
        for network, before in zip(self.networks, buffers, strict=True):
            check_buffers(network, before)
        return {"steps": float(use.count)}


@runtime_checkable
class TrainsJointly(Protocol):
    """A private trainer with joint steps of its own, such as one that looks at what a method hands over."""

    def train_jointly(self, training: JointTraining) -> dict[str, float]:
        """Train the networks in place, and give metrics."""
        ...


def joint_training(
    trainer: PrivateTrainer,
    networks: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    data: TrainingSet,
    gradients: Callable[[Batch], Gradients],
    plan: TrainingPlan,
    *,
    device: torch.device,
    layout: torch.memory_format,
    round: int = 0,
    rounds: int = 1,
    after: Callable[[], None],
) -> dict[str, float]:
    """Train `networks` as `trainer` would train one (`JointTraining`), in place; give {"steps": count}.

    Samples (which may be empty), augmentations and noise come from the trainer's secret stream. Raises UsageError for
    an empty set, and PrivateTrainingError for networks that cannot be trained so, records of several versions, and
    buffers that change."""
    training = JointTraining(
        networks=networks, optimizers=optimizers, data=data, gradients=gradients, plan=plan, device=device,
        layout=layout, round=round, rounds=rounds, after=after,
    )  # fmt: skip
    return trainer.train_jointly(training) if isinstance(trainer, TrainsJointly) else training.by(trainer)


def _steps_per_epoch(use: Use) -> int:
    return round(1 / use.sampling_rate)


def joint_step(
    optimizers: Sequence[torch.optim.Optimizer],
    records: Iterable[Gradients],
    *,
    bound: float,
    noise: float,
    expected: float,
    secret: SecretStream,
) -> None:
    """Step each optimizer by (sum of clipped gradients + noise) / `expected`; the parameters keep the noisy gradients.

    `expected` is the mean size of a sample; the size of this one is private. `noise` is a standard deviation, drawn
    from `secret` network after network, also where no record was drawn. A record with a gradient that is not finite
    adds nothing to that network. Raises ValueError: bound or expected not above 0, negative noise, and an optimizer
    that trains nothing."""
    if bound <= 0 or expected <= 0 or noise < 0:
        raise ValueError(f"bound and expected must be above 0, noise at least 0; got {bound}, {expected} and {noise}.")
    parameters = [trained(optimizer) for optimizer in optimizers]
    if not all(parameters):
        raise ValueError("each optimizer must train a parameter; a step of one that trains none cannot be bounded.")
    sums = [torch.cat([torch.zeros_like(each).flatten() for each in group]) for group in parameters]
    at_once, share = max(1, STACKED // sum(map(len, sums))), bound / math.sqrt(len(optimizers))
    rows = [total.new_empty(at_once, len(total)) for total in sums]
    left = iter(records)
    while count := _stacked(islice(left, at_once), rows):
        for total, matrix in zip(sums, rows, strict=True):
            total += clipped_sum([matrix[:count]], share)[0]
    forget_gradients([], optimizers)
    for optimizer, group, total in zip(optimizers, parameters, sums, strict=True):
        parts = total.split([parameter.numel() for parameter in group])
        for parameter, value in zip(group, noisy(parts, noise, secret), strict=True):
            parameter.grad = (value.view_as(parameter) / expected).to(parameter)
        optimizer.step()


def _stacked(records: Iterable[Gradients], rows: Sequence[Tensor]) -> int:
    """Copy records' gradients into the rows of a matrix for each network, and count them.

    Each is copied before the next one is asked for, which may be computed in the same memory."""
    count = 0
    for count, gradients in enumerate(records, start=1):
        for own, matrix in zip(gradients, rows, strict=True):
            matrix[count - 1] = torch.cat([part.detach().flatten() for part in own])
    return count
