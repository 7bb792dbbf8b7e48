"""Styles inside a network: statistics of feature maps (N, C, H, W), AdaIN between them, and sampling from batches.

MixStyle is Zhou et al., ICLR 2021, https://arxiv.org/abs/2104.02008. Selection by k-means++ (Arthur & Vassilvitskii,
SODA 2007), class-balanced oversampling and style exploration are steps 2 to 4 of StableFDG, section 3.1. A style here
is one map's channel mean and std, each (N, C, 1, 1), with eps = 1e-6 as in the released codes of MixStyle, DSU and
StableFDG; the encoder styles that clients exchange before training are in fdgsec.nn.styles.channel_statistics. Local
objectives that change feature maps between the stages of a network (MixStyle, DSU) are at the end."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.nn.networks.classifiers import Classifier, StageHooks
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.runtime.errors import unknown_name
from fdgsec.runtime.random_streams import integer_seed

PLACES = ("conv", "stem", "stage1", "stage2", "stage3", "stage4")
"""The places of a network where `Classifier.maps` accepts hooks."""


def check_places(places: tuple[str, ...], *, method: str) -> None:
    """Raise UsageError for a place that no network has."""
    for place in places:
        if place not in PLACES:
            raise unknown_name(f"place of {method}", str(place), PLACES)


@dataclass(frozen=True)
class StageStyleObjective:
    """Cross-entropy of a forward pass in which `act` changes the maps (N, C, H, W) at `places` with `probability`."""

    places: tuple[str, ...]
    probability: float
    act: Callable[[Tensor, torch.Generator], Tensor]
    rng: torch.Generator
    couples_records: bool = True

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Compute -log p(label), (B,)."""
        between: StageHooks = dict.fromkeys(self.places, self.acted)
        logits = model.head(model.neck(model.maps(batch.images, between=between)))
        return functional.cross_entropy(logits.float(), batch.labels, reduction="none")

    def acted(self, maps: Tensor) -> Tensor:
        """Change the maps of a whole batch with `probability`."""
        return maps if bool(torch.rand((), generator=self.rng) >= self.probability) else self.act(maps, self.rng)


def instance_statistics(maps: Tensor, *, eps: float = 1e-6, unbiased: bool = True) -> tuple[Tensor, Tensor]:
    """Compute each map's channel mean and std, both (N, C, 1, 1), in float32 at least, with `eps` inside the root.

    `unbiased` divides by HW - 1, otherwise by HW as in StableFDG's eq. (1). A map of one pixel has variance 0."""
    pixels = maps.shape[2] * maps.shape[3]
    divisor = pixels - 1 if unbiased and pixels > 1 else pixels
    mean, std = cast("tuple[Tensor, Tensor]", _Statistics.apply(maps, divisor, eps))
    return mean, std


class _Statistics(torch.autograd.Function):
    """Mean and std with their gradient in closed form: one pass over the maps, where autograd makes six."""

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, divisor: int, eps: float) -> tuple[Tensor, Tensor]:
        precise = maps.to(_precise(maps))
        mean = precise.mean((2, 3), keepdim=True)
        # torch.var takes four times as long on a CPU
        return mean, ((precise - mean).square().sum((2, 3), keepdim=True) / divisor + eps).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, float], output: tuple[Tensor, Tensor]) -> None:
        maps, ctx.divisor, _ = inputs
        ctx.save_for_backward(maps, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        maps, mean, std = ctx.saved_tensors
        to_mean, to_std = grads
        slope = to_std / (std * ctx.divisor)
        offset = to_mean / (maps.shape[2] * maps.shape[3])
        return torch.addcmul(offset - mean * slope, maps.to(_precise(maps)), slope).to(maps.dtype), None, None


def _precise(maps: Tensor) -> torch.dtype:
    return torch.promote_types(maps.dtype, torch.float32)


def early_maps(network: Classifier, images: Tensor, stage: str) -> Tensor:
    """Run a network's body up to and including `stage` ("stem", "stage1", ...): (N, C, h, w).

    Raises ValueError where the body has no such part."""
    maps: Tensor = network.normalize(images)
    for name, part in network.body.named_children():
        maps = part(maps)
        if name == stage:
            return maps
    raise ValueError(f"{network.backbone} has no stage {stage!r}; its parts are stem, stage1, ..., stage4.")


@torch.no_grad()
def batch_styles(
    network: Classifier, batches: Iterable[Batch], *, stage: str, eps: float = 1e-6, unbiased: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute mean and std of each image's maps at the end of `stage`, batch by batch: (n, C) float64 on the CPU."""
    rows: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        mean, std = instance_statistics(early_maps(network, batch.images, stage), eps=eps, unbiased=unbiased)
        rows.append((mean.flatten(1).double().cpu(), std.flatten(1).double().cpu()))
    return torch.cat([mean for mean, _ in rows]), torch.cat([std for _, std in rows])


def apply_style(maps: Tensor, mean: Tensor, std: Tensor, *, new_mean: Tensor, new_std: Tensor) -> Tensor:
    """AdaIN: give `maps`, whose style is (`mean`, `std`), the style (`new_mean`, `new_std`)."""
    return cast(Tensor, _Restyled.apply(maps, mean, std, new_mean, new_std))


class _Restyled(torch.autograd.Function):
    """AdaIN with its gradient in closed form; gradients that are not needed are not computed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
        return torch.addcmul(new_mean, maps - mean, new_std / std).to(maps.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output  # the gradient needs the inputs only
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        maps, mean, std, _, new_std = ctx.saved_tensors
        needed = ctx.needs_input_grad
        grad = grads[0].to(_precise(maps))
        scale = new_std / std
        found: list[Tensor | None] = [(grad * scale).to(maps.dtype) if needed[0] else None, None, None, None, None]
        if needed[1] or needed[3]:
            shift = grad.sum((2, 3), keepdim=True)
            found[1], found[3] = -scale * shift, shift
        if needed[2] or needed[4]:
            stretch = ((maps - mean) * grad).sum((2, 3), keepdim=True) / std
            found[2], found[4] = -scale * stretch, stretch
        return tuple(
            each.sum_to_size(given.shape) if each is not None and wanted else None
            for each, given, wanted in zip(found, ctx.saved_tensors, needed, strict=True)
        )


def mixed_statistics(mean: Tensor, std: Tensor, rng: torch.Generator, *, alpha: float = 0.1) -> tuple[Tensor, Tensor]:
    """Mix every style with another row's, drawn at random: lambda s_i + (1 - lambda) s_j (StableFDG, step 5).

    lambda ~ Beta(alpha, alpha) is drawn per row, j from a permutation of the batch that may leave rows in place."""
    count = mean.shape[0]
    order = to_device(torch.randperm(count, generator=rng), mean.device)
    drawn = np.random.default_rng(integer_seed(rng)).beta(alpha, alpha, count)  # torch's uses the global stream
    lam = to_device(torch.from_numpy(drawn).to(mean.dtype), mean.device).view(-1, 1, 1, 1)
    return torch.lerp(mean[order], mean, lam), torch.lerp(std[order], std, lam)


def mixed_styles(
    maps: Tensor, rng: torch.Generator, *, alpha: float = 0.1, eps: float = 1e-6, detach: bool = True
) -> Tensor:
    """MixStyle: mix the style of every map of a batch with that of another (see `mixed_statistics`).

    `detach` stops gradients through the statistics, as MixStyle's authors do."""
    mean, std = instance_statistics(maps.detach() if detach else maps, eps=eps)
    new_mean, new_std = mixed_statistics(mean, std, rng, alpha=alpha)
    return apply_style(maps, mean, std, new_mean=new_mean, new_std=new_std)


def explored(statistic: Tensor, center: Tensor, *, level: float) -> Tensor:
    """Extrapolate means or stds (N, C, 1, 1) away from their `center` (1, C, 1, 1): StableFDG's eqs. (4) and (5).

    `level` 0 changes nothing, bit for bit. A std may come out negative."""
    return statistic + level * (statistic - center)


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleLaws:
    """Normal distributions of styles, one a row: centers and scales of means and stds, each (R, C), on the CPU."""

    mean: Tensor
    std: Tensor
    mean_scale: Tensor
    std_scale: Tensor

    def drawn(self, count: int, rng: torch.Generator, *, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw `count` styles, each from a random row and with its own noise in every channel: two (count, C, 1, 1).

        They get the number format and device of `like`. A std below 0 becomes 0."""
        rows = torch.randint(len(self.mean), (count,), generator=rng)
        noise = torch.randn(2, count, self.mean.shape[1], generator=rng)
        mean = self.mean[rows] + noise[0] * self.mean_scale[rows]
        std = (self.std[rows] + noise[1] * self.std_scale[rows]).clamp_min(0)
        both = torch.cat([mean, std], 1)
        if like is not None:
            both = to_device(both.to(like.dtype), like.device)
        mean, std = both[..., None, None].chunk(2, 1)
        return mean, std


def greedy_seeds(points: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Choose `count` rows of `points` (N, d) as k-means++ does: the first at random, each next with probability ~ D^2.

    D is the distance to the nearest row chosen so far. Of 2 + floor(ln count) such draws the one that leaves the
    smallest sum of D^2 is taken (greedy k-means++, as in scikit-learn). Gives distinct positions (count,) on the CPU,
    in the order chosen; where all remaining rows coincide with chosen ones it draws at random. Raises ValueError: more
    than N."""
    total = points.shape[0]
    if not 0 <= count <= total:
        raise ValueError(f"count must lie in 0..{total}, the number of points; got {count}.")
    if not count:
        return torch.empty(0, dtype=torch.int64)
    rows = points.detach().to("cpu", torch.float64)
    squares = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    chosen = [int(torch.randint(total, (1,), generator=rng))]
    nearest = squares[chosen[0]]
    trials = 2 + int(math.log(count))
    while len(chosen) < count:
        if float(nearest.sum()) > 0:
            candidates = torch.multinomial(nearest, trials, replacement=True, generator=rng)
        else:
            free = torch.ones(total, dtype=torch.bool)
            free[chosen] = False
            candidates = torch.multinomial(free.double(), 1, generator=rng)
        left = torch.minimum(nearest, squares[candidates])
        best = int(left.sum(1).argmin())
        chosen.append(int(candidates[best]))
        nearest = left[best]
    return torch.tensor(chosen)


def kmeans_step(points: Tensor, seeds: Tensor) -> Tensor:
    """Move the centers `points[seeds]` by one step of k-means: to the mean of the rows nearest to each, (k, d)."""
    nearest = torch.cdist(points, points[seeds], compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    members = torch.zeros(len(seeds), len(points), dtype=points.dtype, device=points.device)
    members[nearest, torch.arange(len(points), device=points.device)] = 1
    counts = members.sum(1, keepdim=True)  # 0 for the second of two equal seeds, which stays unchanged
    with torch.autocast(points.device.type, enabled=False):  # a style in bfloat16 is 0.4% off
        return torch.where(counts > 0, members @ points / counts.clamp_min(1), points[seeds])


def balancing_additions(counts: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """Compute how many samples to add to each class, (K,), `size` in all, so that the sums become as equal as possible.

    The classes with the smallest count get one each, repeatedly; a random part of them in the last step, where fewer
    are left (StableFDG, step 3 and appendix G)."""
    filled = counts.clone()
    left = size
    while left > 0:
        lowest = (filled == filled.min()).nonzero().flatten()
        lowest = lowest[torch.randperm(len(lowest), generator=rng)[:left]]
        filled[lowest] += 1
        left -= len(lowest)
    return filled - counts


def oversampled_rows(labels: Tensor, size: int, rng: torch.Generator, *, balanced: bool = True) -> Tensor:
    """Draw `size` positions of a batch with these `labels` (N,), with replacement, class-balanced or uniformly.

    All on the CPU. Raises ValueError where there is nothing to draw from."""
    if not len(labels) and size > 0:
        raise ValueError(f"an empty batch cannot be oversampled; {size} positions were requested.")
    if not balanced:
        return torch.randint(len(labels), (size,), generator=rng) if size > 0 else torch.empty(0, dtype=torch.int64)
    classes, counts = torch.unique(labels, return_counts=True)
    drawn = [torch.empty(0, dtype=torch.int64)]
    for label, extra in zip(classes, balancing_additions(counts, size, rng).tolist(), strict=True):
        members = (labels == label).nonzero().flatten()
        drawn.append(members[torch.randint(len(members), (extra,), generator=rng)])
    return torch.cat(drawn)
