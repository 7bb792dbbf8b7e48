"""Re-identification: which image is behind a released single-image style, or behind a released amplitude spectrum.

A style of one image (CCST eq. 7) is a fixed function of it, so an adversary that holds the image, or a copy of it, can
look it up. Every released row is compared with the styles of a gallery of candidates, by Euclidean distance after
whitening with the covariance of public images' styles within their domain (Ledoit-Wolf shrinkage; where a defense acts,
with that of its noise). Amplitude spectra of single images (FedDG; CCST's appendix E) are looked up in the same way, by
the logarithms of their lowest frequencies. Variants measure how exact the copy must be: `known`, the adversary holds
the very image; `random crop`, its copy is a random crop of 80 to 100% of the area; `jpeg 75`, its copy was compressed;
`float16` and `2 decimals`, the copy is exact but the release was rounded."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from fdgsec.attacks.reidentification.control import planted_lookups
from fdgsec.attacks.reidentification.lookup_features import RowFeatures, SpectrumRows, StyleRows, spectra_of
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, RowDefenseNoise, defended_alike, defense_noise_of_rows
from fdgsec.attacks.statistics.release_precision import ROUNDINGS
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Ranking
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.option_checks import check_at_least

LEAST_AREA = 0.8
JPEG_QUALITY = 75

Rounding = Callable[[Tensor], Tensor]
TRANSFORMS: dict[str, Rounding] = {
    "known": lambda styles: styles,
    **ROUNDINGS,
}
"""Transformations of the released rows; the adversary's copies stay exact."""
COPIES = ("random crop", "jpeg 75")


@dataclass(frozen=True, kw_only=True)
class Reidentification:
    """Look released single-image styles or spectra up in a gallery of `gallery` images.

    The run's own rows are few. They are therefore complemented by what clients with all non-auxiliary images would have
    released (at most `per_class` per class, or `spectra_per_class`, because spectra are a thousand times larger),
    against a gallery of their own domain. There the rows are the gallery: 0 takes as many of each class as make `rows`
    in all, which bounds the number of distances in memory for any domain size. Copies are made for the run's own rows
    only, because each kind costs one pass over the gallery."""

    name: ClassVar[str] = "reidentification"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "transform"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    gallery: int = 1000
    per_class: int = 0
    rows: int = 2000
    spectra_per_class: int = 10

    def __post_init__(self) -> None:
        check_at_least(1, {"gallery": self.gallery, "rows": self.rows, "spectra_per_class": self.spectra_per_class})
        check_at_least(0, {"per_class": self.per_class})

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
        """Rank with every row of a client exchanged for another of its rows, without the copies.

        A copied gallery costs an encoder pass, and any leak through its order would show with the known one as well."""
        return _lookups(cases, knowledge, child(rng, "copies"), child(rng, "ring"))

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Colors of two-color images under a known projection, and spectra
        (fdgsec.attacks.reidentification.control)."""
        return planted_lookups(knowledge, rng)


def _spectral_size(case: Case) -> tuple[int, int] | None:
    """The size of the images whose spectra were released, None where styles were; resized images are square."""
    if case.candidates is None:
        raise UsageError(f"reidentification looks rows up among candidates; {case.victim} came without any.")
    view = case.views[0]
    if not isinstance(view.artifact(case.victim), Amplitudes) and view.styles(case.victim) is not None:
        return None
    height, columns = spectra_of(case).shape[2:]
    size = case.candidates.image_size
    return size if (size[0], size[1] // 2 + 1) == (height, columns) else (height, height)


def _lookups(
    cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, ring: torch.Generator | None
) -> list[Ranking]:
    """Rank candidates for every variant; with `ring`, the rows of a case are permuted first."""
    looks: dict[tuple[int, int] | None, tuple[RowFeatures, Callable[[Tensor], Tensor], RowDefenseNoise | None]] = {}
    placed: dict[tuple[int, tuple[int, int] | None, str], Tensor] = {}  # shared by the clients of one run
    answers = []
    for number, case in enumerate(cases):
        if case.question not in ("released", "as_if_released"):
            continue
        size = _spectral_size(case)
        if size not in looks:
            made: RowFeatures = StyleRows(knowledge=knowledge) if size is None else SpectrumRows(size=size)
            looks[size] = made, *_whitening(knowledge, made)
        look, whiten, defense_noise = looks[size]
        rows = look.rows(case)
        rows = rows if ring is None else rows[derangement(len(rows), ring)]
        kind = case.question
        for variant in (*TRANSFORMS, *(COPIES if case.question == "released" and ring is None else ())):
            copy = variant if variant in COPIES else "known"
            key = (id(case.candidates), size, copy)
            if key not in placed:
                assert case.candidates is not None
                gallery = _copies(case.candidates, copy, child(rng, copy))
                expected = look.compared(_expected(gallery, knowledge, look, whiten))
                placed[key] = whiten(expected if defense_noise is None else defense_noise.placed(expected))
            seen = whiten(look.compared(TRANSFORMS[variant if variant in TRANSFORMS else "known"](rows)))
            where = {"rows": kind, "transform": variant}
            answers.append(Ranking(case=number, slice=where, distances=torch.cdist(seen, placed[key])))
    return answers


def _as_they_are(rows: Tensor) -> Tensor:
    """Rows that are compared exactly."""
    return rows


def _expected(
    gallery: DomainDataset, knowledge: Knowledge, look: RowFeatures, whiten: Callable[[Tensor], Tensor]
) -> Tensor:
    """The rows of candidates, as they would be received where the defense gives equal rows for equal images."""
    if whiten is not _as_they_are:
        return look.images(gallery)
    assert knowledge.defended is not None
    return look.read(knowledge.defended(look.made(gallery), gallery, stream(0, "attack", "rows alike")))


def _whitening(knowledge: Knowledge, look: RowFeatures) -> tuple[Callable[[Tensor], Tensor], RowDefenseNoise | None]:
    """Fit on the differences of public images within a domain, because differences between domains do not separate its
    images.

    Where a defense acts, its noise on rows is whitened instead (fdgsec.attacks.statistics.defense_noise), and returned;
    where it gives equal rows for equal images, nothing is."""
    if defended_alike(knowledge, made=look.made, read=look.read):
        return _as_they_are, None
    images = knowledge.public_images()
    rows = look.compared(look.images(images))
    for domain in images.domains.unique():
        mine = images.domains == domain
        rows[mine] -= rows[mine].mean(0)
    defense_noise = defense_noise_of_rows(
        knowledge, images, made=look.made, read=lambda artifact: look.compared(look.read(artifact)),
        rng=stream(0, "attack", "blur of rows"),  # public: describes the noise distribution only
    )  # fmt: skip
    whiten = fit_whitening(rows)
    return (whiten if defense_noise is None else defense_noise.whitening(whiten)), defense_noise


def _copies(images: DomainDataset, copy: str, rng: torch.Generator) -> DomainDataset:
    """The adversary's copies of `images`: the images themselves, or a new set of changed pixels."""
    if copy == "known":
        return images
    pixels = (images.pixels(torch.tensor([row]))[0] for row in range(len(images)))
    changed = [_crop(image, rng) if copy == "random crop" else _compress(image) for image in pixels]
    return replace(images, name=f"{images.name} ({copy})", store=torch.stack(changed), rows=torch.arange(len(images)))


def _crop(pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Crop 80 to 100% of the area of (3, H, W) uint8 at the same aspect ratio, and resize it back to H x W."""
    height, width = pixels.shape[1:]
    draw = torch.rand(3, generator=rng)
    side = (LEAST_AREA + (1 - LEAST_AREA) * float(draw[0])) ** 0.5
    tall, wide = max(1, round(side * height)), max(1, round(side * width))
    top, left = int(float(draw[1]) * (height - tall + 1)), int(float(draw[2]) * (width - wide + 1))
    part = as_float(pixels[:, top : top + tall, left : left + wide]).unsqueeze(0)
    back = interpolate(part, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
    return (back[0] * 255).round().clamp(0, 255).to(torch.uint8)


def _compress(pixels: Tensor) -> Tensor:
    """Compress (3, H, W) uint8 by JPEG at quality 75 (4:2:0, Pillow's default)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(buffer, format="JPEG", quality=JPEG_QUALITY)
    with Image.open(buffer) as image:
        decoded = cast("np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", np.array(image.convert("RGB")))
    return torch.from_numpy(decoded).permute(2, 0, 1).contiguous()
