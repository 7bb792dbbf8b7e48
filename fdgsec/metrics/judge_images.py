"""Reconstructions judged: how like the true image, how much liker than what no victim's style would give, and whether
the true image can be picked out by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.metrics.groups import Entry, Group, Reading, constant, finite, row, unavailable
from fdgsec.metrics.images import PSNR_CEILING, EmbeddingDistance, PerceptualDistance, psnr, ssim
from fdgsec.metrics.intervals import bootstrap, paired_bootstrap
from fdgsec.metrics.judge_rankings import Ranked, measure_rows
from fdgsec.reports import Measurement, Slice
from fdgsec.rng import child
from fdgsec.threats import Reconstructions

CONTROLS = ("B0", "B1", "B2", "B3", "B4")
DECISIVE = ("B0", "B2", "B3")
"""Controls that a leak must beat; a gain over a random image (B1) or over noise (B4) proves nothing."""
BLOCK = 64  # images through a network, or rows of distances, at a time


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A similarity of images, one number per pair; `sign` is +1 where more is liker, -1 for a distance."""

    name: str
    between: Callable[[Tensor, Tensor], Tensor]
    sign: int
    unit: str = ""
    bounds: tuple[float, float] | None = None
    embed: Callable[[Tensor], Tensor] | None = None


def gauges(perceptual: Sequence[PerceptualDistance]) -> list[Gauge]:
    """PSNR, SSIM and the given perceptual distances."""
    return [
        Gauge(name="psnr", between=psnr, sign=1, unit="dB", bounds=(0.0, PSNR_CEILING)),
        Gauge(name="ssim", between=ssim, sign=1, bounds=(-1.0, 1.0)),
        *(
            Gauge(
                name=distance.name,
                between=distance,
                sign=-1,
                embed=distance.embed if isinstance(distance, EmbeddingDistance) else None,
            )
            for distance in perceptual
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """How many reconstructions and candidates a distance ranks that costs a network pass per pair; others rank all."""

    rows: int = 48
    candidates: int = 25


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring uint8 images (N, 3, H, W) to `size` in [0, 1], each new pixel the average of the area that it covers."""
    parts = [interpolate(as_float(part), size=size, mode="area") for part in images.split(256)]
    return torch.cat(parts) if parts else torch.empty(0, 3, *size)


@dataclass(frozen=True, eq=False)
class Galleries:
    """Candidates at the size of the reconstructions, and where a distance places them, made once per gallery."""

    kept: dict[tuple[int, tuple[int, int], str], tuple[DomainDataset, Tensor]] = field(default_factory=dict)

    def pictures(self, gallery: DomainDataset, size: tuple[int, int]) -> Tensor:
        """The candidates, (G, 3, h, w) in [0, 1]."""
        return self._once(gallery, size, "", lambda: shrunk(gallery.pixels(), size))

    def points(self, gallery: DomainDataset, size: tuple[int, int], distance: EmbeddingDistance, name: str) -> Tensor:
        """The candidates' embeddings, (G, D)."""
        return self._once(gallery, size, name, lambda: embedded(distance.embed, self.pictures(gallery, size)))

    def _once(self, gallery: DomainDataset, size: tuple[int, int], name: str, make: Callable[[], Tensor]) -> Tensor:
        key = (id(gallery), size, name)
        if key not in self.kept:
            self.kept[key] = (gallery, make())  # holding the gallery keeps its id its own
        return self.kept[key][1]


def measure_reconstructions(
    group: Group,
    perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator,
    *,
    repeats: int,
    lineup: Lineup,
    galleries: Galleries,
) -> list[Measurement]:
    """Judge one group of reconstructions at their own size, to which true images and candidates are brought."""
    entries = group.of(Reconstructions)
    problem = _problem(entries)
    if problem:
        names = [gauge.name for gauge in gauges(perceptual)] + ["gallery_top1", "gallery_top5"]
        return unavailable(names, group.slice, problem, n=len(entries))
    rows = _likeness(entries, group.slice, perceptual, child(rng, "likeness"), repeats)
    return [*rows, *_gallery(entries, group.slice, perceptual, child(rng, "lineup"), lineup, galleries)]


def _problem(entries: Sequence[Entry[Reconstructions]]) -> str:
    names = set(entries[0].answer.controls)
    for entry in entries:
        answer, images = entry.answer, entry.truth.images
        if images is None:
            return f"there is no true image for {entry.case.victim} in the {entry.case.request} run"
        if set(answer.controls) != names:
            raise ValueError(
                f"reconstructions of one slice need the same controls; got {sorted(set(answer.controls) ^ names)} in some."
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
    entries: Sequence[Entry[Reconstructions]], where: Slice, perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator, repeats: int,
) -> list[Measurement]:  # fmt: skip
    """Per gauge: its mean beside that of B3, and the paired gain over each control, positive where something leaked."""
    rows: list[Measurement] = []
    present = [name for name in CONTROLS if name in entries[0].answer.controls]
    true = [_true_images(entry) for entry in entries]
    for gauge in gauges(perceptual):
        try:
            compare = _comparison(true, gauge)
            values = compare([entry.answer.images for entry in entries])
            controls = {name: compare([entry.answer.controls[name] for entry in entries]) for name in present}
        except ValueError as error:  # images too small for this gauge
            rows += unavailable([gauge.name], where, str(error), n=len(entries))
            continue
        rows.append(_mean_row(gauge, where, values, controls, child(rng, gauge.name), repeats))
        for name in present:
            rows.append(_gain_row(gauge, where, values, (name, controls[name]), child(rng, gauge.name, name), repeats))
    return rows


def _true_images(entry: Entry[Reconstructions]) -> Tensor:
    assert entry.truth.images is not None
    return shrunk(entry.truth.images, (int(entry.answer.images.shape[2]), int(entry.answer.images.shape[3])))


def _comparison(true: Sequence[Tensor], gauge: Gauge) -> Callable[[Sequence[Tensor]], Tensor]:
    """Compare with the true images, which are embedded once where the gauge can."""
    if gauge.embed is None:
        return lambda guessed: _gauged(guessed, true, gauge)
    embed = gauge.embed
    targets = [embedded(embed, images) for images in true]

    def compare(guessed: Sequence[Tensor]) -> Tensor:
        gaps = [
            (embedded(embed, images) - target).square().sum(1) for images, target in zip(guessed, targets, strict=True)
        ]
        return torch.cat(gaps).to(torch.float64)

    return compare


def embedded(embed: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Embed images block by block, (N, D)."""
    with torch.inference_mode():
        parts = [embed(part.float()) for part in images.split(BLOCK)]
    return torch.cat(parts).clone()


def _gauged(guessed: Sequence[Tensor], true: Sequence[Tensor], gauge: Gauge) -> Tensor:
    """Compare guessed with true images, pair by pair: (rows,) float64."""
    values = []
    for images, targets in zip(guessed, true, strict=True):
        for part, target in zip(images.split(BLOCK), targets.split(BLOCK), strict=True):
            with torch.inference_mode():
                values.append(gauge.between(part.float(), target))
    return torch.cat(values).to(torch.float64).clone()


def _mean_row(
    gauge: Gauge, where: Slice, values: Tensor, controls: Mapping[str, Tensor], rng: torch.Generator, repeats: int
) -> Measurement:
    blind = "B3" in controls
    reading = Reading(
        chance=float(controls["B3"].mean()) if blind else None, chance_kind="measured" if blind else "none",
        higher_is="leak" if gauge.sign > 0 else "safe", unit=gauge.unit,
    )  # fmt: skip
    unbounded = constant(values) and (gauge.bounds is None or len(values) < 2)
    interval = None if unbounded else bootstrap(values, rng=rng, repeats=repeats, bounds=gauge.bounds)
    return row(gauge.name, where, float(values.mean()), interval, len(values), reading)


def _gain_row(
    gauge: Gauge, where: Slice, values: Tensor, control: tuple[str, Tensor], rng: torch.Generator, repeats: int
) -> Measurement:
    name, theirs = control
    reading = Reading(chance=0.0, higher_is="leak" if name in DECISIVE else "descriptive", unit=gauge.unit)
    width = None if gauge.bounds is None else gauge.bounds[1] - gauge.bounds[0]
    bounds = None if width is None else (-width, width)
    gain = gauge.sign * (values - theirs)
    unbounded = constant(gain) and (bounds is None or len(gain) < 2)
    interval = (
        None
        if unbounded
        else paired_bootstrap(gauge.sign * values, gauge.sign * theirs, rng=rng, repeats=repeats, bounds=bounds)
    )
    return row(f"{gauge.name}_gain", {**where, "over": name}, float(gain.mean()), interval, len(gain), reading)


def _gallery(
    entries: Sequence[Entry[Reconstructions]], where: Slice, perceptual: Sequence[PerceptualDistance],
    rng: torch.Generator, lineup: Lineup, galleries: Galleries,
) -> list[Measurement]:  # fmt: skip
    """Rank the true image among the case's candidates by their distance to the reconstruction."""
    names = ["gallery_top1", "gallery_top5"]
    rows: list[Measurement] = []
    if any(entry.case.candidates is None or entry.truth.rows is None for entry in entries):
        return unavailable(names, {**where, "distance": "mse"}, "the case has no candidates to rank", n=len(entries))
    rows += measure_rows(
        [_pixel_ranking(entry, galleries) for entry in entries], {**where, "distance": "mse"}, prefix="gallery_"
    )
    share = max(1, lineup.rows // len(entries))
    for distance in perceptual:
        slice_ = {**where, "distance": distance.name}
        try:
            if isinstance(distance, EmbeddingDistance):
                blocks = [_embedded_ranking(entry, distance, distance.name, galleries) for entry in entries]
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


def _pixel_ranking(entry: Entry[Reconstructions], galleries: Galleries) -> Ranked:
    candidates, columns = entry.case.candidates, entry.truth.rows
    assert candidates is not None
    assert columns is not None
    guessed = entry.answer.images
    gallery = galleries.pictures(candidates, (int(guessed.shape[2]), int(guessed.shape[3])))
    return Ranked(distances=squared_distances(guessed, gallery), truth=columns)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Give the summed squared pixel difference of every pair: (N, M), both sides centred so that float32 suffices."""
    centre = second.flatten(1).mean(0)
    one, other = first.float().flatten(1) - centre, second.flatten(1) - centre
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
        pictures = shrunk(gallery.pixels(shown), size)
        with torch.inference_mode():
            apart = [distance(guessed[number].expand_as(part).contiguous(), part) for part in pictures.split(BLOCK)]
        found.append(torch.cat(apart).clone())
        places.append(len(shown) - 1)
    return Ranked(distances=torch.stack(found), truth=torch.tensor(places))


def _embedded_ranking(
    entry: Entry[Reconstructions], distance: EmbeddingDistance, name: str, galleries: Galleries
) -> Ranked:
    """Rank the true image among all candidates."""
    gallery, columns = entry.case.candidates, entry.truth.rows
    assert gallery is not None
    assert columns is not None
    guessed = entry.answer.images
    points = galleries.points(gallery, (int(guessed.shape[2]), int(guessed.shape[3])), distance, name)
    return Ranked(distances=torch.cdist(embedded(distance.embed, guessed), points).square(), truth=columns)
