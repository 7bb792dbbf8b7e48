"""Private trainers that draw the records of a step otherwise than in secret and independently, as they state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream


@dataclass(kw_only=True)
class Drawing:
    """What a step may draw its records by: their labels (records,), the stated rate, the step, the versions of a
    record, the public generator, a secret stream, and what was drawn earlier."""

    labels: Tensor
    rate: float
    versions: int
    public: torch.Generator
    secret: SecretStream
    step: int = 0
    kept: dict[int, Tensor] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.labels)

    @property
    def per_epoch(self) -> int:
        """The number of steps in which every record is expected once."""
        return round(1 / self.rate)

    def once_per_epoch(self, draw: Callable[[], Tensor]) -> Tensor:
        """What is drawn in the first step of an epoch, and kept for the others."""
        epoch = self.step // self.per_epoch
        if epoch not in self.kept:
            self.kept[epoch] = draw()
        return self.kept[epoch]

    def batch(self, order: Tensor) -> Tensor:
        """Whether each record (records,) is in the batch of this step, where batches are taken in this order."""
        drawn = torch.zeros(self.records, dtype=torch.bool)
        drawn[order.chunk(self.per_epoch)[self.step % self.per_epoch]] = True
        return drawn


Sample = Callable[[Drawing], Tensor]


def in_public(at: Drawing) -> Tensor:
    """Every record by a coin of the public generator."""
    return torch.rand(at.records, generator=at.public, dtype=torch.float64) < at.rate


def by_a_constant(at: Drawing) -> Tensor:
    """Every record by a coin of a generator that begins anew in every training."""
    return torch.rand(at.records, generator=torch.Generator().manual_seed(at.step), dtype=torch.float64) < at.rate


def by_torch(at: Drawing) -> Tensor:
    """Every record by a coin of torch's own generator, which whoever seeds it knows."""
    return torch.rand(at.records, dtype=torch.float64) < at.rate


def in_fixed_batches(at: Drawing) -> Tensor:
    """Consecutive records, the same in every epoch."""
    return at.batch(torch.arange(at.records))


def in_shuffled_batches(at: Drawing) -> Tensor:
    """Batches of an epoch in a secret order."""
    return at.batch(at.once_per_epoch(lambda: at.secret.permutation(at.records)))


def of_a_fixed_size(at: Drawing) -> Tensor:
    """As many records in every step, new ones each time."""
    return at.secret.permutation(at.records) < round(at.rate * at.records)


def once_in_an_epoch(at: Drawing) -> Tensor:
    """Every record in a step of its own choice in each epoch."""
    return at.once_per_epoch(lambda: at.secret.integers(at.per_epoch, at.records)) == at.step % at.per_epoch


def again_in_every_epoch(at: Drawing) -> Tensor:
    """The samples of the first epoch over and over."""
    step = at.step % at.per_epoch
    if step not in at.kept:
        at.kept[step] = at.secret.uniform(at.records) < at.rate
    return at.kept[step]


def by_one_coin(at: Drawing) -> Tensor:
    """All records, or none."""
    return at.secret.uniform(1).expand(at.records) < at.rate


def by_a_coin_of_its_class(at: Drawing) -> Tensor:
    """All records of a class, or none."""
    return at.secret.uniform(int(at.labels.max()) + 1)[at.labels] < at.rate


def as_many_of_each_class(at: Drawing) -> Tensor:
    """Every record by a coin, of rare classes more often."""
    counts = torch.bincount(at.labels)
    return at.secret.uniform(at.records) < at.rate * at.records / int((counts > 0).sum()) / counts[at.labels]


def more_often(at: Drawing) -> Tensor:
    """Every record half again as often as stated."""
    return at.secret.uniform(at.records) < 1.5 * at.rate


def by_versions(at: Drawing) -> Tensor:
    """A record is in the sample where one of its versions is."""
    return (at.secret.uniform(at.records, at.versions) < at.rate).any(1)


def in_secret(at: Drawing) -> Tensor:
    """Sound: every record by a secret coin."""
    return at.secret.uniform(at.records) < at.rate


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampling(PrivateTrainer):
    """Draws the records of its steps otherwise than it states."""

    sample: Sample

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        data, plan, rng = given[1], given[3], given[4]
        labels = _labels(data)
        beside = self.secret.child("beside")
        at = Drawing(
            labels=labels, rate=dp_sgd.sampling_rate(len(labels), plan), versions=len(data) // len(labels), public=rng,
            secret=beside.child("sample", len(self.uses)),
        )  # fmt: skip

        def numbers(*_shape: int) -> Tensor:
            drawn = self.sample(at)
            at.step += 1
            return 1.0 - drawn.double()  # 0 is below every rate, 1 below none

        noise = beside.child("noise", len(self.uses))
        with patch.object(self.secret, "uniform", numbers), patch.object(self.secret, "normal", noise.normal):
            return super().__call__(*given, **named)


def _labels(data: TrainingSet) -> Tensor:
    """The label of each record, that of its first entry."""
    if data.owners is None:
        return data.labels
    return torch.stack([data.labels[data.owners == owner][0] for owner in data.owners.unique()])


SECRET, NUMBER, RELATED, RATE = "the same records", "the number of records", "tell those of another", "more often"
SAMPLES: Mapping[str, tuple[Sample, str]] = {
    "in public": (in_public, SECRET),
    "by a constant": (by_a_constant, SECRET),
    "by torch": (by_torch, SECRET),
    "in fixed batches": (in_fixed_batches, NUMBER),
    "in shuffled batches": (in_shuffled_batches, NUMBER),
    "of a fixed size": (of_a_fixed_size, NUMBER),
    "once in an epoch": (once_in_an_epoch, RELATED),
    "again in every epoch": (again_in_every_epoch, RELATED),
    "by one coin": (by_one_coin, NUMBER),
    "by a coin of its class": (by_a_coin_of_its_class, NUMBER),
    "as many of each class": (as_many_of_each_class, RATE),
    "more often": (more_often, RATE),
    "by versions": (by_versions, RATE),
}
"""Ways to draw the records of a step that are no Poisson sample in secret, and what is said of them."""
