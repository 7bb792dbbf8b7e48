"""Judge reconstructions: their similarity to the true image, and the gain over controls without the victim's style.

`galleries` measures whether the true image can be picked out by them. Images in no order, as those of one batch, are
matched to the true ones before they are compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fdgsec.data.domains import downsample
from fdgsec.metrics.image_similarity import PSNR_CEILING, EmbeddingDistance, PerceptualDistance, psnr, ssim
from fdgsec.metrics.interval import Interval
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.judging.galleries import BLOCK, Galleries, Lineup, gallery_rows, squared_distances
from fdgsec.threats.judging.groups import (
    Entry,
    Group,
    Scale,
    described,
    finite,
    gain_interval,
    mean_interval,
    row,
    unavailable,
)
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores, exchangeable

CONTROLS = ("B0", "B1", "B2", "B3", "B4")
DECISIVE = ("B0", "B2", "B3")
"""Controls that a leak must beat; a gain over a random image (B1) or over noise (B4) proves nothing."""


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """A similarity or distance of images, one number per pair; `sign` is +1 for similarities, -1 for distances."""

    name: str
    between: Callable[[Tensor, Tensor], Tensor]
    sign: int
    unit: str = ""
    bounds: tuple[float, float] | None = None
    embed: Callable[[Tensor], Tensor] | None = None


def similarities(perceptual: Sequence[PerceptualDistance], galleries: Galleries | None = None) -> list[Similarity]:
    """PSNR, SSIM and the given perceptual distances, with the embedders of `galleries` where they embed."""
    kept = galleries or Galleries()
    return [
        Similarity(name="psnr", between=psnr, sign=1, unit="dB", bounds=(0.0, PSNR_CEILING)),
        Similarity(name="ssim", between=ssim, sign=1, bounds=(-1.0, 1.0)),
        *(
            Similarity(
                name=distance.name,
                between=distance,
                sign=-1,
                embed=kept.embedder(distance, distance.name) if isinstance(distance, EmbeddingDistance) else None,
            )
            for distance in perceptual
        ),
    ]


def measure_reconstructions(
    group: Group,
    perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator,
    *,
    repeats: int,
    lineup: Lineup,
    galleries: Galleries,
) -> list[Measurement]:
    """Judge one group of reconstructions at their own size, to which true images and candidates are brought.

    Images in no order are matched to the true ones; then each answer is one unit, and galleries are not ranked, since
    one of several true images is easily near the top. Rows of descriptive answers keep their chance and interval, and
    get no verdict."""
    entries = group.of(Reconstructions)
    rows = _rows(entries, group, perceptual, rng, repeats=repeats, lineup=lineup, galleries=galleries)
    if any(entry.answer.descriptive for entry in entries):
        return described(rows)
    return rows


def _rows(
    entries: Sequence[Entry[Reconstructions]],
    group: Group,
    perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator,
    *,
    repeats: int,
    lineup: Lineup,
    galleries: Galleries,
) -> list[Measurement]:
    problem = _problem(entries)
    if problem:
        names = [similarity.name for similarity in similarities(perceptual)] + ["gallery_top1", "gallery_top5"]
        return unavailable(names, group.slice, problem, n=len(entries))
    entries = [replace(entry, answer=_matched_answer(entry)) for entry in entries]
    compared = similarities(perceptual, galleries)
    rows = _likeness(entries, group.slice, compared, child(rng, "likeness"), repeats)
    if not entries[0].answer.ordered:
        reason = "the images come in no order, so it is unknown which of the true images each is of"
        return [*rows, *unavailable(["gallery_top1", "gallery_top5"], {**group.slice, "distance": "mse"}, reason)]
    return [*rows, *gallery_rows(entries, group.slice, perceptual, child(rng, "lineup"), lineup, galleries)]


def _problem(entries: Sequence[Entry[Reconstructions]]) -> str:
    names = set(entries[0].answer.controls)
    for entry in entries:
        answer, images = entry.answer, entry.truth.images
        if images is None:
            return f"there is no true image for {entry.case.victim} in the {entry.case.question} run"
        if answer.ordered != entries[0].answer.ordered:
            raise ValueError("reconstructions of one slice must all be ordered, or none of them.")
        if answer.descriptive != entries[0].answer.descriptive:
            raise ValueError("reconstructions of one slice must all be descriptive, or none of them.")
        if set(answer.controls) != names:
            raise ValueError(
                "reconstructions of one slice need the same controls; "
                f"got {sorted(set(answer.controls) ^ names)} in some."
            )
        for name, values in {"reconstructions": answer.images, **answer.controls}.items():
            if values.shape != answer.images.shape or len(values) != len(images):
                raise ValueError(f"{name} must be ({len(images)}, 3, h, w) of one size; got {tuple(values.shape)}.")
        reason = finite({"reconstructions": answer.images, **answer.controls})
        if reason:
            return reason
    if not sum(len(entry.answer.images) for entry in entries):
        return "no image was reconstructed"
    return ""


def _likeness(
    entries: Sequence[Entry[Reconstructions]], where: Slice, compared: Sequence[Similarity], rng: torch.Generator,
    repeats: int,
) -> list[Measurement]:  # fmt: skip
    """Per similarity its mean beside that of B3, and the paired gain over each control, positive for a leak."""
    rows: list[Measurement] = []
    present = [name for name in CONTROLS if name in entries[0].answer.controls]
    true = [_true_images(entry) for entry in entries]
    for similarity in compared:
        try:
            compare = _comparison(true, similarity)
            values = compare([entry.answer.images for entry in entries])
            controls = {name: compare([entry.answer.controls[name] for entry in entries]) for name in present}
        except ValueError as error:  # images too small for this similarity
            rows += unavailable([similarity.name], where, str(error), n=len(entries))
            continue
        sizes = [len(entry.answer.images) for entry in entries if len(entry.answer.images)]
        if not entries[0].answer.ordered:
            values = per_answer(values, sizes)
            controls = {name: per_answer(theirs, sizes) for name, theirs in controls.items()}
            sizes = [1] * len(values)
        made = _Compared(similarity=similarity, values=values, controls=controls, sizes=sizes, repeats=repeats)
        rows += made.rows(where, present, rng)
    return rows


def _matched_answer(entry: Entry[Reconstructions]) -> Reconstructions:
    assert entry.truth.images is not None
    return in_matched_order(entry.answer, entry.truth.images)


def _true_images(entry: Entry[Reconstructions]) -> Tensor:
    assert entry.truth.images is not None
    return downsample(entry.truth.images, (int(entry.answer.images.shape[2]), int(entry.answer.images.shape[3])))


def _comparison(true: Sequence[Tensor], similarity: Similarity) -> Callable[[Sequence[Tensor]], Tensor]:
    """Compare with the true images, all entries together; they are embedded once where the similarity can."""
    if similarity.embed is None:
        return lambda guessed: _pairwise(guessed, true, similarity)
    embed = similarity.embed
    targets = [embed(part) for images in _joined(true) for part in images.split(BLOCK)]

    def compare(guessed: Sequence[Tensor]) -> Tensor:
        blocks = (part for images in _joined(guessed) for part in images.split(BLOCK))
        gaps = [(embed(part) - target).square().sum(1) for part, target in zip(blocks, targets, strict=True)]
        return torch.cat(gaps).to(torch.float64)

    return compare


def _joined(images: Sequence[Tensor]) -> list[Tensor]:
    """The images of all entries together, where they are of one size: most entries have one."""
    together = len({part.shape[1:] for part in images}) == 1
    return [torch.cat(list(images))] if together else list(images)


def _pairwise(guessed: Sequence[Tensor], true: Sequence[Tensor], similarity: Similarity) -> Tensor:
    """Compare guessed with true images, pair by pair: (rows,) float64."""
    values = []
    for images, targets in zip(_joined(guessed), _joined(true), strict=True):
        for part, target in zip(images.split(BLOCK), targets.split(BLOCK), strict=True):
            with torch.inference_mode():
                values.append(similarity.between(part.float(), target))
    return torch.cat(values).to(torch.float64).clone()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Compared:
    """Similarities (rows,) of the answers and of the controls with the true images, in clusters of `sizes`: by case."""

    similarity: Similarity
    values: Tensor
    controls: Mapping[str, Tensor]
    sizes: Sequence[int]
    repeats: int

    def rows(self, where: Slice, present: Sequence[str], rng: torch.Generator) -> list[Measurement]:
        """The mean beside that of B3, and the gains over the controls."""
        draws = {name: child(rng, self.similarity.name, name) for name in present}
        gains = {name: self._gain(name, draws[name]) for name in present}
        mean = self._mean_row(where, gains.get("B3"), child(rng, self.similarity.name))
        return [mean, *(self._gain_row(where, name, gains[name]) for name in present)]

    def _gain(self, control: str, rng: torch.Generator) -> Interval | None:
        limits, sign = self.similarity.bounds, self.similarity.sign
        width = None if limits is None else limits[1] - limits[0]
        bounds = None if width is None else (-width, width)
        own, theirs = sign * self.values, sign * self.controls[control]
        return gain_interval(own, theirs, self.sizes, rng=rng, repeats=self.repeats, bounds=bounds)

    def _mean_row(self, where: Slice, gain: Interval | None, rng: torch.Generator) -> Measurement:
        """The mean beside that of B3, which is as uncertain: excluded only where the gain over B3 excludes 0."""
        blind, similarity = self.controls.get("B3"), self.similarity
        scale = Scale(
            chance=None if blind is None else float(blind.mean()), chance_kind="none" if blind is None else "measured",
            higher_is="leak" if similarity.sign > 0 else "safe", unit=similarity.unit,
        )  # fmt: skip
        interval = mean_interval(self.values, self.sizes, rng=rng, repeats=self.repeats, bounds=similarity.bounds)
        if interval is not None and scale.chance is not None:
            p_value = 1.0 if gain is None else gain.p_value(0.0)
            interval = interval.reaching(scale.chance, p_value, higher=similarity.sign > 0)
        return row(similarity.name, where, float(self.values.mean()), interval, len(self.values), scale)

    def _gain_row(self, where: Slice, control: str, interval: Interval | None) -> Measurement:
        similarity = self.similarity
        scale = Scale(chance=0.0, higher_is="leak" if control in DECISIVE else "descriptive", unit=similarity.unit)
        gain = float((similarity.sign * (self.values - self.controls[control])).mean())
        where = {**where, "over": control}
        return row(f"{similarity.name}_gain", where, gain, interval, len(self.values), scale)


def in_matched_order(answer: Reconstructions, images: Tensor) -> Reconstructions:
    """Put images, and each control by itself, in the order of least error to the true `images` (R, 3, H, W) uint8.

    Squared errors are summed over the rows. Ordered answers stay as they are. Matching improves any answer, even noise,
    so the controls are matched too."""
    if answer.ordered:
        return answer
    true = downsample(images, (int(answer.images.shape[2]), int(answer.images.shape[3])))
    return replace(
        answer,
        images=answer.images[_order(squared_distances(answer.images, true))],
        controls={name: values[_order(squared_distances(values, true))] for name, values in answer.controls.items()},
    )


def matched_psnr(guessed: Tensor, true: Tensor) -> float:
    """The mean PSNR of images (R, 3, h, w) in [0, 1] with true ones of this shape, in the best order."""
    error = squared_distances(guessed, true).to(torch.float64) / guessed[0].numel()
    return float(-10 * error[_order(error), torch.arange(len(true))].clamp_min(1e-10).log10().mean())


def per_answer(values: Tensor, sizes: list[int]) -> Tensor:
    """Average each answer's values (rows,): images that are matched together are not independent."""
    return torch.stack([part.mean() for part in values.split(sizes)])


def _order(error: Tensor) -> Tensor:
    """Which row of `error` (R, R) goes to each column."""
    rows, columns = linear_sum_assignment(error.numpy(force=True))
    found = torch.empty(len(columns), dtype=torch.int64)
    found[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return found


def _reconstruction_scores(group: Group) -> Scores | None:
    entries = group.of(Reconstructions)
    images = [entry.truth.images for entry in entries]
    known = [picture for picture in images if picture is not None]
    guessed = [entry.answer.images.float() for entry in entries]
    if len(known) < len(entries) or finite({str(i): part for i, part in enumerate(guessed)}):
        return None
    if not entries[0].answer.ordered:  # the pictures of an answer are matched together: answers are exchanged
        sizes = [(guess.shape[2], guess.shape[3]) for guess in guessed]
        sets = [downsample(true, size) for true, size in zip(known, sizes, strict=True)]
        return [torch.tensor([[matched_psnr(guess, true) for true in sets] for guess in guessed], dtype=torch.float64)]
    blocks = []
    for part in exchangeable([len(guess) for guess in guessed], [None] * len(guessed)):
        guess = torch.cat([guessed[i] for i in part])
        true = torch.cat([downsample(known[i], (guess.shape[2], guess.shape[3])) for i in part])
        error = squared_distances(guess, true).to(torch.float64) / guess[0].numel()
        blocks.append(-10 * error.clamp_min(1e-10).log10())
    return blocks if sum(len(block) for block in blocks) else None


RECONSTRUCTION_TEST = PermutationTest(name="psnr", scores=_reconstruction_scores)
