"""Linkage: do two releases come from the same client, though no image is in both?

A client's images are cut in two halves and each half is released once, under new names: what a second session of the
same federation, or another federation with the same members, would see. Each A half is linked to the nearest B half by
the distance between the linear statistics t = (mu, sigma^2 + mu^2): `whitened` over all directions, in which two draws
from one distribution differ alike, or in the `class directions` alone, along which public images say that classes and
domains lie apart: what makes clients differ. Three populations of clients:

`iid`: clients of one domain that all draw from the same distribution. There is nothing that could tell them apart, so
nobody should win; a hit rate above 1/N here would mean that the halves are not disjoint, not that clients are linkable.
`dirichlet`: clients of one domain with skewed label shares (Dirichlet .3): a link is made by the labels.
`domain`: single-domain clients of several domains: domains are told apart, clients within one are not, so the expected
rate is about domains/N."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.artifacts import StyleStatistics
from fdgsec.data.domains import DomainDataset
from fdgsec.planting import PlantedStatistics, planted_images, planted_moments, upload
from fdgsec.privacy.tracing import Whitening, fit_whitening
from fdgsec.rng import derangement
from fdgsec.styles import linear_statistic, recentred
from fdgsec.threats import Case, Guess, Knowledge, Plant, Ranking, Request, TargetFacts, Truth


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """Link halves of clients across two releases by whitened distance; `clients` per population."""

    name: ClassVar[str] = "linkage"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics", "ImageStyles"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    clients: int = 30
    schemes: tuple[str, ...] = ("iid", "dirichlet", "domain")

    def plan(self, facts: TargetFacts) -> Sequence[Request]:
        """Ask for the halves of re-drawn clients, one population each. Raises UsageError where no images are known."""
        facts.check_images()
        return [Request(kind="halves", count=self.clients, scheme=scheme) for scheme in self.schemes]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Rank, for each A half, the B halves of its population."""
        return _linked(cases, knowledge, None)

    def shuffled(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Rank after every A half took the release of another A half of its population."""
        return _linked(cases, knowledge, rng)

    def plant(self, knowledge: Knowledge, rng: torch.Generator) -> Plant:
        """Twelve clients that hold one class each, of twelve whose means lie far apart, as public images show."""
        clients, size, channels, auxiliary = 12, 15, 24, 240
        own = 4 * torch.randn(clients, channels, generator=rng, dtype=torch.float64)
        public = torch.arange(auxiliary) % clients
        labels = torch.cat([public, torch.arange(clients).repeat_interleave(2 * size)])
        centre = own[labels]
        mean = centre + torch.randn(len(centre), channels, generator=rng, dtype=torch.float64)
        variance = 0.5 + torch.rand(len(centre), channels, generator=rng, dtype=torch.float64)
        moments = planted_moments(mean, variance)
        classes = tuple(str(number) for number in range(clients))
        images = planted_images(labels, torch.zeros_like(labels), class_names=classes, domain_names=("planted",))
        order = torch.randperm(clients, generator=rng)
        cases, truths = [], []
        for half in ("A", "B"):
            for number in range(clients):
                client = number if half == "A" else int(order[number])
                start = auxiliary + client * 2 * size + (size if half == "B" else 0)
                pooled_mean, pooled_std = moments.rows(torch.arange(start, start + size)).pooled().style(unbiased=False)
                artifact = StyleStatistics(mean=pooled_mean[0].float(), std=pooled_std[0].float())
                cases.append(
                    Case(
                        request="halves", views=(upload(artifact),), victim="client:0", records=size,
                        slice={"clients": "planted", "half": half},
                    )
                )  # fmt: skip
                place = int((order == number).nonzero())
                truths.append(Truth(partner=place if half == "A" else None))
        planted = replace(
            knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
            auxiliary=images.subset(torch.arange(auxiliary)),
        )  # fmt: skip
        return Plant(cases=cases, truths=truths, knowledge=planted, measurement="top1", at_least=0.9)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Space:
    """Where releases are compared: `whiten` applied to t with its second half taken about `about` (C,).

    `directions` (2C, k) are orthonormal in the whitened space; k may be 0."""

    about: Tensor
    whiten: Whitening
    directions: Tensor

    def __call__(self, statistic: Tensor) -> Tensor:
        """Whiten statistics (..., 2C)."""
        return self.whiten(recentred(statistic, self.about))


def _space(knowledge: Knowledge) -> _Space:
    """Fit the whitening on how public images of one domain differ, all domains' residuals together.

    Halves of one client differ as means of such images do, whatever separates the domains."""
    images = knowledge.public_images()
    found = knowledge.statistics(images)
    about = found.mean.mean(0)
    records = recentred(found.linear(), about)
    residuals = records.clone()
    for domain in images.domains.unique():
        mine = images.domains == domain
        residuals[mine] -= records[mine].mean(0)
    whiten = fit_whitening(residuals)
    return _Space(about=about, whiten=whiten, directions=_directions(whiten(records), images))


def _directions(whitened: Tensor, images: DomainDataset) -> Tensor:
    """Give the directions in which the class means within domains, and the domains' means, vary: (2C, k).

    As many as there are classes less one, and domains less one. Each mean counts by the root of its images, so that the
    noise of all is alike."""
    classes, domains = [], []
    centre = whitened.mean(0)
    for domain in images.domains.unique():
        mine = images.domains == domain
        middle = whitened[mine].mean(0)
        domains.append((middle - centre) * float(mine.sum()) ** 0.5)
        for label in images.labels[mine].unique():
            both = mine & (images.labels == label)
            classes.append((whitened[both].mean(0) - middle) * float(both.sum()) ** 0.5)
    wanted = (classes, int(images.labels.unique().numel()) - 1), (domains, len(domains) - 1)
    found = [torch.linalg.svd(torch.stack(means), full_matrices=False)[2][:count] for means, count in wanted]
    basis: Tensor = torch.linalg.qr(torch.cat(found).T)[0]
    return basis


def _populations(cases: Sequence[Case]) -> Mapping[tuple[tuple[str, str | int], ...], list[int]]:
    """Sort the cases by slice, the half aside; numbers keep their order."""
    found: dict[tuple[tuple[str, str | int], ...], list[int]] = {}
    for number, case in enumerate(cases):
        if case.request == "halves":
            where = tuple(sorted((key, value) for key, value in case.slice.items() if key != "half"))
            found.setdefault(where, []).append(number)
    return found


def _linked(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator | None) -> list[Ranking]:
    """Rank the B halves for every A half; with `rng` the A halves' releases go round a random ring first."""
    answers: list[Ranking] = []
    populations = _populations(cases)
    space = _space(knowledge) if populations else None
    for numbers in populations.values():
        assert space is not None
        halves = {half: [n for n in numbers if cases[n].slice.get("half") == half] for half in ("A", "B")}
        if not halves["A"] or not halves["B"]:
            continue
        # an image's share of a release is linear in t, so rows of single images are averaged
        placed = {
            half: torch.stack([space(linear_statistic(*cases[n].released()).mean(0)) for n in mine])
            for half, mine in halves.items()
        }
        first = placed["A"] if rng is None else placed["A"][derangement(len(placed["A"]), rng)]
        spaces = {"whitened": (first, placed["B"])}
        if space.directions.shape[1]:
            spaces["class directions"] = (first @ space.directions, placed["B"] @ space.directions)
        for distance, (own, others) in spaces.items():
            apart = torch.cdist(own, others, compute_mode="donot_use_mm_for_euclid_dist")
            answers += [
                Ranking(case=n, slice={"distance": distance}, distances=row.unsqueeze(0), of="partner")
                for n, row in zip(halves["A"], apart, strict=True)
            ]
    return answers
