"""Palettes: the colors of an image without their positions; palettes from channel statistics, and their distances.

A palette is the quantile function of each of red, green and blue, at evenly spaced shares of the pixels. The distance
is the earth mover's between the histograms of a channel, which in one dimension is the mean gap between quantile
functions (Vallender 1974), averaged over the channels: in units of the whole range, 0 to 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.answers import Palettes
from fdgsec.threats.judging.groups import Entry, Group, Scale, finite, gain_interval, mean_interval, row, unavailable

SHARES = 64
"""Quantiles per channel."""
NAMES = ("palette_emd", "palette_emd_gain")


def shares(count: int = SHARES) -> Tensor:
    """The shares of the pixels at which quantiles are taken, (Q,) float64: the centers of Q equal parts."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def palettes_of(images: Tensor | DomainDataset, *, count: int = SHARES) -> Tensor:
    """Compute the palettes (N, 3, Q) of uint8 images (N, 3, H, W) exactly: the least value that covers each share."""
    found = [
        _palette(images[i] if isinstance(images, Tensor) else _picture(images, i), count) for i in range(len(images))
    ]
    return torch.stack(found) if found else torch.empty(0, 3, count, dtype=torch.float64)


def _picture(images: DomainDataset, position: int) -> Tensor:
    return images.pixels(torch.tensor([position]))[0]


def _palette(picture: Tensor, count: int) -> Tensor:
    offset = 256 * torch.arange(3).view(3, 1)
    filled = torch.bincount((picture.flatten(1).to(torch.int64) + offset).flatten(), minlength=768).view(3, 256)
    # share (2k + 1)/2Q is covered where 2Q times as many pixels are at least 2k + 1 times all: exact in integers
    wanted = (2 * torch.arange(count) + 1) * (picture.shape[1] * picture.shape[2])
    found = torch.searchsorted(2 * count * filled.cumsum(1), wanted.expand(3, -1).contiguous())
    return found.to(torch.float64) / 255


def gaussian_palettes(mean: Tensor, std: Tensor, *, count: int = SHARES) -> Tensor:
    """Make the palettes (N, 3, Q) of Gaussian channels with these means and stds (N, 3), clipped to [0, 1]."""
    normal = torch.special.ndtri(shares(count))
    drawn: Tensor = mean.to(torch.float64).unsqueeze(2) + std.to(torch.float64).unsqueeze(2) * normal
    return drawn.clamp(0, 1)


def palette_distances(one: Tensor, other: Tensor) -> Tensor:
    """Give the earth mover's distance of every palette (N, 3, Q) to every one of (M, 3, Q): (N, M) float64."""
    flat = one.to(torch.float64).flatten(1), other.to(torch.float64).flatten(1)
    return torch.cdist(*flat, p=1) / flat[0].shape[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Gaps:
    """Distances (R,) to the true palettes: of the answer, of the guess without, and of another image of the domain.

    The last is NaN where a case has no other image of the domain."""

    own: Tensor
    without: Tensor
    another: Tensor


def measure_palettes(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give the mean distance from the true palettes, beside that of a random image of the same domain, and the gains.

    Only the gain over the guess without a release (`over` = "public median") is evidence of a leak: a gain over a
    random image is none."""
    entries = group.of(Palettes)
    reason = _problem(entries)
    if reason:
        return unavailable(NAMES, group.slice, reason, n=len(entries))
    parts = [_gaps(entry, child(rng, "another", number)) for number, entry in enumerate(entries)]
    own = torch.cat([part.own for part in parts])
    without, another = torch.cat([part.without for part in parts]), torch.cat([part.another for part in parts])
    paired = ~another.isnan()
    compared = bool(paired.any())
    scale = Scale(
        chance=float(another[paired].mean()) if compared else None, chance_kind="measured" if compared else "none",
        higher_is="descriptive",
    )  # fmt: skip
    sizes = [len(part.own) for part in parts if len(part.own)]
    interval = mean_interval(own, sizes, rng=child(rng, "own"), repeats=repeats, bounds=(0.0, 1.0))
    rows = [row("palette_emd", group.slice, float(own.mean()), interval, len(own), scale)]
    rows.append(_gain(group, "public median", (own, without), sizes, child(rng, "median"), repeats))
    if compared:
        sizes = [count for part in paired.split(sizes) if (count := int(part.sum()))]
        rows.append(_gain(group, "random image", (own[paired], another[paired]), sizes, child(rng, "random"), repeats))
    return rows


def _problem(entries: Sequence[Entry[Palettes]]) -> str:
    for entry in entries:
        images, answer = entry.truth.images, entry.answer
        if images is None:
            return f"there is no true image for {entry.case.victim} in the {entry.case.question} run"
        shape = answer.palettes.shape
        if len(shape) != 3 or shape[:2] != (len(images), 3) or answer.without.shape != shape[1:]:
            raise ValueError(
                f"palettes must be ({len(images)}, 3, Q) and without (3, Q); got {tuple(shape)} and "
                f"{tuple(answer.without.shape)}."
            )
        reason = finite({"palettes": answer.palettes, "palette without": answer.without})
        if reason:
            return reason
    return "" if sum(len(entry.answer.palettes) for entry in entries) else "no row was released"


def _gaps(entry: Entry[Palettes], rng: torch.Generator) -> _Gaps:
    answer = entry.answer
    assert entry.truth.images is not None
    true = palettes_of(entry.truth.images, count=answer.palettes.shape[2])
    domains = torch.zeros(len(true)) if entry.truth.domains is None else entry.truth.domains
    another = torch.full((len(true),), torch.nan, dtype=torch.float64)
    for domain in domains.unique():
        mine = (domains == domain).nonzero().flatten()
        if len(mine) > 1:
            another[mine] = (true[mine] - true[mine[derangement(len(mine), rng)]]).abs().mean((1, 2))
    return _Gaps(
        own=(answer.palettes - true).abs().mean((1, 2)),
        without=(answer.without - true).abs().mean((1, 2)),
        another=another,
    )


def _gain(
    group: Group, over: str, pair: tuple[Tensor, Tensor], sizes: Sequence[int], rng: torch.Generator, repeats: int
) -> Measurement:
    """How much smaller the own distances of a `pair` are than those of the other answer; cases are clusters."""
    own, theirs = pair
    scale = Scale(chance=0.0, higher_is="leak" if over == "public median" else "descriptive")
    interval = gain_interval(theirs, own, sizes, rng=rng, repeats=repeats, bounds=(-1.0, 1.0))
    return row(
        "palette_emd_gain", {**group.slice, "over": over}, float((theirs - own).mean()), interval, len(own), scale
    )
