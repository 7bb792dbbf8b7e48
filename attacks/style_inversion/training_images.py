"""Training images of an inverter: the adversary's priors, and augmentations of them.

Intra: images of the victim's own domain. Inter: another client's, which are the adversary's own when it is a client
(those of other domains, or all where the victim's is not known); a server holds no client's images and takes its
auxiliary ones of the next source domain, cyclically. Third party: images of the unseen domain. Images are mirrored,
cropped, and, where they are line drawings, colorized.

Every variant is a new image that is passed through the public encoder; its style is then exact, not interpolated."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.statistics.defense_noise import noisy_rows
from fdgsec.attacks.style_inversion.inverter import LinearInverse, TrainingSet, fit_linear, style_features
from fdgsec.data.domains import DomainDataset, as_float, downsample
from fdgsec.nn.styles.channel_statistics import Moments, concatenated, unbiased_to_biased
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, Statistics

LEAST_IMAGES = 8  # minimum size of a prior, for cross-validation and a validation set
NOISY_ROWS = 4000
"""Number of noisy training rows under a defense: in the positive control 20 copies of 200 gained 1.4 dB over one."""
LEAST_ALIGNED = 8  # minimum number of rows for estimating a mean and a spread
COLORLESS = 0.03
"""Mean difference between a pixel's largest and smallest channel below which a domain counts as line drawings."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """One encoded training set of the adversary, and its linear inverse with cross-validated predictions `unseen`.

    `labels` has the class of each group of the training set. `pooled` and `averaged` (2C,) are what its images would
    release together: the style of all their pixels, and the mean of their styles. `images` are those of the groups at
    full size, colorized where `painted`, and `styles` (n, 2C) their features before any defense; `noisy` says that the
    training rows have a defense's noise."""

    name: str
    training: TrainingSet
    linear: LinearInverse
    unseen: Tensor
    labels: Tensor
    painted: bool
    pooled: Tensor
    averaged: Tensor
    images: DomainDataset
    styles: Tensor
    noisy: bool

    def aligned(self, features: Tensor) -> Tensor:
        """Match the mean and spread of victims' rows (R, 2C) to a colorized prior's, which differ from any real
        domain's.

        Other priors, and fewer rows than LEAST_ALIGNED, are unchanged."""
        if not self.painted or len(features) < LEAST_ALIGNED:
            return features
        spread = features.std(0).clamp_min(1e-6)
        return self.linear.center + (features - features.mean(0)) / spread * self.linear.spread

    def as_single(self, features: Tensor, *, averaged: bool) -> Tensor:
        """Shift pooled rows (R, 2C) to the location of single images' rows, by the difference between the prior's own.

        (A pooled std includes the variation between images.) A colorized prior's rows are aligned instead."""
        if self.painted:
            return self.aligned(features)
        return features - (self.averaged if averaged else self.pooled) + self.linear.center


def encode_prior(
    name: str,
    images: DomainDataset,
    statistics: Statistics,
    *,
    size: int,
    crops: int,
    limit: int,
    rng: torch.Generator,
    behind: Knowledge | None = None,
) -> Prior:
    """Augment `images`, encode them exactly, and fit the linear inverse.

    With `behind`, the noise of its defense is added to the training rows, with several copies of each if there are few.
    Line drawings are colorized, at most `limit` of them. Others are mirrored where there are at most `limit`. Then come
    `crops` cropped copies. Images have the side `drawn_side`."""
    drawings = colorless(images)
    if drawings:
        kept = images.subset(torch.randperm(len(images), generator=rng)[:limit])
        variants = [colorized(kept, rng=rng)]
    else:
        variants = [images] if len(images) > limit else [images, mirrored(images)]
    variants += [cropped(variants[0], rng=rng) for _ in range(crops)]
    side = drawn_side(images, size)
    styles = [statistics(part) for part in variants]
    found = concatenated(styles)
    mean, std = found.style(unbiased=False)
    features, times = [style_features(*each.style(unbiased=False)) for each in styles], 1
    if behind is not None:
        times = max(1, round(NOISY_ROWS / len(mean)))
        features = [
            _noisy(part, each, behind, child(rng, "noise", number), copies=times)
            for number, (part, each) in enumerate(zip(variants, styles, strict=True))
        ]
    training = TrainingSet(
        features=torch.cat(features),
        images=torch.cat([downsample(part, (side, side)).repeat(times, 1, 1, 1) for part in variants]),
        groups=torch.arange(len(variants[0])).repeat(times * len(variants)),
    )
    linear, unseen = fit_linear(training)
    return Prior(
        name=name, training=training, linear=linear, unseen=unseen, labels=variants[0].labels, painted=drawings,
        pooled=style_features(*found.pooled().style(unbiased=False))[0],
        averaged=style_features(mean.mean(0, keepdim=True), std.mean(0, keepdim=True))[0],
        images=variants[0], styles=style_features(*styles[0].style(unbiased=False)), noisy=behind is not None,
    )  # fmt: skip


def _noisy(images: DomainDataset, found: Moments, behind: Knowledge, rng: torch.Generator, *, copies: int) -> Tensor:
    """Features of `copies` releases of each image, (copies n, 2C)."""
    mean, std, _ = noisy_rows(behind, images, *found.style(unbiased=True), rng, copies=copies)
    return style_features(mean, unbiased_to_biased(std, pixels=int(found.count[0])))


def drawn_side(images: DomainDataset, size: int) -> int:
    """The side of reconstructions: `size`, or the largest power of two that is at most that of the images."""
    return int(min(size, 2 ** (min(images.image_size).bit_length() - 1)))


def variant(dataset: DomainDataset, images: Tensor, name: str) -> DomainDataset:
    """The data set with `images` (N, 3, H, W) in [0, 1] instead of its own; ids get `name` as a suffix."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    ids = tuple(f"{image}#{name}" for image in dataset.ids)
    return replace(dataset, store=pixels, rows=torch.arange(len(dataset)), ids=ids)


def mirrored(dataset: DomainDataset) -> DomainDataset:
    """Flip images horizontally. Convolutions are not symmetric, so the styles change."""
    return variant(dataset, as_float(dataset.pixels().flip(3)), "mirrored")


def cropped(dataset: DomainDataset, *, rng: torch.Generator, least: float = 0.8) -> DomainDataset:
    """Crop squares of `least` to 1 of the side at random places, enlarge them, and flip half of them."""
    height, width = dataset.image_size
    images = []
    for image in as_float(dataset.pixels()):
        share = least + (1 - least) * float(torch.rand((), generator=rng))
        h, w = max(1, round(share * height)), max(1, round(share * width))
        top = int(torch.randint(height - h + 1, (), generator=rng))
        left = int(torch.randint(width - w + 1, (), generator=rng))
        piece = image[None, :, top : top + h, left : left + w]
        enlarged = functional.interpolate(piece, size=(height, width), mode="bilinear", antialias=True)
        images.append(enlarged.flip(3) if float(torch.rand((), generator=rng)) < 0.5 else enlarged)
    return variant(dataset, torch.cat(images), "cropped")


def colorless(dataset: DomainDataset) -> bool:
    """Whether these are line drawings, which contain no color information."""
    low, high = as_float(dataset.pixels()).aminmax(dim=1)
    return float((high - low).mean()) < COLORLESS


def colorized(dataset: DomainDataset, *, rng: torch.Generator) -> DomainDataset:
    """Colorize line drawings at random: two tinted grays that meet along a smooth border, with soft shading."""
    n, (height, width) = len(dataset), dataset.image_size
    darkness = 1 - as_float(dataset.pixels()).mean(1, keepdim=True)

    def normal(channels: int, side: int, scale: float) -> Tensor:
        grid = scale * torch.randn(n, channels, side, side, generator=rng)
        return grid if side == 1 else functional.interpolate(grid, size=(height, width), mode="bicubic")

    border = normal(1, 4, 4.0).sigmoid()
    paint = 0.5 + normal(1, 1, 0.25) + normal(3, 1, 0.12)
    other = paint + normal(1, 1, 0.2) + normal(3, 1, 0.12)
    ground = paint * border + other * (1 - border) + normal(3, 3, 0.06)
    opacity = torch.rand(n, 1, 1, 1, generator=rng)
    ink = 0.5 * torch.rand(n, 3, 1, 1, generator=rng)
    return variant(dataset, ground + (ink - ground) * darkness * opacity, "painted")


def prior_images(kind: str, domain: str | None, knowledge: Knowledge) -> tuple[str, DomainDataset] | str:
    """The name and the images of a prior for a victim of `domain` (None: unknown), or why there is none."""
    found: tuple[str, DomainDataset] | str
    if kind == "third-party":
        found = "no images of the unseen domain" if knowledge.unseen is None else ("unseen", knowledge.unseen)
    elif domain is None:
        if kind == "intra" or knowledge.own is None:
            return "the adversary does not know the domain of the victim's images"
        found = ("own", knowledge.own)
    elif domain not in knowledge.domain_names:
        return f"the victim's images are of {domain} domains"
    elif kind == "intra":
        source = knowledge.auxiliary if knowledge.auxiliary is not None else knowledge.own
        found = f"no images of {domain}" if source is None else (f"domain:{domain}", source.of_domain(domain))
    else:
        found = _other_domain(domain, knowledge)
    if not isinstance(found, str) and len(found[1]) < LEAST_IMAGES:
        return f"the adversary knows {len(found[1])} such images; {LEAST_IMAGES} are needed"
    return found


def _other_domain(domain: str, knowledge: Knowledge) -> tuple[str, DomainDataset] | str:
    own = knowledge.own
    if own is not None:
        number = own.domain_index(domain)
        mine = own.subset(own.domains != number)
        return ("own without " + domain, mine) if len(mine) else f"the adversary's own images are of {domain}"
    if knowledge.auxiliary is None:
        return "the adversary has neither auxiliary images nor its own"
    number = knowledge.auxiliary.domain_index(domain)
    others = sorted(set(torch.unique(knowledge.auxiliary.domains).tolist()) - {number})
    if not others:
        return "the adversary's auxiliary images are of one domain"
    following = next((other for other in others if other > number), others[0])
    name = str(knowledge.domain_names[following])
    return f"domain:{name}", knowledge.auxiliary.of_domain(following)
