"""Local objectives that change feature maps between the stages of a network: MixStyle's and DSU's way to act."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.batches import Batch
from fdgsec.errors import unknown_name
from fdgsec.models import Between, Classifier

PLACES = ("conv", "stem", "stage1", "stage2", "stage3", "stage4")
"""Where `Classifier.maps` lets a method act."""


def check_places(places: tuple[str, ...], *, method: str) -> None:
    """Raise UsageError for a place that no network has."""
    for place in places:
        if place not in PLACES:
            raise unknown_name(f"place of {method}", str(place), PLACES)


@dataclass(frozen=True)
class BetweenStages:
    """Cross-entropy of a forward pass whose maps (N, C, H, W) go through `act` at some places, each with `probability`."""

    places: tuple[str, ...]
    probability: float
    act: Callable[[Tensor, torch.Generator], Tensor]
    rng: torch.Generator
    couples_records: bool = True

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give -log p(label), (B,)."""
        between: Between = dict.fromkeys(self.places, self.acted)
        logits = model.head(model.neck(model.maps(batch.images, between=between)))
        return functional.cross_entropy(logits.float(), batch.labels, reduction="none")

    def acted(self, maps: Tensor) -> Tensor:
        """Change the maps of a whole batch, or leave them."""
        return maps if bool(torch.rand((), generator=self.rng) >= self.probability) else self.act(maps, self.rng)
