"""Positive controls of style inversion: images that are nearly determined by their styles."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.image_styles import register_encoder, statistics
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import upload

THUMBNAIL_GAIN = 10.0
"""dB over every guess without the styles: at most a tenth of the squared error is left, for the image is determined."""
DOMAINS = ("planted", "elsewhere")
COLOR_GAIN = 3.0
"""dB: half of the squared error is gone."""


def planted_thumbnails(knowledge: Knowledge, rng: torch.Generator, *, prior: str = "intra") -> PositiveControl:
    """Images of 16 px whose "style" is their 8x8 thumbnail: 192 numbers that determine nearly all of the image.

    The public images are what the `prior` (intra, inter or third-party) is made of: auxiliary images of the victims'
    domain, those of another one, or images of the unseen domain."""
    public, asked = 100, 40
    field = torch.randn(public + asked, 3, 5, 5, generator=rng)
    pixels = (functional.interpolate(field, size=(16, 16), mode="bicubic").sigmoid() * 255).round().to(torch.uint8)
    nothing = torch.zeros(public + asked, dtype=torch.int64)
    domains = nothing.clone()
    domains[:public] = int(prior != "intra")
    images = DomainDataset(
        name="planted", store=pixels, rows=torch.arange(public + asked), labels=nothing, domains=domains,
        ids=tuple(f"planted/{number}" for number in range(public + asked)),
        class_names=("any",), domain_names=DOMAINS,
    )  # fmt: skip
    victims = images.subset(torch.arange(public, public + asked))
    order = torch.randperm(asked, generator=rng)
    mean, std = _thumbnail(victims).style(unbiased=True)
    case = Case(
        question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
        victim="client:0", domain="planted", slice={"domain": "planted"}, candidates=victims.subset(order),
    )  # fmt: skip
    truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
    known = images.subset(torch.arange(public))
    planted = replace(
        knowledge, statistics=_thumbnail, encoder=register_encoder(ThumbnailMaps()),
        auxiliary=None if prior == "third-party" else known, unseen=known if prior == "third-party" else None, own=None,
        domain_names=DOMAINS, class_names=("any",),
    )  # fmt: skip
    return PositiveControl(
        cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=THUMBNAIL_GAIN
    )


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
