"""Retrieval inversion: pictures that begin at the public images with the nearest styles and give back the given style.

For every style, drafts are made of the nearest public images: each as it is, and with its coarse colors (the average of
cells of 1/16 of the side) moved in part or in full to those that the linear inverse predicts. A draft thus has the
detail of a real picture and the colors of the learned reconstruction. All drafts pass through the public encoder at
full size, in 8 bits, as a client's image would. Where the encoder has gradients, the best drafts are optimized until it
gives back the style (fdgsec.attacks.style_inversion.style_matching), and compared with the drafts by the same measure.
The picture whose style is nearest is kept. Nothing is trained but the linear inverse.

Styles are compared as in fdgsec.attacks.style_inversion.style_residuals."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion.inverter import LINEAR_SIDE, LinearInverse
from fdgsec.attacks.style_inversion.style_matching import Matching, input_side, match
from fdgsec.attacks.style_inversion.style_residuals import StyleResiduals, as_bytes
from fdgsec.attacks.style_inversion.training_images import Prior
from fdgsec.data.domains import DomainDataset, as_float, downsample
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.image_styles import encoder_named, resized
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge

SHARES = (0.0, 0.5, 1.0)
"""How far a draft's coarse colors are moved toward those of the linear inverse."""
AGREEMENT = 1e-2
"""Largest difference of an encoder's statistic from the one that the adversary is given, in units of its spread."""
NOISE_STYLES = 2
"""Styles of control B4, given to the rows in turn: each costs as much as a row."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """How many of the `nearest` public images become drafts, and how many `draws` of these are optimized for `steps`.

    `rows` is the maximum number of rows of one client that are answered."""

    nearest: int
    draws: int
    steps: int
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievedPictures:
    """One picture per row, `shown` at the size of reconstructions, (R, 3, S, S) in [0, 1].

    `residual` (R,) is what its style at full size misses of the given one, and `before` what that of the nearest public
    image does. 1 is off by a public image's spread."""

    shown: Tensor
    residual: Tensor
    before: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievalInverter:
    """Reconstructs styles from the images of one prior, without training; equal calls give equal pictures.

    `residuals` has the prior's images and what the public encoder says of pictures. `encoder` is None where that has no
    gradients; then drafts are ranked and not optimized."""

    residuals: StyleResiduals
    linear: LinearInverse
    encoder: StyleEncoder | None
    options: RetrievalOptions
    size: int

    def __call__(self, features: Tensor) -> Tensor:
        """Reconstruct (N, 3, size, size) in [0, 1] for style features (N, 2C)."""
        return self.retrieve(features).shown

    def retrieve(self, features: Tensor) -> RetrievedPictures:
        """The best picture of every row, with its residual."""
        targets, spread = self.residuals.targets(features), self.residuals.spread
        distance = torch.cdist(targets / spread, self.residuals.styles / spread)
        near = distance.argsort(dim=1, stable=True)[:, : self.options.nearest]
        before = distance.gather(1, near[:, :1])[:, 0] / targets.shape[1] ** 0.5
        coarse = self.linear(features)
        parts = [self._best(*rows) for rows in zip(targets.split(16), near.split(16), coarse.split(16), strict=True)]
        return RetrievedPictures(
            shown=downsample(torch.cat([images for images, _ in parts]), (self.size, self.size)),
            residual=torch.cat([gaps for _, gaps in parts]), before=before,
        )  # fmt: skip

    def _best(self, targets: Tensor, near: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row's drafts and their optimized versions, the picture with the smallest residual, and that."""
        made = self._drafts(near, coarse)
        gaps = self.residuals(made, targets)
        if self.encoder is not None and self.options.steps:
            kept = gaps.argsort(dim=1, stable=True)[:, : self.options.draws]
            starts = made[torch.arange(len(made))[:, None], kept]
            refined = self._refined(starts, targets, self.encoder)
            made = _resized(made, refined.shape[-1])
            made, gaps = torch.cat([made, refined], 1), torch.cat([gaps, self.residuals(refined, targets)], 1)
        best = gaps.argmin(1)
        rows = torch.arange(len(made))
        return made[rows, best], gaps[rows, best]

    def _drafts(self, near: Tensor, coarse: Tensor) -> Tensor:
        """Drafts (R, k shares, 3, H, W) uint8 of the images `near` (R, k), toward colors `coarse` (R, 3, 16, 16)."""
        pictures = as_float(self.residuals.public.pixels(near.flatten()))
        wide = color_gap(pictures, coarse.repeat_interleave(near.shape[1], 0))
        moved = torch.stack([pictures + share * wide for share in SHARES], 1)
        return as_bytes(moved).reshape(len(near), -1, *moved.shape[2:])

    def _refined(self, starts: Tensor, targets: Tensor, encoder: StyleEncoder) -> Tensor:
        """Optimize `starts` (R, d, 3, H, W) until the encoder gives back `targets`, (R, d, 3, side, side) uint8."""
        known = self.residuals.statistics(self.residuals.public.subset(torch.arange(1)))
        side = input_side(encoder, int(known.count[0]))
        flat = as_float(_resized(starts, side).flatten(0, 1))
        found = match(
            encoder, targets.repeat_interleave(starts.shape[1], 0), self.residuals.spread, side=side, restarts=1,
            options=Matching(steps=self.options.steps, roughness=(0.0,)), rng=stream(0, "attack", "retrieval"),
            start=flat,
        )  # fmt: skip
        return as_bytes(found.images[:, 0]).reshape(*starts.shape[:2], 3, side, side)


def color_gap(pictures: Tensor, coarse: Tensor) -> Tensor:
    """What `pictures` (N, 3, H, W) lack of the `coarse` colors (N, 3, 16, 16), smoothly enlarged to their size."""
    own = functional.interpolate(pictures, size=(LINEAR_SIDE, LINEAR_SIDE), mode="area")
    size = (int(pictures.shape[2]), int(pictures.shape[3]))
    return functional.interpolate(coarse - own, size=size, mode="bilinear", align_corners=False)


def retrieval_of(
    prior: Prior, residuals: StyleResiduals, knowledge: Knowledge, options: RetrievalOptions
) -> RetrievalInverter:
    """The inverter that begins at the images of `prior`, which must not be colorized line drawings."""
    sample = prior.images.subset(torch.arange(1))
    return RetrievalInverter(
        residuals=residuals, linear=prior.linear, options=options, size=int(prior.training.images.shape[-1]),
        encoder=encoder_with_gradients(knowledge, sample, residuals.spread),
    )  # fmt: skip


def encoder_with_gradients(knowledge: Knowledge, sample: DomainDataset, spread: Tensor) -> StyleEncoder | None:
    """The public encoder, where it gives gradients and the very statistics of the image `sample` that are known.

    None for encoders without gradients or of a form that no square image has, and for statistics that no named encoder
    computes."""
    known = knowledge.statistics(sample)
    try:
        encoder = encoder_named(knowledge.encoder)
        side = input_side(encoder, int(known.count[0]))
    except (UsageError, WeightsUnavailableError):
        return None
    image = as_float(resized(sample.pixels(), side)).to(encoder.device).requires_grad_()
    maps = encoder.encode(image)
    if not maps.requires_grad or maps.shape[1] != known.channels:
        return None
    own = torch.cat(style_of(maps.detach(), unbiased=False), 1).cpu().double()
    gap = (own - torch.cat(known.style(unbiased=False), 1)) / spread
    return encoder if float(gap.abs().max()) < AGREEMENT else None


def _resized(pictures: Tensor, side: int) -> Tensor:
    """Pictures (R, d, 3, H, W) uint8 at `side` px."""
    return resized(pictures.flatten(0, 1), side).reshape(*pictures.shape[:2], 3, side, side)
