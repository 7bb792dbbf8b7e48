"""Re-identification: which image is behind a released single-image style, or behind a released amplitude spectrum?

A style of one image (CCST eq. 7) is a fixed function of it, so whoever holds the image, or a copy of it, can look it up:
every released row is compared with the styles of a gallery of candidates, by Euclidean distance after whitening with the
covariance of public images' styles within their domain (Ledoit-Wolf shrinkage; where a defense acts, with that of its noise). Amplitude spectra of single images (FedDG;
CCST's appendix E) are looked up in the same way, by the logarithms of their lowest frequencies. Variants say how much the
look-up needs: `known`, the adversary holds the very image; `random crop`, its copy is a random crop of 80 to 100% of the
area; `jpeg 75`, its copy was compressed; `float16` and `2 decimals`, the copy is exact but the release was rounded."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from fdgsec.attacks.reidentification.lookup_features import Look, SpectrumRows, StyleRows, spectra_of
from fdgsec.attacks.statistics.defense_noise import RowDefenseNoise, defense_noise_of_rows
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.styles.channel_statistics import Moments, moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement, stream
from fdgsec.threats.attack import (
    Answers,
    Case,
    Knowledge,
    PositiveControl,
    Question,
    QuestionKind,
    Ranking,
    TargetFacts,
    Truth,
)
from fdgsec.threats.planted import upload

LEAST_AREA = 0.8
JPEG_QUALITY = 75
LARGEST_HALF = 65504.0

Rounding = Callable[[Tensor], Tensor]
ROUNDINGS: dict[str, Rounding] = {
    "known": lambda styles: styles,
    "float16": lambda styles: styles.clamp(max=LARGEST_HALF).half().to(torch.float64),
    "2 decimals": lambda styles: styles.round(decimals=2),
}
"""What is done to the released rows; the adversary's copies stay exact."""
COPIES = ("random crop", "jpeg 75")


@dataclass(frozen=True, kw_only=True)
class Reidentification:
    """Look released single-image styles or spectra up in a gallery of `gallery` images.

    The run's own rows are few, so beside them stands what clients that hold all non-auxiliary images would have released
    (at most `per_class` per class, or `spectra_per_class`, which are a thousand times larger), against a gallery of their
    own domain. There rows are the gallery: 0 takes as many of each class as make `rows` in all, which bounds the distances
    that are held whatever the domain's size. Copies are made for the run's own rows only: each kind costs one pass over the gallery."""

    name: ClassVar[str] = "reidentification"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "transform"})
    gallery: int = 1000
    per_class: int = 0
    rows: int = 2000
    spectra_per_class: int = 10

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the run as it is, and for as many rows as the data allow.

        Raises UsageError where no images are known, or where spectra are pooled over a client's images."""
        facts.check_images()
        spectra = "Amplitudes" in facts.artifact_kinds
        if spectra and facts.pooled:
            raise UsageError("looks spectra of single images up; those of this target are means over a client's images")
        per_class = self.spectra_per_class if spectra else self.per_class or max(1, self.rows // facts.classes)
        return [
            Question(kind="released", gallery=self.gallery),
            Question(kind="as_if_released", per_class=per_class),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank the gallery for every released row, once per variant."""
        return _lookups(cases, knowledge, child(rng, "copies"), None)

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank after every row of a client was exchanged for another of its rows; the copies stay out.

        A copied gallery costs an encoder pass, and what it could betray by its order the known one betrays as well."""
        return _lookups(cases, knowledge, child(rng, "copies"), child(rng, "ring"))

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Release the colors of 20 of 60 images, each of two colors of its own, under a known projection; and spectra."""
        gallery, released, public = 60, 20, 60
        images = _two_colors(gallery + public, rng)
        statistics = _ColorStatistics(projection=torch.randn(16, 3, generator=rng))
        candidates = images.subset(torch.randperm(gallery, generator=rng))
        mean, std = statistics(candidates.subset(torch.arange(released))).style(unbiased=True)
        seen = amplitudes(as_float(candidates.pixels(torch.arange(released))))
        artifacts: tuple[tuple[QuestionKind, Artifact], ...] = (
            ("released", ImageStyles(mean=mean.float(), std=std.float())),
            ("as_if_released", Amplitudes(values=seen, owner=torch.zeros(released, dtype=torch.int64))),
        )
        cases = [
            Case(
                question=question, views=(upload(artifact),), victim="client:0", slice={"domain": "planted"},
                candidates=candidates,
            )
            for question, artifact in artifacts
        ]  # fmt: skip
        planted = replace(
            knowledge, statistics=statistics, domain_names=("planted",),
            auxiliary=images.subset(torch.arange(gallery, gallery + public)),
        )  # fmt: skip
        truth = Truth(rows=torch.arange(released))
        return PositiveControl(cases=cases, truths=[truth] * 2, knowledge=planted, measurement="top1", at_least=0.9)


def _spectral_size(case: Case) -> tuple[int, int] | None:
    """The size of the images whose spectra were released, None where styles were; resized images are square."""
    if case.candidates is None:
        raise UsageError(f"reidentification looks rows up among candidates; {case.victim} came without any.")
    if case.views[0].styles(case.victim) is not None:
        return None
    height, columns = spectra_of(case).shape[2:]
    size = case.candidates.image_size
    return size if (size[0], size[1] // 2 + 1) == (height, columns) else (height, height)


def _lookups(
    cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, ring: torch.Generator | None
) -> list[Ranking]:
    """Rank candidates for every variant; with `ring` the rows of a case go round a random ring first."""
    looks: dict[tuple[int, int] | None, tuple[Look, Whitening, RowDefenseNoise | None]] = {}
    placed: dict[tuple[int, tuple[int, int] | None, str], Tensor] = {}  # clients of one run share their gallery
    answers = []
    for number, case in enumerate(cases):
        if case.question not in ("released", "as_if_released"):
            continue
        size = _spectral_size(case)
        if size not in looks:
            made: Look = StyleRows(knowledge=knowledge) if size is None else SpectrumRows(size=size)
            looks[size] = made, *_whitening(knowledge, made)
        look, whiten, defense_noise = looks[size]
        rows = look.rows(case)
        rows = rows if ring is None else rows[derangement(len(rows), ring)]
        kind = case.question.replace("_", " ")
        for variant in (*ROUNDINGS, *(COPIES if case.question == "released" and ring is None else ())):
            copy = variant if variant in COPIES else "known"
            key = (id(case.candidates), size, copy)
            if key not in placed:
                assert case.candidates is not None
                gallery = _copied(case.candidates, copy, child(rng, copy))
                expected = look.compared(look.images(gallery))
                placed[key] = whiten(expected if defense_noise is None else defense_noise.placed(expected))
            seen = whiten(look.compared(ROUNDINGS[variant if variant in ROUNDINGS else "known"](rows)))
            where = {"rows": kind, "transform": variant}
            answers.append(Ranking(case=number, slice=where, distances=torch.cdist(seen, placed[key])))
    return answers


def _whitening(knowledge: Knowledge, look: Look) -> tuple[Whitening, RowDefenseNoise | None]:
    """Fit on how public images differ within a domain: what separates domains tells no two images of one apart.

    Where a defense acts, whitened is what it does to rows instead (fdgsec.attacks.statistics.defense_noise), which comes along."""
    images = knowledge.public_images()
    rows = look.compared(look.images(images))
    for domain in images.domains.unique():
        mine = images.domains == domain
        rows[mine] -= rows[mine].mean(0)
    defense_noise = defense_noise_of_rows(
        knowledge, images, made=look.made, read=lambda artifact: look.compared(look.read(artifact)),
        rng=stream(0, "attack", "blur of rows"),  # says what noise is like, nothing secret
    )  # fmt: skip
    whiten = fit_whitening(rows)
    return (whiten if defense_noise is None else defense_noise.whitening(whiten)), defense_noise


def _copied(images: DomainDataset, copy: str, rng: torch.Generator) -> DomainDataset:
    """The adversary's copies of `images`: the images themselves, or a new set of changed pixels."""
    if copy == "known":
        return images
    change = _cropped if copy == "random crop" else _compressed
    store = torch.stack([change(images.pixels(torch.tensor([i]))[0], rng) for i in range(len(images))])
    return replace(images, name=f"{images.name} ({copy})", store=store, rows=torch.arange(len(images)))


def _cropped(pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Cut a square-proportioned part of 80 to 100% of the area out of (3, H, W) uint8, and bring it back to H x W."""
    height, width = pixels.shape[1:]
    draw = torch.rand(3, generator=rng)
    side = (LEAST_AREA + (1 - LEAST_AREA) * float(draw[0])) ** 0.5
    tall, wide = max(1, round(side * height)), max(1, round(side * width))
    top, left = int(float(draw[1]) * (height - tall + 1)), int(float(draw[2]) * (width - wide + 1))
    part = as_float(pixels[:, top : top + tall, left : left + wide]).unsqueeze(0)
    back = interpolate(part, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
    return (back[0] * 255).round().clamp(0, 255).to(torch.uint8)


def _compressed(pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Send (3, H, W) uint8 through JPEG at quality 75 (4:2:0, as Pillow does by default)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(buffer, format="JPEG", quality=JPEG_QUALITY)
    with Image.open(buffer) as image:
        decoded = cast("np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", np.array(image.convert("RGB")))
    return torch.from_numpy(decoded).permute(2, 0, 1).contiguous()


@dataclass(frozen=True, kw_only=True, eq=False)
class _ColorStatistics:
    """An encoder for the plant: channels are a fixed `projection` (C, 3) of the pixels' colors."""

    projection: Tensor

    def __call__(self, dataset: DomainDataset) -> Moments:
        """Give one row of moments per image of `dataset`."""
        return moments(torch.einsum("kc,nchw->nkhw", self.projection, as_float(dataset.pixels())))


def _two_colors(count: int, rng: torch.Generator) -> DomainDataset:
    """Make `count` images of 32 px, a checkerboard of two random colors each: colors survive cropping and JPEG."""
    colors = torch.randint(0, 256, (count, 2, 3, 1, 1), generator=rng)
    line = torch.arange(32) // 8
    board = ((line.unsqueeze(0) + line.unsqueeze(1)) % 2).to(torch.int64)
    store = torch.where(board.bool(), colors[:, 0], colors[:, 1]).to(torch.uint8)
    nothing = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="planted", store=store, rows=torch.arange(count), labels=nothing, domains=nothing,
        ids=tuple(f"planted/{number}" for number in range(count)), class_names=("any",), domain_names=("planted",),
    )  # fmt: skip
