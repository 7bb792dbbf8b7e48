"""Whether a target releases what attacks read its releases as: the run's statistic of images, on images that are known.

Attacks on styles take a pooled release for the mean of a per-image statistic, and a row for the statistic of one image
(`Knowledge.released_statistic` of `Knowledge.statistics`). Where the target sends anything else (another scale,
medians, another encoder), they find nothing however much it leaks. Therefore the target's own `share` is run on images
of a client, undefended, and compared with that statistic before an attack is believed; and twice, with other random
numbers and under another name, because noise far below the length of a mean is far above what its images' means differ
by in most directions, and attacks account for noise only where a defense adds it. What remains of a pooled release
beside the statistic must be the precision of its numbers, which attacks read off them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.release_precision import rounding_noise
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.experiments.report.schema import COULD_NOT_RUN
from fdgsec.experiments.report.words import kind_in_words
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic
from fdgsec.nn.styles.amplitude_spectra import amplitudes, low_frequencies
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.random_streams import stream

AGREEMENT = 0.005
"""Largest relative L2 distance between a release and the statistic, beside HW against HW - 1 in its variances."""
REPEATED = 1e-6
"""Largest relative L2 distance between two releases of the same images: rounding to float32."""
UNEXPLAINED = 1e-5
"""Largest relative L2 distance between a pooled release and the statistic beyond the precision of its numbers: sums in
float32 miss it by 1e-6. What `membership` loses to noise below it is in benchmarks/undeclared_noise.py."""
ROUNDED = 2.0
"""Largest distance in units of what that precision leaves open."""
QUIET = 3e-4
"""Largest share of a client's own variation (its square, in whitened coordinates) that may remain beyond that: sums in
float32 leave 2e-5 for 500 images of PACS under `mini`, and noise of 7e-6 of the length in the directions in which
images vary least, which hides every member from an attack that does not know of it, leaves 4 for 40 images."""
DRAWN = 8
"""Draws of the precision's errors whose length in whitened coordinates is averaged."""
AT_ONCE = 64
"""Images whose spectra are held at a time."""
POOLED = (StyleStatistics, StyleDistribution)
ROWS = (ImageStyles, Amplitudes)


def foreign_releases(
    method: Method,
    client: Client,
    *,
    clock: Clock,
    model: GlobalModel | None,
    statistics: Callable[[DomainDataset], Moments],
    released_statistic: ReleasedStatistic,
    whitening: Callable[[], Whitening | None],
) -> Mapping[str, str]:
    """The kinds of style releases that are not what attacks take them for, each with the reason.

    `client` and `clock` are those of the run: what is sent may depend on both. `whitening` tells in which
    directions images hardly vary (`whitening_of`). Only rows of single images are compared
    for a method that does not claim to share means: attacks on its other releases learn from simulated releases
    of the method itself."""
    if method.shares == "never" or not method.asks_for_shares:
        return {}
    rng = stream(0, "world", "release check")
    sent, state = method.share(client, model=model, state={}, clock=clock, rng=rng)
    other = next((name for name in clock.participants if name != client.name), client.name)
    again, _ = method.share(
        replace(client, name=other),
        model=model,
        state={},
        clock=clock,
        rng=stream(0, "world", "release check", "again"),
    )
    known = statistics(client.data)
    records, cells = released_statistic.records(known), float(known.count.min())
    found: dict[str, str] = {}
    kinds = {artifact.kind for artifact in sent.values()}
    for release in method.releases:
        if release.stage == "share" and release.kind in POOLED + ROWS and release.kind.kind not in kinds:
            reason = f"{COULD_NOT_RUN}{client.name} did not send the release {release.slot!r}, which could be compared"
            found[release.kind.kind] = found["StyleBank"] = reason
    for kind, slots in several_releases(sent).items():
        several = f"several {kind_in_words(kind)} that differ ({', '.join(slots)}) at once"
        reason = f"{COULD_NOT_RUN}{client.name} sends {several}"
        found[kind] = found["StyleBank"] = reason
    for slot, artifact in sent.items():
        if not isinstance(artifact, ROWS + (POOLED if method.shares_means else ())):
            continue
        shown = None if isinstance(artifact, POOLED) else state.get(SHARED_ROWS)
        if isinstance(artifact, Amplitudes) and not method.shares_means:
            images = client.data if shown is None else client.data.subset(shown)
            order = None if shown is None else torch.arange(len(images))
            reason = difference(slot, artifact, MeanSpectra(), spectra_of_images(images, artifact), order)
        else:
            reason = difference(slot, artifact, released_statistic, records, shown, cells=cells)
        if isinstance(artifact, POOLED):
            reason = reason or _noise(slot, artifact, again.get(slot))
            reason = reason or _unexplained(slot, artifact, released_statistic, records)
            reason = reason or _quiet(slot, artifact, released_statistic, records, whitening())
        if reason:
            found[artifact.kind] = found["StyleBank"] = reason
    return found


STATISTIC_WORDS: Mapping[str, str] = {
    "PooledStyles": "the pooled style",
    "MeanStyles": "the mean style",
    "ChannelMeans": "the mean of the features",
    "StyleDistributions": "the center and spread of the styles",
    "MeanSpectra": "the mean amplitude spectrum",
}
"""Released statistics in words; one of a plug-in goes by its class."""


def several_releases(sent: Mapping[str, Artifact]) -> Mapping[str, Sequence[str]]:
    """The slots of each kind of styles of which a client sends several that are not the same."""
    found: dict[str, list[str]] = {}
    for slot, artifact in sent.items():
        if isinstance(artifact, ROWS + POOLED):
            found.setdefault(artifact.kind, []).append(slot)
    return {kind: slots for kind, slots in found.items() if not all(_same(sent[slots[0]], sent[one]) for one in slots)}


def _noise(slot: str, first: Artifact, other: Artifact | None) -> str:
    """Why two pooled releases of the same images show noise; empty where they are equal but for rounding."""
    mine, theirs = first.tensors(), {} if other is None else other.tensors()
    if mine.keys() == theirs.keys() and all(value.shape == theirs[name].shape for name, value in mine.items()):
        apart = sum(float((value.double() - theirs[name].double()).square().sum()) for name, value in mine.items())
        length = sum(float(value.double().square().sum()) for value in mine.values())
        if apart <= REPEATED**2 * length:
            return ""
    return (
        f"{COULD_NOT_RUN}the release {slot!r} is another one for other random numbers or another client's name: noise "
        "that no defense declares, which attacks do not account for; let a defense add it (--defense)"
    )


def _unexplained(slot: str, artifact: Artifact, released_statistic: ReleasedStatistic, records: Tensor) -> str:
    """Why a pooled release is not the mean of `records` (n, D) up to what attacks account for: the precision of its
    numbers, and another number of pixels in its variances. Empty where it is."""
    ours, images = records.mean(0), len(records)
    error = rounding_noise(artifact, released_statistic, torch.zeros_like(ours), images=images)
    apart = released_statistic.release(artifact, images=images)[0] - ours
    apart = _beside_variance(apart, records, released_statistic)
    distance = float(apart.norm() / ours.norm().clamp_min(1e-300))
    if float(apart.norm()) <= ROUNDED * float(error.norm()) + UNEXPLAINED * float(ours.norm()):
        return ""
    return (
        f"{COULD_NOT_RUN}the release {slot!r} is {distance:.2g} of its length away from the mean over its images, "
        "more than the precision of its numbers explains: noise that no defense declares, or coarser sums, for which "
        "attacks do not account; let a defense add noise (--defense), and sum in float64"
    )


def whitening_of(
    public: DomainDataset, statistics: Callable[[DomainDataset], Moments], released_statistic: ReleasedStatistic
) -> Whitening | None:
    """Coordinates in which public images are white within their domains; None for too few of them."""
    parts = []
    for domain in public.domains.unique():
        rows = released_statistic.records(statistics(public.subset((public.domains == domain).nonzero().flatten())))
        varies = len(rows) > 1 and bool((rows != rows[0]).any())
        parts += [released_statistic.about(rows, rows.mean(0))] if varies else []
    return fit_whitening(parts[0], others=parts[1:]) if parts else None


def _quiet(
    slot: str, artifact: Artifact, released_statistic: ReleasedStatistic, records: Tensor, whiten: Whitening | None
) -> str:
    """Why what `_unexplained` lets pass is large in the directions in which images hardly vary, which tell attacks
    most; empty where it is not. Lengths are squares in coordinates in which images are white, times their number, so
    that the mean of other images has length D."""
    if whiten is None:
        return ""
    about, images = records.mean(0), len(records)
    theirs = released_statistic.about(released_statistic.release(artifact, images=images)[0], about)
    ours = released_statistic.about(records, about).mean(0)
    apart = _beside_variance(theirs - ours, records, released_statistic)
    error = rounding_noise(artifact, released_statistic, about, images=images)
    rng = stream(0, "world", "release check", "precision")
    drawn = torch.randn(DRAWN, len(error), generator=rng, dtype=torch.float64) * error

    def length(off: Tensor) -> float:
        return images * float(whiten(whiten.center + off).square().sum(-1).mean())

    if length(apart) <= QUIET * len(ours) + ROUNDED**2 * length(drawn):
        return ""
    return (
        f"{COULD_NOT_RUN}the release {slot!r} is away from the mean over its images, by little but in directions in "
        f"which images hardly vary ({math.sqrt(length(apart) / len(ours)):.2g} of what such a mean varies by): noise "
        "that no defense declares, for which attacks do not account; let a defense add it (--defense)"
    )


def _beside_variance(apart: Tensor, records: Tensor, released_statistic: ReleasedStatistic) -> Tensor:
    """What remains of a difference (D,) of t, about any center, beside another number of pixels in variances."""
    if not isinstance(released_statistic, PooledStyles):
        return apart
    mean, squares = records.mean(0).chunk(2)
    variance = torch.cat([torch.zeros_like(mean), squares - mean.square()])
    return apart - variance * (apart @ variance / variance.square().sum().clamp_min(1e-300))


def _beside_cells(apart: Tensor, ours: Tensor, released_statistic: ReleasedStatistic, cells: float) -> Tensor:
    """Differences (R, D) of t from `ours` (R, D) as they are, or less what variances gain that are divided by HW - 1
    instead of HW, whichever is shorter."""
    if not isinstance(released_statistic, PooledStyles):
        return apart
    mean, squares = ours.chunk(2, dim=1)
    gain = torch.cat([torch.zeros_like(mean), squares - mean.square()], dim=1) / max(cells - 1, 1)
    return min(apart, apart - gain, key=lambda rest: float(rest.norm()))


def _same(first: Artifact, other: Artifact) -> bool:
    """Whether two artifacts have exactly the same numbers: the difference of two that nearly have may be what leaks."""
    mine, theirs = first.tensors(), other.tensors()
    return all(torch.equal(value, theirs[name]) for name, value in mine.items())


def spectra_of_images(images: DomainDataset, like: Amplitudes) -> Tensor:
    """The low frequencies of each image's spectrum at the size of `like`, (n, D) float64."""
    height, columns = like.values.shape[2:]
    side = None if images.image_size[0] == height and images.image_size[1] // 2 + 1 == columns else height
    parts = torch.arange(len(images)).split(AT_ONCE)
    return torch.cat([low_frequencies(amplitudes(as_float(resized(images.pixels(rows), side)))) for rows in parts])


def difference(
    slot: str,
    artifact: Artifact,
    released_statistic: ReleasedStatistic,
    records: Tensor,
    shown: Tensor | None,
    *,
    cells: float = math.inf,
) -> str:
    """Why a release is not `released_statistic` of images with these `records` (n, D); empty where it is.

    `shown` (R,) are the positions of the images behind its rows; None for a pooled release. `cells` is the least number
    HW of cells of an image's map: variances may be divided by it or by HW - 1."""
    kind = type(released_statistic).__name__
    name = STATISTIC_WORDS.get(kind, kind)
    try:
        theirs = released_statistic.release(artifact, images=len(records))
    except FdgsecError as error:
        return f"{COULD_NOT_RUN}the release {slot!r} is not {name}: {error}"
    if isinstance(artifact, ROWS):
        if shown is None and len(theirs) > 1:
            return (
                f"{COULD_NOT_RUN}the release {slot!r} has rows and does not say of which images; the method's `share` "
                f"must keep their positions as state[{SHARED_ROWS!r}]"
            )
        ours = records.mean(0, keepdim=True) if shown is None else records[shown]
    else:
        ours = records.mean(0, keepdim=True)
    if ours.shape != theirs.shape:
        shapes = f"it is {tuple(theirs.shape)}, not {tuple(ours.shape)}"
        return f"{COULD_NOT_RUN}the release {slot!r} is not {name} of its images: {shapes}"
    apart = _beside_cells(theirs - ours, ours, released_statistic, cells)
    distance = float(apart.norm() / ours.norm().clamp_min(1e-300))
    if distance <= AGREEMENT:
        return ""
    return (
        f"{COULD_NOT_RUN}the release {slot!r} is not {name} of its images: on {len(records)} known images it is "
        f"{distance:.2g} of its length away from it"
    )
