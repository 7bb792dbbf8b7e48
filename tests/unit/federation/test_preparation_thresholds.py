"""What is trained on an image must not depend on whether the client has enough others of its kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.federation.record_preparation import mixed_records
from fdgsec.federation.replaced_records import with_records_replaced
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import Objective
from fdgsec.testing.small_federation import CLIENTS, start_of

CLOCK = Clock(round=0, rounds=1, participants=tuple(f"client:{number}" for number in range(CLIENTS)))
GRAY = 128
NEAR = 0.15
"""Distance of pictures of 4 x 4 pixels, up to which they look alike."""


@dataclass(frozen=True, kw_only=True)
class Thresholded(FedAvg):
    """A plug-in that says that it trains through its trainer, and does with rare images what it does not with others."""

    least: int

    @property
    def trains_through_trainer(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class RareClassesMasked(Thresholded):
    """Images of a class of which the client has fewer than `least` are gray."""

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        labels, pixels = client.data.labels, client.data.pixels().clone()
        pixels[torch.bincount(labels)[labels] < self.least] = GRAY
        return TrainingSet(images=pixels, labels=labels), state


@dataclass(frozen=True, kw_only=True)
class OutliersMasked(Thresholded):
    """Images that fewer than `least` of the client's look like, themselves among them, are gray."""

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        pixels = client.data.pixels().clone()
        small = functional.adaptive_avg_pool2d(as_float(pixels), 4).flatten(1)
        pixels[(torch.cdist(small, small) < NEAR).sum(1) < self.least] = GRAY
        return TrainingSet(images=pixels, labels=client.data.labels), state


@dataclass(frozen=True, kw_only=True)
class RareClassesUnlearned(Thresholded):
    """The loss of an image of a class of which the client has fewer than `least` is 0."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        counts = torch.bincount(client.data.labels, minlength=len(client.data.class_names))
        return _Frequent(learned=(counts >= self.least).float())


@dataclass(eq=False)
class _Frequent:
    learned: Tensor
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        losses = functional.cross_entropy(model(batch.images), batch.labels, reduction="none")
        return losses * self.learned[batch.labels]


def drawn() -> DomainDataset:
    return shapes(image_size=32, per_domain=150).of_domain(0)


def of_classes(counts: Sequence[int]) -> Client:
    """A client with so many images of each class."""
    data = drawn()
    rows = torch.cat([(data.labels == label).nonzero().flatten()[:count] for label, count in enumerate(counts)])
    return Client(name="client:0", data=data.subset(rows))


def of_series(length: int) -> Client:
    """A client with five series of nearly the same picture."""
    data, rng, places = drawn(), torch.Generator().manual_seed(0), (0, 20, 40, 60, 80)
    pixels = torch.cat([data.pixels()[place].expand(length, -1, -1, -1) for place in places]).int()
    pixels = (pixels + torch.randint(-6, 7, pixels.shape, generator=rng)).clamp(0, 255).to(torch.uint8)
    labels = data.labels[torch.tensor(places)].repeat_interleave(length)
    part = data.subset(torch.arange(len(pixels)))
    return Client(name="client:0", data=replace(part, store=pixels, rows=torch.arange(len(pixels)), labels=labels))


@pytest.mark.parametrize(
    ("method", "client"),
    [
        (RareClassesMasked(least=16), of_classes([18, 16, 16, 0, 4, 10, 0])),
        (RareClassesUnlearned(least=16), of_classes([18, 16, 16, 0, 4, 10, 0])),
        (RareClassesUnlearned(least=16), of_classes([3, 15, 15, 0, 4, 15, 5])),
        (OutliersMasked(least=6), of_series(6)),
        (OutliersMasked(least=14), of_series(14)),
        (OutliersMasked(least=15), of_series(14)),
    ],
    ids=["masked", "unlearned", "too few", "outliers", "many outliers", "too few alike"],
)
def test_a_threshold_on_how_many_images_are_alike_is_found(method: FedAvg, client: Client):
    """One image of 30 to 70 moved the clipped sum of gradients by 3.9 to 13.8 times the bound, 2 allowed."""
    assert mixed_records(method, client, model=start_of(method), inbox={}, clock=CLOCK)


def test_copies_are_of_the_first_image_that_is_kept_with_its_class():
    data = drawn().subset(torch.arange(6))
    kept = torch.tensor([False, True, False, True, False, False])

    made = with_records_replaced(data, kept, "copies")

    assert all(torch.equal(made.pixels()[place], data.pixels()[1]) for place in (0, 1, 2, 4, 5))
    assert torch.equal(made.pixels()[3], data.pixels()[3])
    assert torch.equal(made.labels, torch.where(torch.arange(6) == 3, data.labels[3], data.labels[1]))
