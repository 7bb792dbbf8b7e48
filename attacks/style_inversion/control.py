"""Positive controls of style inversion: images that are nearly determined by their styles, and styles that tell the
class."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion.class_guided import CLASS_GUIDED
from fdgsec.attacks.style_inversion.recognition import LEAST_PER_CLASS, PICTURE, labeled_images
from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.effect_sizes import half_way
from fdgsec.metrics.measurement import Goal
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.image_styles import register_encoder, statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Attack, Case, PositiveControl, Truth, VariantControl
from fdgsec.threats.positive_control_data import upload

THUMBNAIL_GAIN = 10.0
"""dB over every guess without the styles: at most a tenth of the squared error is left, for the image is determined."""
CLOSER_GAIN = 3.0
"""dB for pictures that move only half way to the predicted colors, by which a quarter of the squared error is left at
best: half of it is gone."""
DOMAINS = ("planted", "elsewhere")
COLOR_GAIN = 3.0
"""dB: half of the squared error is gone."""
PUBLIC_PER_CLASS, ASKED_PER_CLASS = 12, 6
"""Images of each planted class, at most."""
LEAST_ASKED = 2
MOST_CLASSES = 7
CELLS = 4
"""Coarse colors of a style that tells the class: the means of 4x4 cells, 48 numbers."""
STEP = 2.0
"""By how much a number of such a style is higher for its class, in units of its noise. With 48 numbers for 7 classes,
two classes are 7 units apart: no classifier errs in one of a thousand."""
SHOWS_NO_CLASS = "its pictures did not show a class that was planted in the style"


def planted_thumbnails(
    knowledge: Knowledge, rng: torch.Generator, *, losses: Sequence[str], prior: str = "intra"
) -> PositiveControl:
    """Images of 16 px whose "style" is their 8x8 thumbnail: 192 numbers that determine nearly all of the image.

    Their classes, dark and bright, follow from the thumbnail as well. Of `losses`, `class-guided` must gain CLOSER_GAIN
    over every guess and any other one THUMBNAIL_GAIN.

    The public images are what the `prior` (intra, inter or third-party) is made of: auxiliary images of the victims'
    domain, those of another one, or images of the unseen domain."""
    public, asked = 100, 40
    field = torch.randn(public + asked, 3, 5, 5, generator=rng)
    pixels = (functional.interpolate(field, size=(16, 16), mode="bicubic").sigmoid() * 255).round().to(torch.uint8)
    brightness = pixels.float().mean((1, 2, 3))
    domains = torch.zeros(public + asked, dtype=torch.int64)
    domains[:public] = int(prior != "intra")
    images = DomainDataset(
        name="planted", store=pixels, rows=torch.arange(public + asked),
        labels=(brightness > brightness.median()).long(), domains=domains,
        ids=tuple(f"planted/{number}" for number in range(public + asked)),
        class_names=("dark", "bright"), domain_names=DOMAINS,
    )  # fmt: skip
    victims = images.subset(torch.arange(public, public + asked))
    order = torch.randperm(asked, generator=rng)
    mean, std = _thumbnail(victims).style(unbiased=True)
    case = Case(  # rows whose classes nobody recognizes: their control is planted_classes
        question="released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
        victim="client:0", domain="planted", slice={"domain": "planted"},
        candidates=replace(victims.subset(order), labels=0 * order),
    )  # fmt: skip
    truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
    known = images.subset(torch.arange(public))
    planted = replace(
        knowledge, statistics=_thumbnail, encoder=register_encoder(ThumbnailMaps()),
        auxiliary=None if prior == "third-party" else known, unseen=known if prior == "third-party" else None, own=None,
        domain_names=DOMAINS, class_names=("dark", "bright"),
    )  # fmt: skip
    guided = {"loss": CLASS_GUIDED}
    if {*losses} == {CLASS_GUIDED}:
        return PositiveControl(
            cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=CLOSER_GAIN
        )
    return PositiveControl(
        cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=THUMBNAIL_GAIN,
        without=guided,
        also=[Goal(measurement="psnr_gain", at_least=CLOSER_GAIN, where=guided)] if CLASS_GUIDED in losses else (),
    )  # fmt: skip


class ThumbnailMaps(StyleEncoder):
    """The synthetic statistics as an encoder: 96 maps of 64 cells, half of them one deviation above the mean, half
    below."""

    name, channels, stride, has_decoder = "planted thumbnails", 96, 2, False
    signs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signs", torch.tensor([1.0, -1.0]).repeat(32).view(8, 8))
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        mean, log_std = functional.adaptive_avg_pool2d(images, 8).flatten(1).chunk(2, dim=1)
        return mean[..., None, None] + log_std.exp()[..., None, None] * self.signs


def _thumbnail(dataset: DomainDataset) -> Moments:
    """Synthetic statistics: the first 96 numbers of the 8x8 thumbnail are means, the others log standard deviations."""
    numbers = downsample(dataset, (8, 8)).flatten(1).to(torch.float64)
    mean, log_std = numbers.chunk(2, dim=1)
    count = torch.full((len(numbers),), 64.0, dtype=torch.float64)
    return Moments(count=count, mean=mean, m2=(2 * log_std).exp() * 64)


def planted_classes(
    knowledge: Knowledge, rng: torch.Generator, *, attack: Attack, variants: Sequence[str], prior: str = "intra"
) -> VariantControl:
    """Real images whose "style" tells their class, for the classes that are recognized in pictures.

    A variant whose pictures never show a class says nothing about styles that hold it: what is missing in a picture may
    be missing in the style, or lost by the variant. Labeled images that the adversary has are divided into public ones
    and others that are asked about, equally many of each class. One half of a style are the image's coarse colors, the
    other half noisy numbers that are higher for its class. The goal is half way from chance to a perfect attack, from
    which on a report calls a leak strong: .57 for 7 classes. The public images are what the `prior` is made of."""
    known = labeled_images(knowledge)
    assert known is not None, "without labeled images there is no recognizer, and no such rows"
    counts = torch.bincount(known.labels, minlength=len(known.class_names))
    enough = (counts >= LEAST_PER_CLASS + LEAST_ASKED).nonzero().flatten()
    chosen = enough[counts[enough].argsort(descending=True, stable=True)][:MOST_CLASSES]
    goal = half_way("balanced_accuracy", 1 / max(2, len(chosen)))
    assert goal is not None
    control = VariantControl(
        goal=Goal(measurement="balanced_accuracy", at_least=goal, where={"class_from": PICTURE}), key="loss",
        variants=variants, measurements=frozenset({"balanced_accuracy", "accuracy"}), failed=SHOWS_NO_CLASS,
        attack=attack, knowledge=knowledge,
        lacking=f"no class could be planted: fewer than two have {LEAST_PER_CLASS + LEAST_ASKED} labeled images",
    )  # fmt: skip
    if len(chosen) < 2:
        return control
    least = int(counts[chosen].min())
    asked_each = min(ASKED_PER_CLASS, least - LEAST_PER_CLASS)
    each = asked_each + min(PUBLIC_PER_CLASS, least - asked_each)
    order = torch.randperm(len(known), generator=rng)
    rows = torch.stack([order[known.labels[order] == label][:each] for label in chosen])
    names = tuple(known.class_names[int(label)] for label in chosen)
    asked = _as_planted(known.subset(rows[:, :asked_each].flatten()), names, domain=0)
    public = _as_planted(known.subset(rows[:, asked_each:].flatten()), names, domain=int(prior != "intra"))
    tells = partial(_class_styles, classes=len(names))
    mean, std = tells(asked).style(unbiased=True)
    case = Case(
        question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
        victim="client:0", domain="planted", slice={"domain": "planted"},
    )  # fmt: skip
    planted = replace(
        knowledge, statistics=tells, auxiliary=None if prior == "third-party" else public,
        unseen=public if prior == "third-party" else None, own=None, domain_names=DOMAINS, class_names=names,
    )  # fmt: skip
    truth = Truth(images=asked.pixels(), labels=asked.labels, domains=asked.domains)
    return replace(control, cases=[case], truths=[truth], knowledge=planted, lacking="")


def _as_planted(images: DomainDataset, names: tuple[str, ...], *, domain: int) -> DomainDataset:
    """Images in the order of the classes `names`, equally many of each, under new labels and in one domain."""
    labels = torch.arange(len(names)).repeat_interleave(len(images) // len(names))
    return replace(
        images, labels=labels, domains=torch.full_like(labels, domain), class_names=names, domain_names=DOMAINS
    )


def _class_styles(dataset: DomainDataset, *, classes: int) -> Moments:
    """Synthetic statistics: means are coarse colors; of the log standard deviations, each class raises its share.

    Their noise follows from the image's id, so that a style is the same whenever it is asked for."""
    colors = downsample(dataset, (CELLS, CELLS)).flatten(1).to(torch.float64)
    raised = torch.arange(colors.shape[1]) % classes == dataset.labels[:, None]
    noise = torch.stack([
        torch.randn(colors.shape[1], generator=stream(0, "attack", "planted class", image)) for image in dataset.ids
    ])  # fmt: skip
    log_std = (STEP * raised + noise.double()) / 4 - 1
    count = torch.full((len(colors),), 64.0, dtype=torch.float64)
    return Moments(count=count, mean=colors, m2=(2 * log_std).exp() * 64)


def planted_colors(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Images of 32 px of one color each, with faint noise, which statistics without positions determine.

    They are encoded by the adversary's own encoder, so that the control covers the whole attack."""
    public, asked = 40, 10
    colors = 0.15 + 0.7 * torch.rand(public + asked, 3, 1, 1, generator=rng)
    grain = 0.015 * torch.rand(public + asked, 1, 1, 1, generator=rng)
    pixels = colors + grain * torch.randn(public + asked, 3, 32, 32, generator=rng)
    nothing = torch.zeros(public + asked, dtype=torch.int64)
    images = DomainDataset(
        name="planted", store=(pixels.clamp(0, 1) * 255).round().to(torch.uint8),
        rows=torch.arange(public + asked), labels=nothing, domains=nothing,
        ids=tuple(f"planted/{number}" for number in range(public + asked)),
        class_names=("any",), domain_names=("planted",),
    )  # fmt: skip
    victims = images.subset(torch.arange(public, public + asked))
    order = torch.randperm(asked, generator=rng)
    mean, std = statistics(knowledge.encoder, victims).style(unbiased=True)
    case = Case(
        question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
        victim="client:0", domain="planted", slice={"domain": "planted"}, candidates=victims.subset(order),
    )  # fmt: skip
    truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
    planted = replace(
        knowledge, statistics=lambda dataset: statistics(knowledge.encoder, dataset),
        auxiliary=images.subset(torch.arange(public)), unseen=None, own=None, domain_names=("planted",),
        class_names=("any",),
    )  # fmt: skip
    return PositiveControl(
        cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=COLOR_GAIN
    )
