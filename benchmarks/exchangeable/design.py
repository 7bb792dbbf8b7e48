"""Answers that carry no information about the truth, one design for each judged row of a report.

A design draws the answers of one row's cases and their truths independently of each other, at sizes that reports have:
3 to 50 clients, galleries of 4 to 105 candidates, skewed classes, ties, and answers of one client that depend on each
other. Where chance is the score of a guess without the release, answer and guess are drawn alike, or exchanged at
random: nothing then favors either."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Case, Truth

Draw = Callable[[torch.Generator], tuple[list[Answer], list[Case], list[Truth]]]
DOUBLE = torch.float64


@dataclass(frozen=True, kw_only=True)
class Design:
    """One null: `kind` of answer, what distinguishes the design, and how answers, cases and truths are drawn.

    `repeats` are the judge's bootstrap repeats."""

    kind: str
    name: str
    draw: Draw
    repeats: int = 1000


def case(number: int, *, candidates: DomainDataset | None = None, records: int | None = None) -> Case:
    """A case about client `number`, with the size of its slice where `records` says it."""
    where: dict[str, str | int] = {} if records is None else {"n_per_client": records}
    return Case(question="released", views=(), victim=f"client:{number + 1}", slice=where, candidates=candidates)


def cases(count: int) -> list[Case]:
    """Cases of one slice, one for each client."""
    return [case(number) for number in range(count)]


def order(count: int, rng: torch.Generator) -> Tensor:
    """A random permutation."""
    return torch.randperm(count, generator=rng)


def normal(*size: int, rng: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*size, generator=rng, dtype=DOUBLE)


def nothing_but_images(count: int) -> DomainDataset:
    """Images of one pixel that differ in their ids alone."""
    return shown(torch.zeros(count, 3, 1, 1, dtype=torch.uint8))


def shown(pixels: Tensor) -> DomainDataset:
    """Images (N, 3, H, W) uint8 of one class and domain, named by their numbers."""
    count = len(pixels)
    return DomainDataset(
        name="any", store=pixels, rows=torch.arange(count), labels=torch.zeros(count, dtype=torch.int64),
        domains=torch.zeros(count, dtype=torch.int64), class_names=("any",), domain_names=("any",),
        ids=tuple(map(str, range(count))),
    )  # fmt: skip
