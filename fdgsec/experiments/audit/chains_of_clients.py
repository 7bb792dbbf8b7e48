"""Chains of clients, each of which has one other image than the one before.

What a mechanism sends may hang on where the median lies, on which class is the third most frequent, or on whether any
image has texture. Nowhere does one image decide that for every client, but somewhere along a chain it does: between
clients of black images alone and of white ones alone every share of both occurs, between black ones and the client's
own every share of ordinary pictures among extreme ones, and among clients whose images are drawn anew one by one, from
pictures and classes of all kinds, classes gain and lose ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.random_streams import stream

LONGEST = 48
"""Images of a client, up to which each of them is replaced once on the way from black to white ones."""
SHARES = sorted({Fraction(part, whole) for whole in (2, 3, 20) for part in range(whole + 1)})
"""Shares of black images of larger clients, near each of which single images are replaced."""
TURNS = 3
"""How often, on average, an image of the mixed chain is drawn anew."""
USUAL = 0.7
"""Share of images that have the usual picture, and of those with the usual class, and domain."""


def chains_of(data: DomainDataset) -> Iterator[Sequence[DomainDataset]]:
    """Chains of clients with the names of `data`, whose neighbors differ in one image."""
    yield from _to_black(_of_white_images(data))
    yield from _to_black(data)
    yield _mixed(data)


def strangers(data: DomainDataset) -> Sequence[DomainDataset]:
    """Clients with the names of `data` that have no image in common: of its own images, white ones, and black ones."""
    return [data, _of_white_images(data), _divided(data, len(data))]


def _to_black(data: DomainDataset) -> Iterator[Sequence[DomainDataset]]:
    """Images are replaced by black ones of the first class, one by one or near certain shares."""
    for counts in counts_of(len(data)):
        yield [_divided(data, black) for black in counts]


def counts_of(images: int) -> Iterator[range]:
    """How many of a client's images are of one kind along chains of clients: any number, or those near certain
    shares."""
    if images <= LONGEST:
        yield range(images + 1)
        return
    for share in SHARES:
        middle = round(share * images)
        yield range(max(0, middle - 2), min(images, middle + 2) + 1)


def _of_white_images(data: DomainDataset) -> DomainDataset:
    """White images, of the second class."""
    labels = torch.ones_like(data.labels).clamp(max=_last(data))
    return _client(data, torch.full_like(data.pixels(), 255), labels, data.domains)


def _divided(data: DomainDataset, black: int) -> DomainDataset:
    """The first `black` images are black and of the first class."""
    pixels, labels = data.pixels().clone(), data.labels.clone()
    pixels[:black], labels[:black] = 0, 0
    return _client(data, pixels, labels, data.domains)


def _mixed(data: DomainDataset) -> Sequence[DomainDataset]:
    """Images of one kind, class and domain are drawn anew one by one; of large clients, all are first.

    Half of the pictures are black, white, half of each, or noise, and half are the client's own. Most images have the
    usual picture, class or domain, which are others after each turn: so all others are rare."""
    rng, count = stream(0, "world", "chain of clients"), len(data)
    pictures = torch.cat([_plain(data, rng), data.pixels()])
    kinds = len(pictures) - count, _last(data) + 1, max(len(data.domain_names), 1)
    made = torch.zeros(3, count, dtype=torch.int64)  # picture, class and domain of each image
    first, usual = torch.randperm(count, generator=rng), made[:, 0].clone()

    def drawn(size: int) -> Tensor:
        found = torch.stack([torch.randint(kind, (size,), generator=rng) for kind in kinds])
        own = torch.randint(2, (size,), generator=rng).bool()
        found[0, own] = kinds[0] + torch.randint(count, (size,), generator=rng)[own]
        return found

    def draw(places: Tensor) -> None:
        common = torch.rand(3, len(places), generator=rng) < USUAL
        made[:, places] = torch.where(common, usual.unsqueeze(1), drawn(len(places)))

    if count > LONGEST:
        draw(first)
    chain, turn = [_client(data, pictures[made[0]], made[1].clone(), made[2].clone())], min(count, LONGEST)
    for step in range(TURNS * turn):
        if step % turn == 0:
            usual = drawn(1)[:, 0]
        begun = step < count <= LONGEST
        draw(first[step : step + 1] if begun else torch.randint(count, (1,), generator=rng))
        chain.append(_client(data, pictures[made[0]], made[1].clone(), made[2].clone()))
    return chain


def _plain(data: DomainDataset, rng: torch.Generator) -> Tensor:
    """A black, a white and a half white picture, and noise, (4, 3, H, W) uint8."""
    noise = torch.randint(0, 256, data.pixels()[:1].shape, generator=rng, dtype=torch.uint8)
    black = torch.zeros_like(noise)
    half = black.clone()
    half[..., : half.shape[-1] // 2] = 255
    return torch.cat([black, torch.full_like(noise, 255), half, noise])


def _last(data: DomainDataset) -> int:
    return max(len(data.class_names) - 1, 0)


def _client(data: DomainDataset, pixels: Tensor, labels: Tensor, domains: Tensor) -> DomainDataset:
    return replace(data, store=pixels, rows=torch.arange(len(pixels)), labels=labels, domains=domains)
