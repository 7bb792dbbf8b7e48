"""Additional images by class, for samples that are the only one of their class in a batch.

StableFDG (Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227) pairs every sample with the query of another one
of its class (section 3.2). Where the batch has none, appendix G takes another image from the client's data; the
authors' code runs a second pass, over one image of each class."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.networks.attention import HighlightedClassifier, class_partners
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, augment
from fdgsec.nn.training.precision import precision_of
from fdgsec.nn.training.training_plan import TrainingPlan


def only_of_class(labels: Tensor) -> Tensor:
    """Give the positions of samples with labels (B,) whose class has no other sample."""
    return (class_partners(labels) == torch.arange(len(labels))).nonzero().flatten()


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassDraws:
    """A client's images, drawn by class with `rng` and augmented like its batches."""

    data: DomainDataset
    plan: TrainingPlan
    rng: torch.Generator

    def rows(self, labels: Tensor, *, but: Tensor | None = None) -> Tensor:
        """Draw an image of each class in `labels` (n,), other than the record at the same index of `but` (n,).

        Gives positions, on the CPU. A class of which the client has no (other) image is left out."""
        found = [torch.empty(0, dtype=torch.int64)]
        for place, label in enumerate(labels):
            rows = (self.data.labels == label).nonzero().flatten()
            rows = rows if but is None else rows[rows != but[place]]
            found.append(rows[torch.randint(len(rows), (1,), generator=self.rng)] if len(rows) else rows)
        return torch.cat(found)

    def images(self, rows: Tensor, model: Classifier) -> Tensor:
        """Load and augment the images at `rows`, on the device and in the layout of `model`: (n, 3, H, W)."""
        device = model.head.weight.device
        images = augment(as_float(self.data.pixels(rows).to(device)), self.plan, self.rng)
        return images.contiguous(memory_format=precision_of(device, model.backbone).layout)

    def completed(self, batch: Batch, model: Classifier) -> tuple[Tensor, Tensor]:
        """Append another image of its class for each sample that is the only one; device and layout follow `model`.

        Gives images (B or more, 3, H, W) and labels, these on the CPU."""
        labels = batch.labels_on_cpu()
        lone = only_of_class(labels)
        rows = self.rows(labels[lone], but=batch.records[lone])
        if not len(rows):
            return batch.images, labels
        return torch.cat([batch.images, self.images(rows, model)]), torch.cat([labels, self.data.labels[rows]])


@dataclass(frozen=True, kw_only=True, eq=False)
class BalancedPass:
    """The second pass of the released code over one image per class: labels (K,), maps by stage, queries (K, d)."""

    labels: Tensor
    maps: Mapping[str, Tensor]
    queries: Tensor

    @classmethod
    def of(cls, model: HighlightedClassifier, draws: ClassDraws, *, stages: Iterable[str]) -> Self:
        """Run `model` on one image of each class that the client has, in random order; keep the maps of `stages`."""
        classes = torch.unique(draws.data.labels)
        classes = classes[torch.randperm(len(classes), generator=draws.rng)]
        images = draws.images(draws.rows(classes), model)
        maps: dict[str, Tensor] = {}
        last = model.maps(images, between={stage: partial(_kept, maps, stage) for stage in stages})
        return cls(labels=classes, maps=maps, queries=model.highlighter.queries(last))

    def joining(
        self, stage: str, maps: Tensor, labels: Tensor, *, most: int, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Append this pass's maps of classes that occur once to a batch's maps and labels (B,), at most `most`."""
        classes, counts = torch.unique(labels, return_counts=True)
        rows = torch.isin(self.labels, classes[counts == 1]).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=rng)[:most]]
        return torch.cat([maps, self.maps[stage][rows]]), torch.cat([labels, self.labels[rows]])

    def lent(self, queries: Tensor, labels: Tensor) -> Tensor:
        """Replace the queries (B, d) of samples that are the only one of their class by queries of this pass.

        As released, the class number is the row index, whatever the class of that row."""
        lone = only_of_class(labels)
        return queries.index_copy(0, lone.to(queries.device), self.queries[labels[lone] % len(self.labels)])


def _kept(taken: dict[str, Tensor], stage: str, maps: Tensor) -> Tensor:
    taken[stage] = maps
    return maps
