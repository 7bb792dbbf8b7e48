"""Defense noise: the effect of a defense on a release, estimated by an adversary that knows its options.

An attack that ignores the noise on what it reads is weaker than it could be, and overstates the protection. A test that
whitens by the variation of images gives the largest weight to directions of small variance, in which noise of a fixed
size dominates. The adversary therefore passes releases of its own images through the defense, many times, and estimates
the shift and variance of t. The defense's options are public, its randomness is not. Rounding and clipping draw
nothing, but their effect differs between clients, so every pass uses another client. `RowMetric` then compares rows of
single images with images under that noise."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles
from fdgsec.federation.released_statistics import MeanSpectra
from fdgsec.runtime.errors import UnseenError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge

ACCOUNTED = frozenset(
    {"style-noise", "private-styles", "shuffle", "guards", "dp-sgd", "dp-fedavg", "private-scores"}
)  # fmt: skip
"""The defenses that attacks on styles take into account: two whose noise this module estimates, and five that do not
change styles. The effect of `quantize` and `k-anonymous` is estimated as if it were noise, too; but a rounded row, or a
mean of k rows, can be compared with candidates exactly, so that finding nothing this way is no evidence. Look-ups
do so where rounding is not random (`defended_alike`)."""
ON_STYLES_ALONE = frozenset({"quantize", "k-anonymous"})
"""Defenses that change styles and no models."""
ACCOUNTED_ON_MODELS = (ACCOUNTED | ON_STYLES_ALONE) - {"shuffle"}
"""The defenses that attacks with reference federations take into account, which train under the same defenses."""

DRAWS = 200
"""Passes of means through the defense. All victims of a size share one shift estimate, whose error (1/200 of the
noise's variance) must stay small relative to that of the mean over some tens of victims."""
SPECTRA = 12
"""Clients for which whole spectra are computed."""
ROWS = 200
"""Maximum number of images per domain that are passed as rows: the standard deviation is known to 5%."""
ALIKE = 24
"""Images by which a defense is found to draw nothing and to act row by row."""
COPIES = 3
"""Noisy versions of each training row of a classifier of noisy rows."""
COPIED = 0.01
"""Share of the variance between images by which a copy may differ, beside the noise."""


@dataclass(frozen=True, kw_only=True)
class DefenseNoise:
    """The mean `shift` (D,) of t under the defense, and its `variance` around that, (D,)."""

    shift: Tensor
    variance: Tensor

    @property
    def idle(self) -> bool:
        """Whether the defense left every mean as it was, bit by bit."""
        return not self.shift.any() and not self.variance.any()


@dataclass(frozen=True, kw_only=True)
class RowDefenseNoise:
    """The effect of the defense on a single image's row, within its domain: shift + center + `gain` (row - center) +
    noise.

    A mean of k rows keeps 1/k of each, noise all of it. `shift` and the noise's `variance` are (D,)."""

    shift: Tensor
    gain: float
    variance: Tensor

    def placed(self, rows: Tensor) -> Tensor:
        """The expected rows (n, D) of candidate images after the defense, without the noise."""
        center = rows.mean(0)
        return self.shift + center + self.gain * (rows - center)

    def likely(self, rows: Tensor, center: Tensor, spread: Tensor) -> Tensor:
        """The posterior mean of the clean rows behind received rows (n, D), by coordinate, under a Gaussian prior.

        Images have mean `center` and variance `spread` (D,)."""
        drowned = self.gain**2 * spread + self.variance
        kept = torch.where(drowned > 0, self.gain * spread / drowned, 1.0)
        return center + kept * (rows - self.shift - center)

    def whitening(self, between: Whitening) -> Whitening:
        """The metric in which the candidate with the nearest row is the most likely.

        It combines the noise with a small share of the variation of images (`between`), which decides where a defense
        leaves rows unchanged."""
        return between.blurred(self.variance / COPIED)


def defense_noise_of_mean(
    knowledge: Knowledge, images: DomainDataset, *, records: int, about: Tensor, rng: torch.Generator
) -> DefenseNoise | None:
    """The effect of the defense on the mean of `records` such images, its squares centered on `about` (D,); None
    without one.

    Every pass has its own client, whose images are drawn from `images` with replacement. Whole spectra, which are
    Fourier transforms of all of them, are computed for SPECTRA clients that are reused in turn."""
    if knowledge.defended is None:
        return None
    moved, held = [], list[tuple[DomainDataset, Artifact]]()
    clients = SPECTRA if isinstance(knowledge.released_statistic, MeanSpectra) else DRAWS
    for number in range(DRAWS):
        child_rng = child(rng, number)
        if number < clients:
            drawn = images.subset(torch.randint(len(images), (records,), generator=child_rng))
            held.append((drawn, release_of_mean(knowledge, drawn, child_rng)))
        data, clean = held[number % clients]
        seen = knowledge.defended(clean, data, child(child_rng, "defense"))
        read = [knowledge.released_statistic.release(artifact, images=records)[0] for artifact in (clean, seen)]
        plain, noisy = knowledge.released_statistic.about(torch.stack(read), about)
        moved.append(noisy - plain)
    return DefenseNoise(shift=torch.stack(moved).mean(0), variance=torch.stack(moved).var(0))


def release_of_mean(knowledge: Knowledge, data: DomainDataset, rng: torch.Generator) -> Artifact:
    """The release of a client that holds `data` before any defense, where that is a mean.

    Defenses act on whole spectra, of which a released statistic keeps a part: those are made by the target's own
    code."""
    if isinstance(knowledge.released_statistic, MeanSpectra) and knowledge.shared is not None:
        return knowledge.shared(data, rng)
    return pooled_release(knowledge.statistics(data), knowledge.released_statistic)


def defense_noise_of_rows(
    knowledge: Knowledge,
    images: DomainDataset,
    *,
    made: Callable[[DomainDataset], Artifact],
    read: Callable[[Artifact], Tensor],
    rng: torch.Generator,
) -> RowDefenseNoise | None:
    """The effect of the defense on rows of single images, `made` of them and `read` as (n, D); None without one.

    Images of one domain belong to one client, as victims' do, because a defense may mix what one client sends."""
    if knowledge.defended is None:
        return None
    plain, noisy = [], []
    for domain in images.domains.unique():
        mine = (images.domains == domain).nonzero().flatten()
        some = images.subset(mine[torch.randperm(len(mine), generator=child(rng, "rows", int(domain)))[:ROWS]])
        rows = made(some)
        before, after = (read(each) for each in (rows, knowledge.defended(rows, some, child(rng, int(domain)))))
        plain.append(torch.stack([before - before.mean(0), before]))
        noisy.append(torch.stack([after - after.mean(0), after]))
    (own, before), (seen, after) = torch.cat(plain, 1), torch.cat(noisy, 1)
    spread = own.square().mean(0)
    weight = torch.where(spread > 0, 1 / spread, 0.0)
    gain = float((own * seen * weight).sum() / (own.square() * weight).sum().clamp_min(1e-300))
    gain = min(max(gain, 0.0), 1.0)
    variance = (seen - gain * own).square().mean(0)
    return RowDefenseNoise(shift=(after - before).mean(0), gain=gain, variance=variance)


def defended_alike(
    knowledge: Knowledge, *, made: Callable[[DomainDataset], Artifact], read: Callable[[Artifact], Tensor]
) -> bool:
    """Whether the defense gives equal rows for equal images, whatever it draws and whoever else is released.

    Rounding does; a defense that withholds rows where they are few does not. The adversary then passes its candidates
    through the defense, and compares them exactly."""
    if knowledge.defended is None or (knowledge.auxiliary is None and knowledge.own is None):
        return False
    images, rng = knowledge.public_images(), stream(0, "attack", "rows alike")
    order = torch.arange(min(len(images), ALIKE))
    rows = []
    for number, some in enumerate((order, order.flip(0), order[: (len(order) + 1) // 2])):
        passed = images.subset(some)
        try:
            seen = read(knowledge.defended(made(passed), passed, child(rng, number)))
        except UnseenError:
            return False
        rows.append(seen.flip(0) if number == 1 else seen)
    return all(len(seen) and torch.equal(rows[0][: len(seen)], seen) for seen in rows)


def defended_rows(knowledge: Knowledge, rows: Tensor) -> Tensor:
    """Style rows (n, 2C) after a defense that gives equal rows for equal images (`defended_alike`)."""
    assert knowledge.defended is not None
    images, rng, found = knowledge.public_images(), stream(0, "attack", "rows alike"), []
    for part in rows.float().split(len(images)):
        mean, std = part.chunk(2, dim=1)
        given = ImageStyles(mean=mean.contiguous(), std=std.contiguous())
        found.append(read_style_rows(knowledge.defended(given, images.subset(torch.arange(len(part))), rng)))
    return torch.cat(found)


def style_rows_of(knowledge: Knowledge) -> Callable[[DomainDataset], Artifact]:
    """A function that makes rows of single images' styles: mean and unbiased std of each, in float32."""

    def made(images: DomainDataset) -> Artifact:
        mean, std = knowledge.statistics(images).style(unbiased=True)
        return ImageStyles(mean=mean.float(), std=std.float())

    return made


def read_style_rows(artifact: Artifact) -> Tensor:
    """Mean and std of each row, concatenated, (n, 2C) float64."""
    return torch.cat([artifact.tensors()[name].double() for name in ("mean", "std")], dim=1)


def defense_noise_of_styles(knowledge: Knowledge, images: DomainDataset) -> RowDefenseNoise | None:
    """The effect of the defense on single images' styles, (mean, std) concatenated; None without one."""
    rng = stream(0, "attack", "blur of rows")  # public: describes the noise distribution only
    return defense_noise_of_rows(knowledge, images, made=style_rows_of(knowledge), read=read_style_rows, rng=rng)


def noisy_rows(
    knowledge: Knowledge, images: DomainDataset, mean: Tensor, std: Tensor, rng: torch.Generator, copies: int = COPIES
) -> tuple[Tensor, Tensor, int]:
    """`copies` noisy versions of single images' styles (n, C), and their number; without a defense the styles and 1.

    Images of one domain are released together, as by one client."""
    if knowledge.defended is None:
        return mean, std, 1
    made = []
    for number in range(copies):
        rows = torch.cat([mean, std], dim=1)
        for domain in images.domains.unique():
            mine = images.domains == domain
            given = ImageStyles(mean=mean[mine].float(), std=std[mine].float())
            rows[mine] = read_style_rows(
                knowledge.defended(given, images.subset(mine), child(rng, number, int(domain)))
            )
        made.append(rows)
    found = torch.cat(made).chunk(2, dim=1)
    return found[0], found[1], copies


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMetric:
    """The metric in which the image whose row is nearest is the most likely one.

    Without noise, whitening by the variation of images; with noise, by that of the noise
    (fdgsec.attacks.statistics.defense_noise)."""

    whiten: Whitening
    defense_noise: RowDefenseNoise | None

    def seen(self, rows: Tensor) -> Tensor:
        """Received rows (R, D) in this metric."""
        return self.whiten(rows)

    def placed(self, rows: Tensor) -> Tensor:
        """The rows (G, D) of candidate images in this metric, at their expected values under the defense."""
        return self.whiten(rows if self.defense_noise is None else self.defense_noise.placed(rows))

    def likely(self, rows: Tensor, images: Tensor) -> Tensor:
        """The posterior mean behind received rows (R, D), shrunk toward `images` (n, D) by the share of noise.

        Without a defense the rows themselves."""
        if self.defense_noise is None:
            return rows
        return self.defense_noise.likely(rows, images.mean(0), images.var(0, correction=0))


def row_metric(knowledge: Knowledge, images: DomainDataset, whiten: Whitening | None = None) -> RowMetric:
    """Make the metric from the adversary's `images`; `whiten` (by their variation within a domain) may be given."""
    defense_noise = defense_noise_of_styles(knowledge, images)
    if whiten is None:
        rows = torch.cat(knowledge.statistics(images).style(unbiased=True), dim=1)
        for domain in images.domains.unique():
            rows[images.domains == domain] -= rows[images.domains == domain].mean(0)
        whiten = fit_whitening(rows)
    return RowMetric(
        whiten=whiten if defense_noise is None else defense_noise.whitening(whiten), defense_noise=defense_noise
    )
