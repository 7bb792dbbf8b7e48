"""What a defense does to a release, as an adversary knows it: its options are public, its randomness is not.

An attack that ignores the noise on what it reads is weaker than it must be, and flatters the defense: a test that whitens
by how images vary gives most weight to directions in which they hardly do, which is where noise of one size drowns
everything. So adversaries pass releases of their own images through the defense, many times, and look at what becomes of
t: by how much it moves, and how far it scatters. Rounding and clipping draw nothing, but do to each client something
else: every pass is of another client. `RowMetric` then compares rows of single images with images under that noise."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.statistics.populations import pooled_release
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles
from fdgsec.federation.released_statistics import MeanSpectra
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge

DRAWS = 200
"""Passes of means through the defense: all victims of a size are read by one shift, whose error (1/200 of the noise's
variance) must stay small beside that of the mean over some tens of them."""
SPECTRA = 12
"""Clients whose whole spectra are made."""
ROWS = 200
"""Images of each domain, at most, that are passed as rows: a standard deviation is known to 5%."""
COPIES = 3
"""Noisy versions of a training row that a classifier of noisy rows is fitted to."""
COPIED = 0.01
"""Share of the variance between images by which a copy, or what else the look-up meets beside noise, may differ."""


@dataclass(frozen=True, kw_only=True)
class DefenseNoise:
    """By how much the defense moves t of a release on average, `shift` (D,), and its variance about that, (D,)."""

    shift: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True)
class RowDefenseNoise:
    """What becomes of the row of a single image, within its domain: shift + center + `gain` (row - center) + noise.

    A mean of k rows keeps 1/k of each, noise all of it. `shift` and the noise's `variance` are (D,)."""

    shift: Tensor
    gain: float
    variance: Tensor

    def placed(self, rows: Tensor) -> Tensor:
        """Where the rows (n, D) of candidate images are expected after the defense, noise apart."""
        center = rows.mean(0)
        return self.shift + center + self.gain * (rows - center)

    def likely(self, rows: Tensor, center: Tensor, spread: Tensor) -> Tensor:
        """What was behind received rows (n, D), by coordinate: the mean of a Gaussian image given its row.

        Images have mean `center` and variance `spread` (D,)."""
        drowned = self.gain**2 * spread + self.variance
        kept = torch.where(drowned > 0, self.gain * spread / drowned, 1.0)
        return center + kept * (rows - self.shift - center)

    def whitening(self, between: Whitening) -> Whitening:
        """The metric in which the candidate whose row is nearest is the likeliest: noise counts, and a little of how
        images differ (`between`), which is what is left to go by where a defense leaves rows as they are."""
        return between.blurred(self.variance / COPIED)


def defense_noise_of_mean(
    knowledge: Knowledge, images: DomainDataset, *, records: int, about: Tensor, rng: torch.Generator
) -> DefenseNoise | None:
    """What the defense does to the mean of `records` images like these, its squares taken `about` (D,); None: nothing.

    Every pass is of a client of its own, whose images are drawn from `images` with replacement; of whole spectra, which are
    Fourier transforms of all of them, SPECTRA clients take turns."""
    if knowledge.defended is None:
        return None
    moved, held = [], list[tuple[DomainDataset, Artifact]]()
    clients = SPECTRA if isinstance(knowledge.released_statistic, MeanSpectra) else DRAWS
    for number in range(DRAWS):
        coins = child(rng, number)
        if number < clients:
            drawn = images.subset(torch.randint(len(images), (records,), generator=coins))
            held.append((drawn, release_of_mean(knowledge, drawn, coins)))
        data, clean = held[number % clients]
        seen = knowledge.defended(clean, data, child(coins, "defense"))
        read = [knowledge.released_statistic.release(artifact, images=records)[0] for artifact in (clean, seen)]
        plain, noisy = knowledge.released_statistic.about(torch.stack(read), about)
        moved.append(noisy - plain)
    return DefenseNoise(shift=torch.stack(moved).mean(0), variance=torch.stack(moved).var(0))


def release_of_mean(knowledge: Knowledge, data: DomainDataset, rng: torch.Generator) -> Artifact:
    """What a client that holds `data` would send before any defense, where that is a mean.

    Defenses act on whole spectra, of which a reading keeps a part: those are made by the target's own code."""
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
    """What the defense does to rows of single images, `made` of them and `read` as (n, D); None: nothing.

    Images of one domain are one client's, as victims' are: defenses may mix what one client sends."""
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


def styles_made(knowledge: Knowledge) -> Callable[[DomainDataset], Artifact]:
    """How rows of single images' styles are made: mean and unbiased std of each, in float32."""

    def made(images: DomainDataset) -> Artifact:
        mean, std = knowledge.statistics(images).style(unbiased=True)
        return ImageStyles(mean=mean.float(), std=std.float())

    return made


def styles_read(artifact: Artifact) -> Tensor:
    """Mean beside std of each row, (n, 2C) float64."""
    return torch.cat([artifact.tensors()[name].double() for name in ("mean", "std")], dim=1)


def defense_noise_of_styles(knowledge: Knowledge, images: DomainDataset) -> RowDefenseNoise | None:
    """What the defense does to single images' styles, (mean, std) side by side; None: nothing."""
    coins = stream(0, "attack", "blur of rows")  # says what noise is like, nothing secret
    return defense_noise_of_rows(knowledge, images, made=styles_made(knowledge), read=styles_read, rng=coins)


def noisy_rows(
    knowledge: Knowledge, images: DomainDataset, mean: Tensor, std: Tensor, rng: torch.Generator, copies: int = COPIES
) -> tuple[Tensor, Tensor, int]:
    """Give `copies` versions of single images' styles (n, C) as they would be released, and how many; else them alone.

    Images of one domain are released together, as by one client."""
    if knowledge.defended is None:
        return mean, std, 1
    made = []
    for number in range(copies):
        rows = torch.cat([mean, std], dim=1)
        for domain in images.domains.unique():
            mine = images.domains == domain
            given = ImageStyles(mean=mean[mine].float(), std=std[mine].float())
            rows[mine] = styles_read(knowledge.defended(given, images.subset(mine), child(rng, number, int(domain))))
        made.append(rows)
    found = torch.cat(made).chunk(2, dim=1)
    return found[0], found[1], copies


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMetric:
    """The metric in which the image behind a row is the likeliest where it is the nearest.

    Without noise, whitening by how images differ; with noise, by that of the noise (fdgsec.attacks.statistics.defense_noise)."""

    whiten: Whitening
    defense_noise: RowDefenseNoise | None

    def seen(self, rows: Tensor) -> Tensor:
        """Received rows (R, D) in this metric."""
        return self.whiten(rows)

    def placed(self, rows: Tensor) -> Tensor:
        """The rows (G, D) of candidate images in this metric, where the defense would put them."""
        return self.whiten(rows if self.defense_noise is None else self.defense_noise.placed(rows))

    def likely(self, rows: Tensor, images: Tensor) -> Tensor:
        """What was behind received rows (R, D), drawn toward `images` (n, D) by the share of noise; without a
        defense the rows themselves."""
        if self.defense_noise is None:
            return rows
        return self.defense_noise.likely(rows, images.mean(0), images.var(0, correction=0))


def row_metric(knowledge: Knowledge, images: DomainDataset, whiten: Whitening | None = None) -> RowMetric:
    """Make the metric from the adversary's `images`; `whiten` (by how these differ within a domain) may be given."""
    defense_noise = defense_noise_of_styles(knowledge, images)
    if whiten is None:
        rows = torch.cat(knowledge.statistics(images).style(unbiased=True), dim=1)
        for domain in images.domains.unique():
            rows[images.domains == domain] -= rows[images.domains == domain].mean(0)
        whiten = fit_whitening(rows)
    return RowMetric(
        whiten=whiten if defense_noise is None else defense_noise.whitening(whiten), defense_noise=defense_noise
    )
