"""Adversarial style inversion: a conditional generator with a discriminator, and FISC's unconditional baseline.

The conditional generator predicts G(s, z) on top of the linear part. Its loss is the hinge loss of a discriminator that
is conditioned on the style (fdgsec.nn.networks.style_discriminator), a perceptual distance to the true image, and the
style's own distance |t(G(s, z)) - s|^2 in whitened coordinates. The public encoder is available as statistics of images
(`Knowledge.statistics`), without gradients, at the images' own size. Therefore t is a network trained to predict styles
from the small images of the training set. Of several z the one is kept whose image has the style nearest to s, under
the public encoder itself where a `Ranking` by it is given, else under t.

The baseline is FISC's (arXiv 2410.22622, appendix B.5): the same networks, unconditional, trained on real images alone.
Both keep a moving average of the generator (Karras et al. 2018), and the discriminator receives translated images with
random cutouts, real and generated alike (Zhao et al. 2020), because a few hundred images would otherwise be
memorized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.attacks.style_inversion.halfway import Halfway, Moment
from fdgsec.attacks.style_inversion.inverter import (
    LinearInverse,
    Loss,
    TrainingSet,
    against,
    held_out,
    over_linear,
    settled,
    update_average,
)
from fdgsec.nn.networks.style_discriminator import StyleDiscriminator, StylePredictor
from fdgsec.nn.networks.style_generator import GeneratorShape, StyleGenerator
from fdgsec.nn.training.precision import Precision, autocast
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child

CODE = 64  # maximum number of style components that the networks receive, and one per `RECORDS` images
RECORDS = 4
BETAS = (0.5, 0.999)

# Measured once, one thread of an AVX-512 Xeon, 64 px, batches of 16: forward and backward of both
# networks take 0.16 s in float32 channels_last, 0.19 s contiguous, 0.26 s in bfloat16 (too few channels to gain).
PRECISION: Mapping[str, Precision] = {
    "cpu": Precision(dtype="float32", channels_last=True),
    "cuda": Precision(dtype="bfloat16", channels_last=True),
}


NOT_KEPT = Halfway()
Ranking = Callable[[Tensor, Tensor], Tensor]
"""How far the styles of reconstructions (N, 3, S, S) are from those of `features` (N, D), (N,)."""


@dataclass(frozen=True, kw_only=True)
class AdversarialOptions:
    """Options of adversarial training, for `steps` batches of `batch`.

    `latent` is the dimension of z. `decay` is the moving average's, reached gradually. `perceptual` and `consistency`
    weight the two other losses of the conditional generator. Its style predictor is trained for `lessons` batches first
    and then selects among `tries` images.

    With `check`, the share `validation` of the images trains nothing, and every `check` steps the conditional generator
    is compared with them by the perceptual distance. Once it has settled as `Schedule` says, training ends, with the
    weights of the last step: adversarial training gives up some of this distance for detail. The baseline, which has no
    picture to be compared with, takes all `steps`."""

    steps: int
    batch: int = 16
    rate: float = 2e-4
    decay: float = 0.999
    latent: int = 64
    perceptual: float = 10.0
    consistency: float = 0.3
    lessons: int = 500
    tries: int = 4
    validation: float = 0.15
    check: int = 0
    patience: int = 5
    settled: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleCode:
    """A style's leading principal components over the training set, each in units of its spread.

    So few images cannot whiten all of hundreds of coordinates; the components that are left out vary least."""

    linear: LinearInverse
    middle: Tensor
    basis: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Map style features (N, D) to codes (N, k) float32."""
        return ((self.linear.standardized(features) - self.middle) @ self.basis).float()


def style_code(training: TrainingSet, linear: LinearInverse) -> StyleCode:
    """Fit the code: at most 64 components, and at most a quarter of the number of images or all of the style's
    coordinates."""
    standard = linear.standardized(training.features)
    middle = standard.mean(0)
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh((standard - middle).T @ (standard - middle) / len(standard))
    images = int(training.groups.unique().numel())
    kept = max(1, min(CODE, images // RECORDS, int((values > 1e-6 * values[-1]).sum())))
    basis = vectors[:, -kept:].flip(1) / values[-kept:].flip(0).sqrt()
    return StyleCode(linear=linear, middle=middle, basis=basis)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdversarialInverter:
    """The trained conditional generator, with the linear part and what selects z: `ranking`, or the predictor.

    Equal calls give equal images: z comes from `rng`, which is never advanced."""

    linear: LinearInverse
    code: StyleCode
    generator: StyleGenerator
    predictor: StylePredictor
    contest: AdversarialOptions
    rng: torch.Generator
    ranking: Ranking | None = None

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Reconstruct (N, 3, S, S) in (0, 1) for style features (N, D), on the CPU."""
        generator, predictor = self.generator.eval(), self.predictor.eval()
        given = features.to(self.linear.center.device)
        styles, base = self.code(given), self.linear(given)
        best = torch.full((len(given),), float("inf"), device=styles.device)
        chosen = torch.zeros(len(given), 3, generator.shape.size, generator.shape.size, device=styles.device)
        for turn in range(self.contest.tries):
            z = torch.randn(len(given), self.contest.latent, generator=child(self.rng, "z", turn)).to(styles)
            for rows in torch.arange(len(given)).split(64):
                drawn = over_linear(generator, base[rows], torch.cat([styles[rows], z[rows]], dim=1))
                gap = (predictor(drawn) - styles[rows]).square().mean(1)
                if self.ranking is not None:
                    gap = self.ranking(drawn, given[rows]).to(gap)
                nearer = gap < best[rows]
                best[rows] = torch.where(nearer, gap, best[rows])
                chosen[rows] = torch.where(nearer[:, None, None, None], drawn, chosen[rows])
        return chosen.cpu()


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineGenerator:
    """The trained unconditional generator."""

    generator: StyleGenerator
    contest: AdversarialOptions

    @torch.no_grad()
    def __call__(self, count: int, rng: torch.Generator) -> Tensor:
        """Generate `count` images (count, 3, S, S) in (0, 1), on the CPU."""
        generator = self.generator.eval()
        z = torch.randn(count, self.contest.latent, generator=rng).to(generator.center)
        return torch.cat([generator(part).cpu() for part in z.split(64)])


class ConditionalNetworks(nn.Module):
    """A conditional generator and the predictor of styles that selects among its pictures."""

    def __init__(self, generator: StyleGenerator, predictor: StylePredictor) -> None:
        super().__init__()
        self.generator, self.predictor = generator, predictor


def conditional_networks(
    training: TrainingSet, linear: LinearInverse, *, shape: GeneratorShape, contest: AdversarialOptions,
    rng: torch.Generator,
) -> ConditionalNetworks:  # fmt: skip
    """Both networks as training begins with them: the generator adds nothing yet to the linear part."""
    numbers, device = style_code(training, linear).basis.shape[1], training.images.device
    generator = _generator(numbers + contest.latent, shape, device, child(rng, "weights"))
    with torch.no_grad():
        generator.draw.weight.zero_()
    predictor = StylePredictor(numbers, rng=child(child(rng, "predictor"), "weights")).to(device)
    layout = PRECISION[device.type].layout
    return ConditionalNetworks(generator.to(memory_format=layout), predictor.to(memory_format=layout))


def train_conditional(
    training: TrainingSet,
    linear: LinearInverse,
    unseen: Tensor,
    *,
    shape: GeneratorShape,
    perceptual: Loss,
    contest: AdversarialOptions,
    rng: torch.Generator,
    halfway: Halfway = NOT_KEPT,
) -> ConditionalNetworks:
    """Train the conditional generator, and the predictor, on the device of `training`.

    `unseen` (n, 3, 16, 16) are the linear part's cross-validated predictions, to which the generator adds."""
    code = style_code(training, linear)
    styles, images = code(training.features), training.images
    held = held_out(training.groups, contest.validation if contest.check else 0.0, child(rng, "validation"))
    pool, held = (~held).nonzero().flatten(), held.nonzero().flatten()
    networks = conditional_networks(training, linear, shape=shape, contest=contest, rng=rng)
    generator = networks.generator
    judge = StyleDiscriminator(styles.shape[1], shape, rng=child(rng, "judge")).to(images.device)
    predictor = fit_predictor(
        networks.predictor, styles[pool], images[pool], contest=contest, rng=child(rng, "predictor")
    )
    compare = against(images, perceptual)

    def draw(rows: Tensor, z: Tensor) -> Tensor:
        return over_linear(generator, unseen[rows], torch.cat([styles[rows], z], dim=1))

    def beside(drawn: Tensor, rows: Tensor) -> Tensor:
        gap: Tensor = (predictor(drawn) - styles[rows]).square().mean()
        unlike: Tensor = compare(drawn, rows).mean()
        return contest.perceptual * unlike + contest.consistency * gap

    z = torch.randn(len(held), contest.latent, generator=child(rng, "validation", "z")).to(images.device)

    @torch.no_grad()
    def error(average: StyleGenerator) -> float:
        average.eval()
        parts = [
            compare(over_linear(average, unseen[rows], torch.cat([styles[rows], z[part]], dim=1)).float(), rows)
            for part, rows in zip(torch.arange(len(held)).split(64), held.split(64), strict=True)
        ]
        return float(torch.cat(parts).mean())

    average = train_adversarially(
        generator, judge, draw, beside, images=images, styles=styles, contest=contest, rng=rng, halfway=halfway,
        pool=pool, error=error if len(held) else None,
    )  # fmt: skip
    return ConditionalNetworks(average, predictor)


def conditional_inverter(
    networks: ConditionalNetworks,
    training: TrainingSet,
    linear: LinearInverse,
    *,
    contest: AdversarialOptions,
    rng: torch.Generator,
    ranking: Ranking | None = None,
) -> AdversarialInverter:
    """The inverter of networks that `train_conditional` trained with the same arguments."""
    return AdversarialInverter(
        linear=linear, code=style_code(training, linear), generator=networks.generator, predictor=networks.predictor,
        contest=contest, rng=child(rng, "latent"), ranking=ranking,
    )  # fmt: skip


def fit_baseline(
    images: Tensor, *, shape: GeneratorShape, contest: AdversarialOptions, rng: torch.Generator,
    halfway: Halfway = NOT_KEPT,
) -> BaselineGenerator:  # fmt: skip
    """Train the unconditional generator on real images (n, 3, S, S) in [0, 1], on their device."""
    generator = baseline_network(shape, images.device, contest=contest, rng=rng)
    judge = StyleDiscriminator(0, shape, rng=child(rng, "judge")).to(images.device)
    average = train_adversarially(
        generator, judge, lambda _, z: generator(z), None, images=images, styles=None, contest=contest, rng=rng,
        halfway=halfway,
    )  # fmt: skip
    return BaselineGenerator(generator=average, contest=contest)


def baseline_network(
    shape: GeneratorShape, device: torch.device, *, contest: AdversarialOptions, rng: torch.Generator
) -> StyleGenerator:
    """The generator as training begins with it."""
    generator = _generator(contest.latent, shape, device, child(rng, "weights"))
    return generator.to(memory_format=PRECISION[device.type].layout)


def fit_predictor(
    predictor: StylePredictor, styles: Tensor, images: Tensor, *, contest: AdversarialOptions, rng: torch.Generator
) -> StylePredictor:
    """Train t on randomly translated images (n, 3, S, S) and their codes (n, k), by squared error, in place; frozen
    afterwards."""
    optimizer = torch.optim.AdamW(predictor.parameters(), lr=1e-3, weight_decay=1e-2)
    child_rng = child(rng, "batches")
    for _ in tracked(range(contest.lessons), "style inversion: training a predictor of styles"):
        rows = torch.randint(len(images), (contest.batch,), generator=child_rng).to(images.device)
        loss = (predictor(translated(images[rows], child_rng)) - styles[rows]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return predictor.eval().requires_grad_(False)


def train_adversarially(
    generator: StyleGenerator,
    judge: StyleDiscriminator,
    draw: Callable[[Tensor, Tensor], Tensor],
    beside: Callable[[Tensor, Tensor], Tensor] | None,
    *,
    images: Tensor,
    styles: Tensor | None,
    contest: AdversarialOptions,
    rng: torch.Generator,
    halfway: Halfway = NOT_KEPT,
    pool: Tensor | None = None,
    error: Callable[[StyleGenerator], float] | None = None,
) -> StyleGenerator:
    """Train both by the hinge loss (Liu et al. 2021, section 3.3), in place, and return the generator's moving average.

    `draw(rows, z)` generates for training rows, `beside(drawn, rows)` is added to the generator's loss. Rows are drawn
    from `pool` (all of them by default). Where `error` says how far the moving average is from held-out images,
    training ends once it has settled."""
    device, child_rng = images.device, child(rng, "contest")
    precision = PRECISION[device.type]
    average = _generator(generator.center.numel(), generator.shape, device, child(rng, "average"))
    average.load_state_dict(generator.state_dict())
    for network in (generator, judge, average):
        network.to(memory_format=precision.layout)
    reconstruct_rows, judging = (
        torch.optim.Adam(network.parameters(), lr=contest.rate, betas=BETAS) for network in (generator, judge)
    )
    pool = torch.arange(len(images), device=device) if pool is None else pool
    lowest = [] if error is None else [error(average)]
    moment = Moment(
        networks={"generator": generator, "judge": judge, "average": average},
        optimizers={"drawing": reconstruct_rows, "judging": judging}, rng=child_rng, numbers=lowest,
    )  # fmt: skip
    for step in halfway.steps(contest.steps, "style inversion: adversarial training", moment):
        rows = pool[torch.randint(len(pool), (contest.batch,), generator=child_rng).to(device)]
        z = torch.randn(contest.batch, contest.latent, generator=child_rng).to(device)
        told = None if styles is None else styles[rows]
        with autocast(device, precision):
            drawn = draw(rows, z)
            loss = discriminator_loss(judge, images[rows], drawn.detach(), told, child_rng)
        _optimizer_step(judging, loss)
        with autocast(device, precision):
            loss = -judge(judge.trunk(cutout(translated(drawn, child_rng), child_rng)), told).float().mean()
        if beside is not None:
            loss = loss + beside(drawn.float(), rows)
        _optimizer_step(reconstruct_rows, loss)
        update_average(average, generator, min(contest.decay, (1 + step) / (10 + step)))
        if error is not None and (step + 1) % contest.check == 0:
            lowest.append(min(error(average), lowest[-1]))
            if settled(lowest, patience=contest.patience, share=contest.settled):
                break
    return average.eval()


def discriminator_loss(
    judge: StyleDiscriminator, real: Tensor, drawn: Tensor, styles: Tensor | None, rng: torch.Generator
) -> Tensor:
    """Hinge loss of both sides, plus the discriminator's error in reconstructing its real input images."""
    shown = cutout(translated(real, rng), rng)
    maps = judge.trunk(shown)
    hinge = functional.relu(1 - judge(maps, styles).float()).mean()
    hinge = hinge + functional.relu(1 + judge(judge.trunk(cutout(translated(drawn, rng), rng)), styles).float()).mean()
    return hinge + functional.mse_loss(judge.redrawn(maps).float(), functional.avg_pool2d(shown, 2))


def translated(pictures: Tensor, rng: torch.Generator) -> Tensor:
    """Translate each image by up to an eighth of its side, with zero padding. Differentiable."""
    n, _, height, width = pictures.shape
    reach = max(1, height // 8)
    by = torch.randint(2 * reach + 1, (2, n, 1), generator=rng).to(pictures.device)
    rows = torch.arange(height, device=pictures.device) + by[0]
    columns = torch.arange(width, device=pictures.device) + by[1]
    padded = functional.pad(pictures, (reach, reach, reach, reach)).permute(0, 2, 3, 1)
    picked = torch.arange(n, device=pictures.device)[:, None, None]
    return padded[picked, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cutout(pictures: Tensor, rng: torch.Generator) -> Tensor:
    """Set a random square of half the side to black in each image (it may extend beyond the border). Differentiable."""
    n, _, height, width = pictures.shape
    center = torch.rand(2, n, 1, generator=rng).to(pictures.device)
    above = (torch.arange(height, device=pictures.device) - center[0] * height).abs() <= height / 4
    beside = (torch.arange(width, device=pictures.device) - center[1] * width).abs() <= width / 4
    hidden = above[:, None, :, None] & beside[:, None, None, :]
    return pictures * ~hidden


def _generator(dimension: int, shape: GeneratorShape, device: torch.device, rng: torch.Generator) -> StyleGenerator:
    return StyleGenerator(dimension, shape, rng=rng).to(device)


def _optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=parameters)
    optimizer.step()
