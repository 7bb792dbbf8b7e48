"""Style matching: images with given channel statistics, by gradient descent on the pixels.

    minimize over x   mean_d ((s(x) - s*)_d / spread_d)^2 + variation TV(x) + extremes |2x - 1|^alpha

where s(x) = (mu, sigma) of the public encoder's maps of x, TV is total variation and the last term the alpha-norm: the
two image priors of Mahendran & Vedaldi (CVPR 2015), both averaged over the image. x is the logistic function of a sum
of grids of 1, 2, 4, ... pixels a side, each enlarged to the image. Adam changes every number at about the same rate, so
colors and large patches converge as fast as pixels.

Statistics have no positions, so they determine palette and texture. The layout comes from the start, hence restarts.

The gradients of most steps are of the encoder in the format of the table (fdgsec.nn.training.precision). The last
steps, which are the smallest, and all residuals are in float32, unless the encoder itself computes in bfloat16, as who
released the statistics did: bfloat16 moves a statistic by about a hundredth of its spread."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.encoders import SMALLEST_SIDE, StyleEncoder
from fdgsec.nn.training.precision import FLOAT, Precision, autocast, precision_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child

ALPHA = 6
BATCH = 32  # images that are optimized at once
FLATTEST = 1e-3  # smooths the square root at 0, for image gradients below this, in [0, 1] per pixel
BLACKEST = 0.02  # starts are clamped away from 0 and 1, whose logits are infinite
LEAST_RATE = 0.05  # learning rate of the last step, as a share of the first step's
ROUGH = 0.75  # share of the steps whose gradients are in the table's format
FLOOR = 0.1  # share of the mean spread that is added to each, so that near-constant channels do not dominate


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Options of the descent: Adam for `steps` with a cosine rate, from logits of N(0, r^2) per grid.

    Of the `roughness` values r, the one whose start is nearest to the style is used, image by image. From rough starts
    a smooth image is approached through saturated pixels, where gradients vanish; from smooth ones a rough image
    converges late. `variation` and `extremes` weight the priors against a mean square of 1, where every statistic is
    off by its spread."""

    steps: int
    rate: float = 0.04
    betas: tuple[float, float] = (0.9, 0.95)
    roughness: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    variation: float = 0.1
    extremes: float = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchedImages:
    """The results of K restarts for R styles: `images` (R, K, 3, side, side) in (0, 1), and `residual` (R, K) of
    each."""

    images: Tensor
    residual: Tensor

    def best(self) -> Tensor:
        """The image of each row with the smallest residual, (R, 3, side, side)."""
        return self.images[torch.arange(len(self.images)), self.residual.argmin(1)]

    def average(self) -> Tensor:
        """The mean image of each row over restarts, which minimizes a squared error."""
        return self.images.mean(1)

    def variance_between(self) -> Tensor:
        """The variance of a pixel between restarts, averaged over the image, (R,); NaN for one restart."""
        return (
            self.images.var(1).mean((1, 2, 3))
            if self.images.shape[1] > 1
            else torch.full((len(self.images),), torch.nan)
        )

    def variance_within(self) -> Tensor:
        """The variance of the pixels of one image, averaged over restarts and colors, (R,).

        Equals `variance_between` in the mean over images that differ in the positions of their pixels only."""
        return self.images.var((3, 4)).mean((1, 2))


def match(
    encoder: StyleEncoder, targets: Tensor, spread: Tensor, *, side: int, restarts: int, options: Matching,
    rng: torch.Generator, start: Tensor | None = None,
) -> MatchedImages:  # fmt: skip
    """Optimize `restarts` images of `side` pixels for each of the styles `targets` (R, 2C), (mu, biased sigma) each.

    `spread` (2C,) is the unit of every statistic. Restarts differ in their random logits, and begin at gray or at the
    images `start` (R, 3, side, side) in [0, 1]. Restart k has the same start for any number of restarts."""
    if not len(targets):
        return MatchedImages(images=torch.empty(0, restarts, 3, side, side), residual=torch.empty(0, restarts))
    targets, spread = targets.to(encoder.device, torch.float32), spread.to(encoder.device, torch.float32)
    restart_rngs = [child(rng, "restart", number) for number in range(restarts)]
    grids = [
        torch.stack([torch.randn(len(targets), 3, s, s, generator=restart_rng) for restart_rng in restart_rngs], dim=1)
        for s in _grid_sides(side)
    ]
    begun = torch.full((len(targets), 3, side, side), 0.5) if start is None else start.float()
    base = begun.clamp(BLACKEST, 1 - BLACKEST).logit().to(encoder.device)
    images, residuals = [], []
    for rows in torch.arange(len(targets) * restarts).split(BATCH):
        own = rows // restarts
        pyramid = [grid.flatten(0, 1)[rows].to(encoder.device) for grid in grids]
        drawn = _descend(encoder, targets[own], spread, base[own], pyramid, options)
        images.append(drawn)
        with torch.no_grad():
            residuals.append(style_residual(encoder, drawn, targets[own], spread))
    return MatchedImages(
        images=torch.cat(images).cpu().unflatten(0, (-1, restarts)),
        residual=torch.cat(residuals).cpu().unflatten(0, (-1, restarts)),
    )


def style_residual(encoder: StyleEncoder, images: Tensor, targets: Tensor, spread: Tensor) -> Tensor:
    """The root mean square over statistics of (s(x) - s*) / spread, (N,): 1 where all are off by their spread."""
    return _square_gap(encoder, images, targets, spread).sqrt()


def mean_and_std(features: Tensor) -> Tensor:
    """Convert (mu, log sigma) to (mu, sigma), (R, 2C)."""
    mean, log_std = features.chunk(2, dim=1)
    return torch.cat([mean, log_std.exp()], dim=1)


def statistic_spread(styles: Tensor) -> Tensor:
    """The unit of every statistic, (2C,): its standard deviation over images (n, 2C), and a tenth of their mean."""
    deviation = styles.std(0, correction=0)
    return deviation + FLOOR * deviation.mean() if float(deviation.max()) > 0 else torch.ones_like(deviation)


def input_side(encoder: StyleEncoder, cells: int) -> int:
    """The side of the square images whose feature maps have `cells` positions.

    Raises UsageError where no square image has such maps."""
    across = math.isqrt(cells)
    for side in (encoder.stride * across, encoder.stride * (across + 1)):
        if side >= SMALLEST_SIDE:
            with torch.inference_mode():
                shape = encoder.encode(torch.zeros(1, 3, side, side, device=encoder.device)).shape
            if shape[2] * shape[3] == cells:
                return side
    raise UsageError(f"no square image has maps of {cells} cells under {encoder.name} (stride {encoder.stride}).")


def total_variation(images: Tensor) -> Tensor:
    """The mean length of the color gradient over the positions of each image, (N,)."""
    down, right = images[..., 1:, :-1] - images[..., :-1, :-1], images[..., :-1, 1:] - images[..., :-1, :-1]
    return (down.square() + right.square() + FLATTEST**2).sqrt().mean((1, 2, 3))


def _square_gap(
    encoder: StyleEncoder, images: Tensor, targets: Tensor, spread: Tensor, *, precision: Precision = FLOAT
) -> Tensor:
    with autocast(images.device, precision):
        maps = encoder.encode(images)
    statistics = torch.cat(style_of(maps.float(), unbiased=False), dim=1)
    gap: Tensor = ((statistics - targets) / spread).square().mean(1)
    return gap


def _descend(
    encoder: StyleEncoder, targets: Tensor, spread: Tensor, base: Tensor, pyramid: list[Tensor], options: Matching
) -> Tensor:
    """Optimize (N, 3, side, side) from the logits `base`, by the grids of `pyramid`."""
    grids = [
        grid.requires_grad_() for grid in _choose_roughness(encoder, targets, spread, base, pyramid, options.roughness)
    ]
    optimizer = torch.optim.Adam(grids, lr=options.rate, betas=options.betas, fused=True)
    rough = precision_of(base.device, encoder.name)
    for step in tracked(range(options.steps), "inversion by optimization: steps"):
        precision = rough if step < ROUGH * options.steps else FLOAT
        falling = (1 + math.cos(math.pi * step / options.steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = options.rate * (LEAST_RATE + (1 - LEAST_RATE) * falling)
        images = _picture(base, grids)
        loss = _square_gap(encoder, images, targets, spread, precision=precision)
        loss = loss + options.variation * total_variation(images)
        loss = loss + options.extremes * (2 * images - 1).pow(ALPHA).mean((1, 2, 3))
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        optimizer.step()
    with torch.no_grad():
        return _picture(base, grids)


def _choose_roughness(
    encoder: StyleEncoder, targets: Tensor, spread: Tensor, base: Tensor, pyramid: list[Tensor],
    roughness: tuple[float, ...],
) -> list[Tensor]:  # fmt: skip
    """Scale the grids of each image by the roughness whose start is nearest to its style."""
    with torch.no_grad():
        starts = (_picture(base, [rough * grid for grid in pyramid]) for rough in roughness)
        gaps = torch.stack([_square_gap(encoder, start, targets, spread) for start in starts])
        chosen = torch.tensor(roughness, device=base.device)[gaps.argmin(0)].view(-1, 1, 1, 1)
        return [chosen * grid for grid in pyramid]


def _picture(base: Tensor, grids: list[Tensor]) -> Tensor:
    """The logistic function of `base` (N, 3, side, side) plus every grid, upsampled."""
    size = (int(base.shape[2]), int(base.shape[3]))
    logits = base
    for grid in grids:
        logits = logits + functional.interpolate(grid, size=size, mode="bilinear", align_corners=False)
    return logits.sigmoid()


def _grid_sides(side: int) -> list[int]:
    """1, 2, 4, ... and `side` itself."""
    return [2**power for power in range(side.bit_length()) if 2**power < side] + [side]
