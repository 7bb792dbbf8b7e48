"""Clients of which some records are replaced, to see whether what is made of the others changes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.random_streams import stream

Content = Literal["black", "noise", "copies"]
"""What replaces an image: a black one of the first class, noise of the next one, or the first image that is kept."""


def with_records_replaced(data: DomainDataset, kept: Tensor, content: Content) -> DomainDataset:
    """The same names, with other pictures, classes and domains where images are not `kept` (n,) bool.

    Raises IndexError for copies where none is kept."""
    pixels, rng = data.pixels().clone(), stream(0, "world", "record preparation", content)
    fresh, other = torch.zeros_like(pixels), torch.zeros_like(data.labels)
    origin = (data.domains + 1) % max(len(data.domain_names), 1)
    if content == "copies":
        first = kept.nonzero()[0]
        fresh, other = pixels[first].expand_as(pixels), data.labels[first].expand_as(data.labels)
        origin = data.domains[first].expand_as(data.domains)
    if content == "noise":
        fresh = torch.randint(0, 256, pixels.shape, generator=rng, dtype=torch.uint8)
        other = (data.labels + 1) % max(len(data.class_names), 1)
    pixels[~kept] = fresh[~kept]
    labels = torch.where(kept, data.labels, other)
    domains = torch.where(kept, data.domains, origin)
    return replace(data, store=pixels, rows=torch.arange(len(pixels)), labels=labels, domains=domains)


def replacements(count: int) -> Iterator[tuple[Tensor, Content]]:
    """Which of `count` images are kept (count,) bool, and what replaces the others."""
    places = torch.arange(count)
    if count > 1:
        yield (places == 0) | (places == count // 2), "copies"
        yield places != count // 3, "noise"
    for digit in range(max((count - 1).bit_length(), 1)):
        has = places >> digit & 1 == 1
        if bool((~has).any()):
            yield ~has, "black"
        if bool(has.any()):
            yield has, "noise"


def replacements_of_all(data: DomainDataset, round: int) -> Iterator[tuple[Tensor, Content]]:
    """The same of all images of a client: one of every second class is kept, or two, the next ones in every round."""
    contents: Sequence[Content] = ("black", "noise")
    for turn, content in enumerate(contents):
        kept = torch.zeros(len(data), dtype=torch.bool)
        for number, label in enumerate(data.labels.unique()):
            own = (data.labels == label).nonzero().flatten()
            kept[own[round % len(own)]] = number % 2 == (round + turn) % 2
        if not bool(kept.any()):  # of a single class
            kept[round % len(data)] = True
        yield kept, content
    places = torch.arange(len(data))
    yield (places == round % len(data)) | (places == (round + len(data) // 2) % len(data)), "copies"
