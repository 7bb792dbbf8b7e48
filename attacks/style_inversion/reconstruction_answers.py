"""Answers of style inversion: reconstructions with their controls, image sets, and membership scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.inverter import TrainedInverter
from fdgsec.attacks.style_inversion.retrieval import NOISE_STYLES, RetrievalInverter, RetrievedPictures
from fdgsec.attacks.style_inversion.style_rows import Rows
from fdgsec.attacks.style_inversion.training_images import Prior
from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.runtime.random_streams import derangement
from fdgsec.threats.answers import GeneratedSets, Membership, Prediction, Reconstructions
from fdgsec.threats.attack import Case

Where = Mapping[str, str | int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructedRows:
    """The reconstructions of all rows of a population, (R, 3, S, S), with the controls B0 to B4 of the same shape.

    `order` (R,) says whose reconstruction is every row's B3; None for a single row, which has no other. `retrieved` has
    them at full size, where they were matched to the styles."""

    rows: Rows
    images: Tensor
    controls: Mapping[str, Tensor]
    order: Tensor | None = None
    retrieved: RetrievedPictures | None = None

    def reconstructions(self, where: Where) -> list[Reconstructions]:
        """One answer per case, with its own images."""
        return [
            Reconstructions(
                case=case, slice=where, images=self.images[part],
                controls={name: values[part] for name, values in self.controls.items()},
            )
            for case, part in parts(self.rows)
        ]  # fmt: skip

    def residuals(self, where: Where) -> list[Prediction]:
        """How far the styles of retrieved pictures, and of the images they began at, are from the given ones."""
        if self.retrieved is None:
            return []
        found = {"picture": self.retrieved.residual, "nearest public picture": self.retrieved.before}
        return [
            Prediction(case=case, slice={**where, "of": of}, name="style_residual", value=float(values[part].mean()))
            for case, part in parts(self.rows)
            for of, values in found.items()
        ]

    def memberships(self, cases: Sequence[Case], where: Where, shrunk: "ShrunkCandidates") -> list[Membership]:
        """Score each candidate of a pooled row by its projection on the reconstruction's direction, from the mean image
        B0.

        The distance from the reconstruction is not used, because most of it is the candidate's own distance from the
        mean."""
        mean, side = self.controls["B0"][0], int(self.images.shape[-1])
        asked = [(case, part, cases[case].candidates) for case, part in parts(self.rows)]
        known = [(case, part, candidates) for case, part, candidates in asked if candidates is not None]
        pictures = shrunk.of([candidates for _, _, candidates in known], side)
        answers = []
        for (case, part, _), shown in zip(known, pictures, strict=True):
            toward = (self.images[part][0] - mean).flatten()
            answers.append(
                Membership(case=case, slice={**where, "test": "picture"}, scores=(shown() - mean).flatten(1) @ toward)
            )
        return answers


@dataclass(frozen=True, kw_only=True, eq=False)
class ShrunkCandidates:
    """A population's candidates at the size of reconstructions: every prior asks about the same ones."""

    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, sets: Sequence[DomainDataset], side: int) -> list[Callable[[], Tensor]]:
        """What gives each set's images at `side` px; an image that is in several sets is shrunk once."""
        for name, store in {id(images.store): images.store for images in sets}.items():
            rows = torch.cat([images.rows for images in sets if id(images.store) == name]).unique()
            known = self.kept.get((name, side))
            if known is None or not torch.equal(known[0], rows):
                shrunk = [downsample(store[part], (side, side)) for part in rows.split(256)]
                self.kept[name, side] = rows, torch.cat(shrunk)
        return [partial(_pictures, images, *self.kept[id(images.store), side]) for images in sets]


def _pictures(images: DomainDataset, rows: Tensor, shrunk: Tensor) -> Tensor:
    return shrunk[torch.searchsorted(rows, images.rows)]


def suits(inverter: TrainedInverter, rows: Rows) -> bool:
    """Whether no case has more rows than the inverter answers."""
    return not isinstance(inverter, RetrievalInverter) or max(rows.sizes) <= inverter.options.rows


def reconstruct_rows(rows: Rows, prior: Prior, inverter: TrainedInverter, rng: torch.Generator) -> ReconstructedRows:
    """Reconstruct all rows and their controls.

    B0 the mean image of the prior, B1 one of its images, B2 that of the nearest style, B3 the reconstruction of another
    row of the population, B4 that of noise."""
    features, training = placed(rows, prior), prior.training
    found = inverter.retrieve(features) if isinstance(inverter, RetrievalInverter) else None
    images = inverter(features) if found is None else found.shown
    count = len(images)
    noise = torch.randn(features.shape, generator=rng, dtype=torch.float64)
    order = derangement(count, rng)
    others = images[order]
    if count == 1:  # there is no other row: an image of the prior stands in
        chosen = torch.randint(len(training.features), (1,), generator=rng)
        others = inverter(training.features[chosen])
    near = torch.cdist(prior.linear.standardized(features), prior.linear.standardized(training.features)).argmin(1)
    noise = noise if found is None else noise[:NOISE_STYLES]
    fed_noise = inverter(prior.linear.center + prior.linear.spread * noise)
    controls = {
        "B0": training.images.mean(0, keepdim=True).expand_as(images),
        "B1": training.images[torch.randint(len(training.images), (count,), generator=rng)],
        "B2": training.images[near],
        "B3": others,
        "B4": fed_noise[torch.arange(count) % len(noise)],
    }
    return ReconstructedRows(
        rows=rows, images=images, controls=controls, order=order if count > 1 else None, retrieved=found
    )


def placed(rows: Rows, prior: Prior) -> Tensor:
    """The rows aligned with the prior's styles; the interpolation style, which is the same in all rows, by itself."""
    if not rows.pooled:
        return prior.aligned(rows.features)
    together = rows.features.split(1 if rows.kind == "interpolation" else len(rows.features))
    return torch.cat([prior.as_single(part, averaged=rows.averaged) for part in together])


def parts(rows: Rows) -> list[tuple[int, slice]]:
    """The rows of each case, as slices."""
    starts = [sum(rows.sizes[:place]) for place in range(len(rows.sizes))]
    return [
        (case, slice(start, start + size)) for case, start, size in zip(rows.cases, starts, rows.sizes, strict=True)
    ]


def generated(rows: Rows, images: Tensor, name: str, where: Where) -> list[GeneratedSets]:
    """Answer every case with its share of one set of images, called `name`."""
    return [
        GeneratedSets(case=case, slice={**where, "column": name}, images=images[part], name=name)
        for case, part in parts(rows)
    ]
