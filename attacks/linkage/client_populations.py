"""Populations of clients that linkage may confuse with each other, and the rankings of their second releases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.linkage.noise_linkage import add_noise
from fdgsec.federation.artifacts import Artifact, ImageStyles, released_numbers
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.answers import Ranking
from fdgsec.threats.attack import Case


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Clients that could be confused with each other: the numbers of the `first` and of the `second` cases, and their
    releases.

    `data` is added to the slice of an answer; `single` says that rows are of single images. `everyone` are all first
    cases where `first` are those that are asked about."""

    question: str
    slice: Mapping[str, str | int]
    data: Mapping[str, str | int]
    first: list[int]
    second: list[int]
    sent: Mapping[int, Artifact]
    records: int | None
    single: bool
    everyone: Sequence[int] = ()

    @property
    def empty(self) -> bool:
        """Whether some client sent no row."""
        return any(not value.shape[0] for artifact in self.sent.values() for value in artifact.tensors().values())

    @property
    def unchanged(self) -> bool:
        """Whether every first release has its equal among the second ones."""
        numbers = {number: (value + 0.0).numpy().tobytes() for number, value in self.plain().items()}  # no zero signed
        first = self.everyone or self.first
        return {numbers[number] for number in first} <= {numbers[number] for number in self.second}

    def asked(self, most: int) -> "Population":
        """The population of whose first releases `most` are asked about, drawn at random, among all second ones."""
        if len(self.first) <= most:
            return self
        order = torch.randperm(len(self.first), generator=stream(0, "attack", "linkage", "asked"))
        drawn = [self.first[place] for place in sorted(order[:most].tolist())]
        said = {**self.data, "asked": f"{most:,} of {len(self.first):,}"}
        return replace(self, first=drawn, everyone=self.first, data=said)

    def plain(
        self, *, noise: float = 0.0, shrink: float = 0.0, rng: torch.Generator | None = None
    ) -> Mapping[int, Tensor]:
        """The numbers of each release, rows averaged; with `rng`, after adding noise and dividing by 1 - `shrink`."""
        found = {}
        for number, artifact in self.sent.items():
            parts = []
            for name, value in released_numbers(artifact).items():
                if rng is not None:
                    value = add_noise(value, shrink=shrink, noise=noise, rng=child(rng, number, name)) / (1 - shrink)
                    value = value if name == "mean" else value.clamp_min(0)  # no std is negative
                parts.append(value.mean(0))
            found[number] = torch.cat(parts)
        return found


def populations_of(cases: Sequence[Case]) -> list[Population]:
    """Group the cases by question and slice, ignoring the half; numbers keep their order."""
    found: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(cases):
        if case.question in ("halves", "sessions", "given"):
            where = sorted((key, value) for key, value in case.slice.items() if key != "half")
            found.setdefault((case.question, *where), []).append(number)
    return [
        Population(
            question=cases[numbers[0]].question,
            slice={key: value for key, value in cases[numbers[0]].slice.items() if key != "half"},
            data={"data": "the same"} if cases[numbers[0]].question == "sessions" else {},
            first=[n for n in numbers if cases[n].slice.get("half") == "A"],
            second=[n for n in numbers if cases[n].slice.get("half") == "B"],
            sent={n: _seen_release(cases[n]) for n in numbers},
            records=_median_size([cases[n].records for n in numbers]),
            single=_of_single_images([cases[n] for n in numbers]),
        )
        for numbers in found.values()
    ]


def _median_size(sizes: Sequence[int | None]) -> int | None:
    """The median number of images behind a release; None where the adversary does not know it."""
    known = sorted(size for size in sizes if size is not None)
    return known[len(known) // 2] if known else None


def _of_single_images(cases: Sequence[Case]) -> bool:
    """Whether clients sent rows of single images. An adversary that sees banks only can infer it from several rows per
    client."""
    uploads = [case.views[0].artifact(case.victim) for case in cases]
    if all(upload is None for upload in uploads):
        return any(len(case.released()[0]) > 1 for case in cases)
    return any(isinstance(upload, ImageStyles) for upload in uploads)


def _seen_release(case: Case) -> Artifact:
    """What was seen of the client: rows of styles, its own or those of a bank, else its artifact."""
    styles = case.views[0].styles(case.victim)
    return case.release() if styles is None else ImageStyles(mean=styles[0], std=styles[1])


def rankings(
    population: Population, where: Mapping[str, str | int], apart: Tensor, *, descriptive: bool = False
) -> list[Ranking]:
    """Answer every first release by a row of `apart` (first, second), the distances of the second ones."""
    said = {**population.data, **where}
    return [
        Ranking(case=n, slice=said, distances=row.unsqueeze(0), of="partner", descriptive=descriptive)
        for n, row in zip(population.first, apart, strict=True)
    ]


def euclidean_distances(
    read: Mapping[int, Tensor], first: Sequence[int], second: Sequence[int], *, along: Tensor | None = None
) -> Tensor:
    """The distances (first, second) of what was `read` of each release, or of its coordinates `along` (D, k)."""
    own, others = (torch.stack([read[n] for n in numbers]) for numbers in (first, second))
    if along is not None:
        own, others = own @ along, others @ along
    return torch.cdist(own, others, compute_mode="donot_use_mm_for_euclid_dist")
