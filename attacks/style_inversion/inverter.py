"""Style inverter: images from styles by ridge regression for the linear part, and a generator for the rest.

An attacker with a few hundred images cannot train a generator of millions of weights, but it does not follow that
styles are safe. The image is therefore predicted in two parts. `LinearInverse` predicts the principal components of
small images by ridge regression, with a penalty per component chosen by cross-validation: a few seconds, and most of
the gain. A `StyleGenerator` then learns what the linear part misses, in logits, on predictions made without the image's
own fold, because residuals of a ridge regression on its training data would be too small."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion.halfway import Halfway, Moment
from fdgsec.metrics.image_similarity import EmbeddingDistance
from fdgsec.nn.networks.style_generator import GeneratorShape, StyleGenerator
from fdgsec.nn.styles.channel_statistics import EPS
from fdgsec.nn.training.precision import autocast, precision_of
from fdgsec.runtime.random_streams import child

Loss = Callable[[Tensor, Tensor], Tensor]
"""Compare predicted with true images, both (N, 3, h, w) in [0, 1]: one number per pair, (N,)."""

TrainedInverter = Callable[[Tensor], Tensor]
"""From style features (N, 2C) to images (N, 3, S, S) in [0, 1]."""

LINEAR_SIDE = 16  # pixels of the linear part: styles contain no finer layout, and 768 numbers are fast to decompose
COMPONENTS = 100
FOLDS = 5
PENALTIES = tuple(10 ** (power / 3) for power in range(19))
FARTHEST = 5.0  # standard deviations: bounds the linear map's extrapolation
BLACKEST = 0.02  # predictions are clamped away from 0 and 1, whose logits are infinite
MOST_POINTS = 2**27  # embedded numbers of training images that are kept, in 16 bits: 256 MiB
NOT_KEPT = Halfway()
NETWORK = "style-generator"  # name in the table of number formats


def style_features(mean: Tensor, std: Tensor) -> Tensor:
    """The inverter's input for styles (N, C): (mean, log std), (N, 2C) float64.

    `std` is biased, with eps inside the root; noise may have pushed it below sqrt(eps), where it is clamped."""
    return torch.cat([mean, std.clamp_min(math.sqrt(EPS)).log()], dim=1).to(torch.float64)


def style_from_linear(statistic: Tensor, *, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Invert `channel_statistics.linear_statistic`: (mu, sigma^2 + mu^2), (N, 2C); negative variance becomes 0."""
    mean, second = statistic.chunk(2, dim=-1)
    return mean, ((second - mean.square()).clamp_min(0) + eps).sqrt()


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSet:
    """The training data of an inverter: `features` (n, D) float64, `images` (n, 3, S, S) float32 in [0, 1], `groups`
    (n,).

    Variants of one image share its group, so that no variant is used to validate another. Raises ValueError for fewer
    than two groups."""

    features: Tensor
    images: Tensor
    groups: Tensor

    def on(self, device: torch.device) -> "TrainingSet":
        """The same on `device`."""
        return TrainingSet(
            features=self.features.to(device), images=self.images.to(device), groups=self.groups.to(device)
        )

    def __post_init__(self) -> None:
        if len(torch.unique(self.groups)) < 2 or not len(self.features) == len(self.images) == len(self.groups):
            raise ValueError(
                f"an inverter needs as many styles as images and groups, of at least 2 images; got "
                f"{len(self.features)}, {len(self.images)} and {len(self.groups)}."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearInverse:
    """Small images, (N, 3, 16, 16), as a linear function of standardized styles."""

    center: Tensor
    spread: Tensor
    average: Tensor
    weight: Tensor

    def standardized(self, features: Tensor) -> Tensor:
        """Features standardized by the training set, clipped at 5."""
        return ((features - self.center) / self.spread).clamp(-FARTHEST, FARTHEST)

    def on(self, device: torch.device) -> "LinearInverse":
        """The same on `device`."""
        return LinearInverse(
            center=self.center.to(device), spread=self.spread.to(device), average=self.average.to(device),
            weight=self.weight.to(device),
        )  # fmt: skip

    def __call__(self, features: Tensor) -> Tensor:
        """Predict images, clamped to [0, 1]; float32."""
        return _pictures(self.average + self.standardized(features) @ self.weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inverter:
    """The trained inverter: linear part plus generator."""

    linear: LinearInverse
    generator: StyleGenerator

    def __call__(self, features: Tensor) -> Tensor:
        """Reconstruct (N, 3, S, S) in (0, 1) for style features (N, D), in evaluation mode and without noise, on the
        CPU."""
        self.generator.eval()
        with torch.no_grad():
            parts = [
                over_linear(self.generator, self.linear(rows), self.linear.standardized(rows).float()).cpu()
                for rows in features.to(self.linear.center.device).split(64)
            ]
        return torch.cat(parts)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Training options of a generator: Adam with cosine decay for `steps` batches, on styles with noise and dropout.

    `decay` is that of the moving average that is kept. `validation` is the share of images used for model selection,
    every `check` steps, including step 0 (the linear part alone, or the generator to start from). Training has settled
    where the last `patience` checks together gained no more than the share `settled` of all that was gained."""

    steps: int
    batch: int = 16
    rate: float = 2e-3
    weight_decay: float = 1e-3
    dropout: float = 0.2
    noise: float = 0.1
    decay: float = 0.95
    validation: float = 0.15
    check: int = 20
    patience: int = 5
    settled: float = 0.0

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1: half a cosine, down to a fiftieth."""
        return self.rate * (0.02 + 0.49 * (1 + math.cos(math.pi * (step - 1) / self.steps)))

    def over(self, lowest: Sequence[float]) -> bool:
        """Whether training has settled, by the `lowest` validation error so far at every check, step 0 first."""
        return settled(lowest, patience=self.patience, share=self.settled)


def settled(lowest: Sequence[float], *, patience: int, share: float) -> bool:
    """Whether the last `patience` of the `lowest` validation errors so far together gained no more than the `share` of
    all that was gained."""
    if len(lowest) <= patience:
        return False
    return lowest[-1 - patience] - lowest[-1] <= share * (lowest[0] - lowest[-1])


def fit_linear(training: TrainingSet) -> tuple[LinearInverse, Tensor]:
    """Fit the ridge regression; also predict each training image from folds without its group, (n, 3, 16, 16)."""
    center = training.features.mean(0)
    spread = training.features.std(0, correction=0)
    spread = torch.where(spread > 0, spread + 1e-3 * spread.mean(), 1.0)
    inputs = ((training.features - center) / spread).clamp(-FARTHEST, FARTHEST)
    pixels = functional.interpolate(training.images, size=(LINEAR_SIDE, LINEAR_SIDE), mode="area")
    targets = pixels.flatten(1).to(torch.float64)
    average = targets.mean(0)
    _, vectors = torch.linalg.eigh((targets - average).T @ (targets - average))
    basis = vectors.flip(1)[:, : min(COMPONENTS, len(targets) - 1)]
    scores = (targets - average) @ basis
    folded = torch.zeros(len(PENALTIES), *scores.shape, dtype=torch.float64)
    fold = torch.unique(training.groups, return_inverse=True)[1] % min(FOLDS, int(training.groups.unique().numel()))
    for number in range(int(fold.max()) + 1):
        kept = fold != number
        shift, middle = inputs[kept].mean(0), scores[kept].mean(0)
        for row, weight in enumerate(_ridge(inputs[kept] - shift, scores[kept] - middle)):
            folded[row, ~kept] = middle + (inputs[~kept] - shift) @ weight
    best = (folded - scores).square().sum(1).argmin(0)
    columns = torch.arange(basis.shape[1])
    shift = inputs.mean(0)
    weight = torch.stack(_ridge(inputs - shift, scores))[best, :, columns].T @ basis.T
    linear = LinearInverse(center=center, spread=spread, average=average - shift @ weight, weight=weight)
    return linear, _pictures(average + folded[best, :, columns].T @ basis.T)


def fit_generator(
    training: TrainingSet,
    linear: LinearInverse,
    unseen: Tensor,
    *,
    shape: GeneratorShape,
    loss: Loss,
    schedule: Schedule,
    rng: torch.Generator,
    start: StyleGenerator | None = None,
    halfway: Halfway = NOT_KEPT,
) -> Inverter:
    """Train the generator on the residuals of `unseen`, the linear part's cross-validated predictions (n, 3, 16, 16).

    All tensors are on the device of `training`, `linear` and `unseen`. `start` is a generator of the same shape to
    continue from (a perceptual loss starts where MSE ended)."""
    inputs = linear.standardized(training.features).float()
    precision = precision_of(inputs.device, NETWORK)
    generator, average, best = (initial_generator(linear, shape, rng=rng, start=start) for _ in range(3))
    compare = against(training.images, loss)
    held = held_out(training.groups, schedule.validation, child(rng, "validation"))
    pool, held = (~held).nonzero().flatten(), held.nonzero().flatten()
    lowest = [_validation_error(average, inputs[held], unseen[held], held, compare)]
    optimizer = torch.optim.AdamW(
        generator.parameters(), lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True
    )
    draws = child(rng, "batches")
    networks = {"generator": generator, "average": average, "best": best}
    moment = Moment(networks=networks, optimizers={"optimizer": optimizer}, rng=draws, numbers=lowest)
    for done in halfway.steps(schedule.steps, "style inversion: training a generator", moment):
        step = done + 1
        optimizer.param_groups[0]["lr"] = schedule.rate_at(step)
        rows = pool[torch.randint(len(pool), (schedule.batch,), generator=draws).to(pool.device)]
        with autocast(inputs.device, precision):
            styles = _augment_styles(inputs[rows], schedule, draws)
            drawn = over_linear(generator.train(), unseen[rows], styles, rng=draws)
        optimizer.zero_grad(set_to_none=True)
        compare(drawn.float(), rows).mean().backward()
        optimizer.step()
        update_average(average, generator, schedule.decay)
        if step % schedule.check == 0 or step == schedule.steps:
            error = _validation_error(average, inputs[held], unseen[held], held, compare)
            if error < lowest[-1]:
                best.load_state_dict(average.state_dict())
            lowest.append(min(error, lowest[-1]))
            if schedule.over(lowest):
                break
    return Inverter(linear=linear, generator=best.eval())


def against(images: Tensor, loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """Compare drawn pictures with the training images (n, 3, S, S) of given rows: one number per pair.

    A distance of embeddings embeds the training images once, as far as they fit into MOST_POINTS numbers; they are kept
    in 16 bits, whose rounding is far below the difference of any two pictures."""
    given: object = loss
    if isinstance(given, EmbeddingDistance):
        embed = given.embed
        with torch.no_grad():
            numbers = embed(images[:1]).numel() * len(images)
            if numbers <= MOST_POINTS:
                points = torch.cat([embed(part).to(torch.float16) for part in images.split(64)])
                return lambda drawn, rows: (embed(drawn) - points[rows].float()).square().sum(1)
    return lambda drawn, rows: loss(drawn, images[rows])


def initial_generator(
    linear: LinearInverse, shape: GeneratorShape, *, rng: torch.Generator, start: StyleGenerator | None = None
) -> StyleGenerator:
    """A generator that adds nothing yet to the linear part, or a copy of `start`; on the device of the former."""
    device = linear.center.device
    generator = StyleGenerator(linear.center.numel(), shape, rng=child(rng, "weights"))
    with torch.no_grad():
        generator.draw.weight.zero_()
    if start is not None:
        generator.load_state_dict(start.state_dict())
    return generator.to(device).to(memory_format=precision_of(device, NETWORK).layout)


def _ridge(inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Ridge weights (D, k) for every penalty, from one decomposition of the smaller Gram matrix."""
    if inputs.shape[0] < inputs.shape[1]:
        values, vectors = torch.linalg.eigh(inputs @ inputs.T)
        turned = vectors.T @ targets
        return [inputs.T @ (vectors @ (turned / (values + penalty).unsqueeze(1))) for penalty in PENALTIES]
    values, vectors = torch.linalg.eigh(inputs.T @ inputs)
    turned = vectors.T @ (inputs.T @ targets)
    return [vectors @ (turned / (values + penalty).unsqueeze(1)) for penalty in PENALTIES]


def _pictures(flat: Tensor) -> Tensor:
    return flat.clamp(0, 1).float().reshape(-1, 3, LINEAR_SIDE, LINEAR_SIDE)


def over_linear(generator: StyleGenerator, base: Tensor, styles: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Add the generator's logits to those of the upsampled linear part."""
    size = generator.shape.size
    enlarged = functional.interpolate(base, size=(size, size), mode="bilinear", align_corners=False)
    drawn: Tensor = enlarged.clamp(BLACKEST, 1 - BLACKEST).logit() + generator.logits(styles, rng=rng)
    return drawn.sigmoid()


def held_out(groups: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Select whole groups for validation: at least one, or none for a `share` of 0."""
    names = torch.unique(groups)
    count = max(1, round(share * len(names))) if share else 0
    return torch.isin(groups, names[torch.randperm(len(names), generator=rng)[:count].to(names.device)])


def _augment_styles(styles: Tensor, schedule: Schedule, rng: torch.Generator) -> Tensor:
    noisy = styles + schedule.noise * torch.randn(styles.shape, generator=rng).to(styles)
    kept = (torch.rand(styles.shape, generator=rng) >= schedule.dropout).to(styles.device)
    return noisy * kept / (1 - schedule.dropout)


def update_average(average: StyleGenerator, generator: StyleGenerator, decay: float) -> None:
    """Update the moving average: move by 1 - `decay` toward `generator`; copy counters."""
    with torch.no_grad():
        kept_of = average.state_dict()
        for name, value in generator.state_dict().items():
            kept = kept_of[name]
            if value.is_floating_point():
                kept.lerp_(value, 1 - decay)
            else:
                kept.copy_(value)


def _validation_error(
    generator: StyleGenerator, styles: Tensor, base: Tensor, rows: Tensor, compare: Callable[[Tensor, Tensor], Tensor]
) -> float:
    generator.eval()
    with torch.no_grad():
        return float(compare(over_linear(generator, base, styles), rows).mean())
