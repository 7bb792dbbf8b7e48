"""Inverter cache: trains each inverter of an attack once, since one domain's intra prior is another's inter prior."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.class_guided import CLASS_GUIDED, ClassGuidedInverter, class_guided
from fdgsec.attacks.style_inversion.inverter import (
    Inverter,
    Loss,
    Schedule,
    TrainedInverter,
    fit_generator,
    initial_generator,
)
from fdgsec.attacks.style_inversion.inverter_gan import (
    AdversarialOptions,
    BaselineGenerator,
    baseline_network,
    conditional_inverter,
    conditional_networks,
    fit_baseline,
    train_conditional,
)
from fdgsec.attacks.style_inversion.kept_networks import kept_network
from fdgsec.attacks.style_inversion.recognition import Recognizer, recognizer_of
from fdgsec.attacks.style_inversion.retrieval import RetrievalInverter, RetrievalOptions, retrieval_of
from fdgsec.attacks.style_inversion.style_residuals import residuals_of
from fdgsec.attacks.style_inversion.training_images import Prior, drawn_side, encode_prior, mirrored, prior_images
from fdgsec.data.domains import downsample
from fdgsec.metrics.image_similarity import LPIPS_LEAST_SIDE, LpipsDistance, PerceptualEncoder, mse
from fdgsec.nn.networks.style_generator import GeneratorShape, adversarial_shape, full_shape, small_shape
from fdgsec.nn.styles.encoders import SMALLEST_SIDE, load_encoder
from fdgsec.nn.styles.image_styles import encoder_named, reentrant
from fdgsec.nn.training.precision import precision_of
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.threads import side_by_side
from fdgsec.threats.adversary import Knowledge

LPIPS_TO_MSE = 10.0  # "mse+lpips": at the start of training the two terms are then about equal
MOST_AT_ONCE = 4
"""Trainings, or optimizations, that run side by side on a processor, at most."""
GAN = "gan"
RETRIEVED = "retrieved"
LOSSES = ("mse", "perceptual_mini", "lpips", "mse+lpips", GAN, RETRIEVED, CLASS_GUIDED)
WITHOUT_GENERATOR = frozenset({RETRIEVED, CLASS_GUIDED})
"""Variants that begin at public images, and train no generator by a loss."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Budget: schedules of the first loss, of each further one and of an adversarial one, and the work of a retrieval;
    the images of a prior."""

    first: Schedule
    further: Schedule
    contest: AdversarialOptions
    retrieval: RetrievalOptions
    crops: int
    images: int


@dataclass(frozen=True, kw_only=True, eq=False)
class InverterCache:
    """Trained inverters of one adversary; networks and training sets are on `device`, reconstructions on the CPU.

    `losses` are in the order of training: every regression after the first starts from the weights of the first. With
    `keeps`, trained networks are read from fdgsec's cache and kept there: where all code that trains is fdgsec's."""

    knowledge: Knowledge
    effort: Effort
    losses: tuple[str, ...]
    size: int
    published_widths: bool
    device: torch.device
    rng: torch.Generator
    keeps: bool = False
    priors: dict[str, Prior] = field(default_factory=dict)
    measures: dict[tuple[str, int], Loss | str] = field(default_factory=dict)
    inverters: dict[tuple[str, str], TrainedInverter] = field(default_factory=dict)
    retrievals: dict[str, RetrievalInverter] = field(default_factory=dict)
    guided: dict[str, ClassGuidedInverter | None] = field(default_factory=dict)
    baselines: dict[str, BaselineGenerator] = field(default_factory=dict)
    recognizers: dict[int, Recognizer | str] = field(default_factory=dict)

    def prior(self, kind: str, domain: str | None, *, single: bool, images: int = 0) -> Prior | None:
        """The encoded training set of `kind` for a victim of `domain`, or None where the data are missing.

        It has the first `images` of a random order, 0: all. For rows of `single` images under a defense, its noise is
        added to the training rows."""
        found = prior_images(kind, domain, self.knowledge)
        if isinstance(found, str) or len(found[1]) < images:
            return None
        name, known = found
        if images:
            order = torch.randperm(len(known), generator=child(self.rng, "order", name))
            name, known = f"{name}, {images} images", known.subset(order[:images])
        variants = child(self.rng, "variants", name)
        behind = self.knowledge if single and self.knowledge.defended is not None else None
        name = name if behind is None else f"{name}, noisy"
        if name not in self.priors:
            self.priors[name] = encode_prior(
                name, known, self.knowledge.statistics, size=self.size, crops=self.effort.crops,
                limit=max(self.effort.images, images), rng=variants, behind=behind,
            )  # fmt: skip
        return self.priors[name]

    def train(self, priors: Sequence[Prior]) -> None:
        """Train every inverter of these priors, of several priors side by side; `inverter` gives them at once then."""
        different = list({prior.name: prior for prior in priors}.values())
        for prior in different:  # what they share is made before threads need it
            for loss in self.losses:
                self._measure(prior, loss)
            if CLASS_GUIDED in self.losses:  # fitted classes are kept by the process, and set its number of threads
                self.inverter(prior, CLASS_GUIDED)
        most = MOST_AT_ONCE if self.device.type == "cpu" and self._reentrant() else 1
        steps = tracked(different, "style inversion: priors")
        for _ in zip(steps, side_by_side(self._trained, different, most=most), strict=True):
            pass

    def _reentrant(self) -> bool:
        """Whether several threads may train at once: no loss asks the public encoder, or that is made for it."""
        if not {GAN, RETRIEVED} & set(self.losses):
            return True
        try:
            return reentrant(encoder_named(self.knowledge.encoder))
        except (UsageError, WeightsUnavailableError):
            return False  # statistics of one's own

    def _trained(self, prior: Prior) -> None:
        for loss in self.losses:  # in this order: regressions start from the first one's weights
            self.inverter(prior, loss)

    def _measure(self, prior: Prior, loss: str) -> Loss | str:
        """The loss for pictures of the prior's size, or why it is unavailable."""
        size = int(prior.training.images.shape[-1])
        if loss not in WITHOUT_GENERATOR and (loss, size) not in self.measures:
            self.measures[loss, size] = loss_named(loss, size, device=self.device)
        return self.measures.get((loss, size), "")

    def inverter(self, prior: Prior, loss: str) -> TrainedInverter | None:
        """The inverter of one prior and loss, trained on first use, or None where there is none."""
        if loss == RETRIEVED:
            return self._retrieval(prior)
        if loss == CLASS_GUIDED:
            if prior.name not in self.guided:
                self.guided[prior.name] = class_guided(prior)
            return self.guided[prior.name]
        measure = self._measure(prior, loss)
        if isinstance(measure, str):
            return None
        if (prior.name, loss) not in self.inverters:
            train = self._adversarial if loss == GAN else self._regression
            self.inverters[prior.name, loss] = train(prior, loss, measure, child(self.rng, "train", prior.name, loss))
        return self.inverters[prior.name, loss]

    def _retrieval(self, prior: Prior) -> RetrievalInverter | None:
        """The inverter that begins at public images; None for colorized line drawings, which are no such images."""
        if prior.painted:
            return None
        if prior.name not in self.retrievals:
            self.retrievals[prior.name] = retrieval_of(
                prior, residuals_of(prior, self.knowledge), self.knowledge, self.effort.retrieval
            )
        return self.retrievals[prior.name]

    def recognizer(self, side: int) -> Recognizer | str:
        """The recognizer of classes in pictures of `side` px, trained on first use, or why there is none."""
        if side not in self.recognizers:
            self.recognizers[side] = recognizer_of(self.knowledge, side)
        return self.recognizers[side]

    def _regression(self, prior: Prior, name: str, loss: Loss, rng: torch.Generator) -> TrainedInverter:
        trained = (self.inverters.get((prior.name, name)) for name in self.losses)
        first = next((inverter for inverter in trained if isinstance(inverter, Inverter)), None)
        shape, start = self._shape(int(prior.training.images.shape[-1])), None if first is None else first.generator
        schedule = self.effort.first if first is None else self.effort.further
        training, linear = prior.training.on(self.device), prior.linear.on(self.device)
        generator = kept_network(
            lambda halfway: fit_generator(
                training, linear, prior.unseen.to(self.device), shape=shape, loss=loss, schedule=schedule, rng=rng,
                start=start, halfway=halfway,
            ).generator,
            lambda: initial_generator(linear, shape, rng=rng),
            device=self.device, keeps=self.keeps, **_content(prior), loss=_described(name), shape=shape,
            schedule=schedule, rng=rng, start=start,
        )  # fmt: skip
        return Inverter(linear=linear, generator=generator)

    def _adversarial(self, prior: Prior, name: str, loss: Loss, rng: torch.Generator) -> TrainedInverter:
        shape, contest = self._shape(int(prior.training.images.shape[-1]), adversarial=True), self.effort.contest
        training, linear = prior.training.on(self.device), prior.linear.on(self.device)
        networks = kept_network(
            lambda halfway: train_conditional(
                training, linear, prior.unseen.to(self.device), shape=shape, perceptual=loss, contest=contest, rng=rng,
                halfway=halfway,
            ),
            lambda: conditional_networks(training, linear, shape=shape, contest=contest, rng=rng),
            device=self.device, keeps=self.keeps, **_content(prior), loss=_described(name), shape=shape,
            contest=contest, rng=rng,
        )  # fmt: skip
        return conditional_inverter(
            networks, training, linear, contest=contest, rng=rng,
            ranking=residuals_of(prior, self.knowledge).of_reconstructions,
        )  # fmt: skip

    def baseline(self, domain: str | None) -> BaselineGenerator | None:
        """An unconditional generator of real images of `domain` (FISC's baseline), or None where there are none."""
        found = prior_images("intra", domain, self.knowledge)
        if isinstance(found, str):
            return None
        name, images = found
        if name not in self.baselines:
            side, contest, rng = drawn_side(images, self.size), self.effort.contest, child(self.rng, "baseline", name)
            shape = self._shape(side, adversarial=True)
            pictures = torch.cat([downsample(part, (side, side)) for part in (images, mirrored(images))])
            generator = kept_network(
                lambda halfway: fit_baseline(
                    pictures.to(self.device), shape=shape, contest=contest, rng=rng, halfway=halfway
                ).generator,
                lambda: baseline_network(shape, self.device, contest=contest, rng=rng),
                device=self.device, keeps=self.keeps, loss="baseline", pictures=pictures, shape=shape,
                contest=contest, rng=rng,
            )  # fmt: skip
            self.baselines[name] = BaselineGenerator(generator=generator, contest=contest)
        return self.baselines[name]

    def _shape(self, size: int, *, adversarial: bool = False) -> GeneratorShape:
        if self.published_widths:
            return full_shape(size)
        return adversarial_shape(size) if adversarial else small_shape(size)


def _content(prior: Prior) -> dict[str, Tensor]:
    """What of a prior decides how a network is trained on it."""
    training, linear = prior.training, prior.linear
    return {
        "features": training.features, "images": training.images, "groups": training.groups, "unseen": prior.unseen,
        "center": linear.center, "spread": linear.spread, "average": linear.average, "weight": linear.weight,
    }  # fmt: skip


def _described(loss: str) -> str:
    """A loss by its name, and the weights of the bundled encoder that it asks; others are published ones."""
    return f"{loss} {load_encoder('mini').fingerprint}" if loss in ("perceptual_mini", GAN) else loss


def loss_named(name: str, size: int, *, device: torch.device) -> Loss | str:
    """The loss called `name`, for images of `size` px on `device`, or why it is unavailable.

    For `gan` this is the perceptual part of its loss."""
    if name == "mse":
        return mse
    if name in ("perceptual_mini", GAN):
        if size < SMALLEST_SIDE:
            return f"mini needs images of at least {SMALLEST_SIDE} px; these are drawn at {size} px"
        return PerceptualEncoder(load_encoder("mini", device=device), precision=precision_of(device, "mini"))
    if size < LPIPS_LEAST_SIDE:
        return f"LPIPS needs images of at least {LPIPS_LEAST_SIDE} px; these are drawn at {size} px"
    try:
        lpips = LpipsDistance("vgg")
    except WeightsUnavailableError as error:
        return str(error)
    return lpips if name == "lpips" else lambda drawn, true: LPIPS_TO_MSE * mse(drawn, true) + lpips(drawn, true)
