"""Judge by galleries: whether the true image can be picked out of many by its reconstruction."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.metrics.image_similarity import EmbeddingDistance, PerceptualDistance
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.judging.groups import Entry, unavailable
from fdgsec.threats.judging.rankings import Ranked, measure_rows

BLOCK = 64  # images through a network, or rows of distances, at a time
KEPT = 400  # embeddings of pictures that are kept: 100 MiB of `mini` at 64 px


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """How many reconstructions and candidates are ranked by a distance that costs a network pass per pair."""

    rows: int = 48
    candidates: int = 25


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeds pictures, equal ones once: a control repeats reconstructions, is one picture, or returns in a next slice.

    The KEPT last used embeddings stay."""

    embed: Callable[[Tensor], Tensor]
    kept: dict[bytes, Tensor] = field(default_factory=dict)

    def __call__(self, images: Tensor) -> Tensor:
        """Embed images (N, 3, h, w), (N, D)."""
        keys = [hashlib.sha256(image.contiguous().numpy(force=True).data).digest() for image in images]
        new = {key: place for place, key in enumerate(keys) if key not in self.kept}
        points = embedded(self.embed, images[list(new.values())]) if new else images.new_empty(0)
        self.kept.update(zip(new, points, strict=True))
        found = torch.stack([self.kept[key] for key in keys])
        for key in keys:
            self.kept[key] = self.kept.pop(key)  # the last used come last
        for key in list(self.kept)[: max(0, len(self.kept) - KEPT)]:
            del self.kept[key]
        return found


@dataclass(frozen=True, eq=False)
class Galleries:
    """Candidates at the size of the reconstructions, and where a distance places them, made once per gallery."""

    kept: dict[tuple[int, tuple[int, int], str], tuple[DomainDataset, Tensor]] = field(default_factory=dict)
    embedders: dict[str, Embedded] = field(default_factory=dict)

    def embedder(self, distance: EmbeddingDistance, name: str) -> Embedded:
        """What embeds reconstructions and true images for the distance called `name`."""
        return self.embedders.setdefault(name, Embedded(embed=distance.embed))

    def pictures(self, gallery: DomainDataset, size: tuple[int, int]) -> Tensor:
        """The candidates, (G, 3, h, w) in [0, 1]."""
        return self._once(gallery, size, "", lambda: downsample(gallery.pixels(), size))

    def points(self, gallery: DomainDataset, size: tuple[int, int], distance: EmbeddingDistance, name: str) -> Tensor:
        """The candidates' embeddings, (G, D)."""
        return self._once(gallery, size, name, lambda: embedded(distance.embed, self.pictures(gallery, size)))

    def _once(self, gallery: DomainDataset, size: tuple[int, int], name: str, make: Callable[[], Tensor]) -> Tensor:
        key = (id(gallery), size, name)
        if key not in self.kept:
            self.kept[key] = (gallery, make())  # holding the gallery keeps its id its own
        return self.kept[key][1]


def gallery_rows(
    entries: Sequence[Entry[Reconstructions]], where: Slice, perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator, lineup: Lineup, galleries: Galleries,
) -> list[Measurement]:  # fmt: skip
    """Rank the true image among the case's candidates by their distance to the reconstruction."""
    names = ["gallery_top1", "gallery_top5"]
    rows: list[Measurement] = []
    if any(entry.case.candidates is None or entry.truth.rows is None for entry in entries):
        return unavailable(names, {**where, "distance": "mse"}, "the case has no candidates to rank", n=len(entries))
    rows += measure_rows(_pixel_rankings(entries, galleries), {**where, "distance": "mse"}, prefix="gallery_")
    share = max(1, lineup.rows // len(entries))
    for distance in perceptual:
        slice_ = {**where, "distance": distance.name}
        try:
            if isinstance(distance, EmbeddingDistance):
                blocks = _embedded_rankings(entries, distance, distance.name, galleries)
            else:
                blocks = [
                    _perceptual_ranking(entry, distance, child(rng, number), rows=share, candidates=lineup.candidates)
                    for number, entry in enumerate(entries)
                ]
        except ValueError as error:  # images too small for this distance
            rows += unavailable(names, slice_, str(error), n=len(entries))
            continue
        rows += measure_rows(blocks, slice_, prefix="gallery_")
    return rows


def _pixel_rankings(entries: Sequence[Entry[Reconstructions]], galleries: Galleries) -> list[Ranked]:
    """Rank the true images among all candidates by their squared error."""
    return _rankings(
        entries, lambda guessed, gallery, size: squared_distances(guessed, galleries.pictures(gallery, size))
    )


def _rankings(
    entries: Sequence[Entry[Reconstructions]],
    apart: Callable[[Tensor, DomainDataset, tuple[int, int]], Tensor],
) -> list[Ranked]:
    """Rank the true image of every entry; `apart` compares all pictures of one size with a gallery at once."""
    shared: dict[tuple[int, tuple[int, int]], list[int]] = {}
    for number, entry in enumerate(entries):
        images = entry.answer.images
        shared.setdefault((id(entry.case.candidates), (int(images.shape[2]), int(images.shape[3]))), []).append(number)
    found: dict[int, Ranked] = {}
    for (_, size), numbers in shared.items():
        gallery = entries[numbers[0]].case.candidates
        assert gallery is not None
        guessed = [entries[number].answer.images for number in numbers]
        parts = apart(torch.cat(guessed), gallery, size).split([len(images) for images in guessed])
        for number, part in zip(numbers, parts, strict=True):
            columns = entries[number].truth.rows
            assert columns is not None
            found[number] = Ranked(distances=part, truth=columns)
    return [found[number] for number in range(len(entries))]


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Give the summed squared pixel difference of every pair: (N, M), both sides centered so that float32 suffices."""
    center = second.flatten(1).mean(0)
    one, other = first.float().flatten(1) - center, second.flatten(1) - center
    length = other.square().sum(1)
    return torch.cat([
        part.square().sum(1, keepdim=True) + length - 2 * part @ other.T for part in one.split(BLOCK)
    ])  # fmt: skip


def _perceptual_ranking(
    entry: Entry[Reconstructions], distance: PerceptualDistance, rng: torch.Generator, *, rows: int, candidates: int
) -> Ranked:
    """Rank the true image among `candidates` - 1 others drawn at random, for `rows` reconstructions drawn at random."""
    gallery, columns = entry.case.candidates, entry.truth.rows
    assert gallery is not None
    assert columns is not None
    guessed = entry.answer.images.float()
    size = (int(guessed.shape[2]), int(guessed.shape[3]))
    asked = torch.randperm(len(guessed), generator=rng)[:rows]
    found, places = [], []
    for number in asked.tolist():
        true = int(columns[number])
        others = torch.randperm(len(gallery) - 1, generator=rng)[: candidates - 1]
        others += (others >= true).to(torch.int64)
        shown = torch.cat([others, torch.tensor([true])])
        pictures = downsample(gallery.pixels(shown), size)
        with torch.inference_mode():
            apart = [distance(guessed[number].expand_as(part).contiguous(), part) for part in pictures.split(BLOCK)]
        found.append(torch.cat(apart).clone())
        places.append(len(shown) - 1)
    return Ranked(distances=torch.stack(found), truth=torch.tensor(places))


def _embedded_rankings(
    entries: Sequence[Entry[Reconstructions]], distance: EmbeddingDistance, name: str, galleries: Galleries
) -> list[Ranked]:
    """Rank the true images among all candidates by a distance of embeddings."""
    embed = galleries.embedder(distance, name)

    def apart(guessed: Tensor, gallery: DomainDataset, size: tuple[int, int]) -> Tensor:
        points = galleries.points(gallery, size, distance, name)
        return torch.cat([torch.cdist(embed(part), points).square() for part in guessed.split(BLOCK)])

    return _rankings(entries, apart)


def embedded(embed: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Embed images block by block, (N, D)."""
    with torch.inference_mode():
        parts = [embed(part.float()) for part in images.split(BLOCK)]
    return torch.cat(parts).clone()
