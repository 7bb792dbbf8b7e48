"""CCST: federated domain generalization via cross-client style transfer.

Chen, Jiang, Dou & Chen, WACV 2023, https://arxiv.org/abs/2210.00912. AdaIN is eq. (2), the style extractor eq. (4), the
image generator G eq. (5), a single image's style eq. (6), a client's bank eq. (7), the overall style eq. (8), the
broadcast banks eqs. (9) and (10), local stylization Algorithm 1. Extends methods/fedavg.py, which trains afterwards.

Shares, once, before round 0: per client either one overall style (2C numbers) or J = ceil(n / 32) single-image styles;
the server sends all of them to every client, attributed to their owners. With `representation="amplitude"` (appendix E:
what FedDG exchanges, in this framework) a style is an amplitude spectrum, 3 x H x (W // 2 + 1) numbers, the overall one
the mean over images (its footnote 1).
Differs from the paper: sigma of one image (eq. 6) and of AdaIN's content divides by HW - 1 and holds eps = 1e-5 inside
its root, as in every released code, where the paper prints a plain standard deviation (eq. 8 divides by all pixels, eps
likewise); images are stylized at their own size unless `style_size` says otherwise, because the paper names none for
its training (appendix B times 256 px; the code's is 512 px); the encoder is `mini` unless it is named
(`encoder="vgg19"`, as the presets do). The paper has one client per domain. Where several clients hold one domain, N
counts clients: the bank says which client a style is of, not which domain, so that an image is restyled with styles of
its own domain, too, and stays as it is in 1 of N draws only. Each difference of the authors' code is an option, which
the preset `ccst-released` sets, but for one: the code compresses only images whose source is a JPEG, and `jpeg_quality`
all, since copies of a dataset differ in format."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Literal, Self

import torch
from PIL import Image
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleBank, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles
from fdgsec.federation.style_banks import artifact_in, stack_spectra, stack_styles
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.amplitude_spectra import amplitudes, exchange_amplitudes, window
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import encoder_named, pictures, resized, statistics, style_transfer
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

STYLIZED_AT_ONCE = 32
LARGEST_QUALITY = 100  # of JPEG
Bank = StyleBank | Amplitudes


@dataclass(frozen=True, kw_only=True)
class CCST(FedAvg):
    """CCST with its options; those of the style exchange default to the paper's, `ccst-paper` sets those of training.

    `style_size` is the side in pixels at which images are encoded and stylized (512 in the released code). `k` is the
    augmentation level: the number of client styles drawn for each image, of N (its own client's included).
    `styles_per_client` is J; None means ceil(n / 32), "all" one style per image. The released code divides single
    styles by HW (`single_unbiased=False`), draws one style per content batch (`style_per_batch`), stores stylized
    images as JPEG (`jpeg_quality`), and validates on stylized training images (`leaky_validation`). `low_frequency`
    and `amplitude_ratio` belong to amplitude styles: L of the exchanged window, and the share of an image's own
    amplitude that stays in it. Appendix E does not give them; these are the defaults of FedDG's exchange function."""

    style: Literal["overall", "single"] = "overall"
    k: int = 3
    encoder: str = "mini"
    style_size: int | None = None
    styles_per_client: int | Literal["all"] | None = None
    eps: float = 1e-5
    single_unbiased: bool = True
    overall_unbiased: bool = False
    style_per_batch: bool = False
    jpeg_quality: int | None = None
    leaky_validation: bool = False
    representation: Literal["adain", "amplitude"] = "adain"
    low_frequency: float = 0.1
    amplitude_ratio: float = 0.0

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Styles, once, before round 0."""
        return "once"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: one or J styles up (eqs. 7, 8), and the bank of all clients down (eqs. 9, 10)."""
        slot = "style" if self.style == "overall" else "styles"
        if self.representation == "amplitude":
            statistic = MeanSpectra() if self.style == "overall" else None
            styles = Release(stage="share", slot=slot, kind=Amplitudes, statistic=statistic)
            return (*super().releases, styles, Release(stage="combine", slot="bank", kind=Amplitudes))
        kind = StyleStatistics if self.style == "overall" else ImageStyles
        styles = Release(stage="share", slot=slot, kind=kind, statistic=PooledStyles())
        return (*super().releases, styles, Release(stage="combine", slot="bank", kind=StyleBank))

    @property
    def trains_through_trainer(self) -> bool:
        """True: only other clients' styles change an image, and its K versions count as one record."""
        return type(self) is CCST and (self.local is None or self.local.trains_through_trainer)

    @property
    def server_needs(self) -> ServerNeeds:
        """Individual uploads for single styles; for overall styles FedAvg's sums, which give the style of all images.

        Without names a client does not know which style is its own, and stylizes with it as with any other."""
        if self.style == "single":
            return ServerNeeds(uploads="unnamed", because="the bank is made of styles of single images")
        return super().server_needs

    def check(self, clients: int) -> None:
        """Raise UsageError where K is not in 1..N, and for another option that lies outside its range."""
        super().check(clients)
        for name, given in (("styles_per_client", self.styles_per_client), ("style_size", self.style_size)):
            if isinstance(given, int) and given < 1:
                raise UsageError(f"ccst needs {name} of at least 1; got {given}.")
        if self.jpeg_quality is not None and not 1 <= self.jpeg_quality <= LARGEST_QUALITY:
            raise UsageError(f"ccst needs a jpeg_quality of 1 to {LARGEST_QUALITY}; got {self.jpeg_quality}.")
        for name, share in (("low_frequency", self.low_frequency), ("amplitude_ratio", self.amplitude_ratio)):
            if not 0 <= share <= 1:
                raise UsageError(f"ccst needs {name} of 0 to 1; got {share}.")
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise UsageError(f"ccst needs a finite eps of at least 0; got {self.eps}.")
        if not 1 <= self.k <= clients:
            raise UsageError(
                f"ccst draws k = {self.k} of the {clients} clients' styles without replacement; k must lie in "
                f"1..{clients} (--set method.k={min(max(self.k, 1), clients)})."
            )

    def fitting(self, clients: int) -> Self:
        """The same options with k at most N."""
        return replace(self, k=max(1, min(self.k, clients)))

    def releasing_all(self) -> Self | None:
        """J = n for single styles; None for the overall style."""
        return replace(self, styles_per_client="all") if self.style == "single" else None

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Section 3.2.1: the overall style (eq. 8), or J single styles (eqs. 6, 7).

        Raises UsageError for a client without images."""
        if not len(client.data):
            raise UsageError(
                f"{client.name} has no images; a style needs at least one. Use fewer clients or more data."
            )
        if self.style == "overall":
            return {"style": self._overall(client)}, state
        rows = torch.randperm(len(client.data), generator=rng)[: self._styles_of(len(client.data))]
        return {"styles": self._single(client, rows)}, {**state, SHARED_ROWS: rows}

    def _overall(self, client: Client) -> Artifact:
        if self.representation == "amplitude":
            total = torch.zeros(())
            for part in self._spectra(client.data):
                total = total + part.sum(0, keepdim=True)
            return Amplitudes(values=(total / len(client.data)).float(), owner=torch.tensor([client.number]))
        mean, std = self._statistics(client.data).pooled().style(unbiased=self.overall_unbiased, eps=self.eps)
        return StyleStatistics(mean=mean[0].float(), std=std[0].float())

    def _single(self, client: Client, rows: Tensor) -> Artifact:
        if self.representation == "amplitude":
            values = torch.cat([part.float() for part in self._spectra(client.data.subset(rows))])
            return Amplitudes(values=values, owner=torch.full((len(rows),), client.number))
        mean, std = self._statistics(client.data.subset(rows)).style(unbiased=self.single_unbiased, eps=self.eps)
        return ImageStyles(mean=mean.float(), std=std.float())

    def _spectra(self, data: DomainDataset) -> Iterator[Tensor]:
        """The images' amplitude spectra in float64, a chunk at a time."""
        for rows in torch.arange(len(data)).split(STYLIZED_AT_ONCE):
            yield amplitudes(as_float(resized(data.pixels(rows), self.style_size)).double())

    def _statistics(self, data: DomainDataset) -> Moments:
        return statistics(self.encoder, data, size=self.style_size)

    def _styles_of(self, images: int) -> int:
        if self.styles_per_client == "all":
            return images
        return min(images, -(-images // 32) if self.styles_per_client is None else self.styles_per_client)

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Section 3.2.2: concatenate all styles (eqs. 9, 10) and send the bank to every client."""
        bank = self._bank(shared)
        return {name: {"bank": bank} for name in shared}, server

    def _bank(self, shared: Mapping[str, Inbox]) -> Bank:
        slot = "style" if self.style == "overall" else "styles"
        if self.representation == "amplitude":
            return stack_spectra(shared, slot)
        return stack_styles(shared, slot, StyleStatistics if self.style == "overall" else ImageStyles)

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        """Algorithm 1, computed once and stored: every image K times, in its own style or in another client's."""
        if "stylized_images" not in state:
            kind: type[Bank] = Amplitudes if self.representation == "amplitude" else StyleBank
            made = self.stylized(client, artifact_in(inbox, "bank", kind, of=client.name), rng)
            state = {**state, "stylized_images": made.images, "stylized_labels": made.labels}
            if self.leaky_validation:
                state = _with_leaky_split(state, rng, k=self.k)
        images, labels = state["stylized_images"], state["stylized_labels"]
        # D has K entries per image, in order
        owners = state.get("stylized_owners", torch.arange(len(labels)) // self.k)
        return TrainingSet(images=images, labels=labels, owners=owners), state

    def stylized(self, client: Client, bank: Bank, rng: torch.Generator) -> TrainingSet:
        """Algorithm 1: D has K entries per image, image by image; its own style keeps the original (lines 5, 6)."""
        owners = torch.unique(bank.owner)
        count = len(client.data)
        turns = torch.arange(self.k) % len(owners)  # 0..K-1; all 0 if the server sent one global style
        draws = torch.stack([owners[torch.randperm(len(owners), generator=rng)[turns]] for _ in range(count)])
        styles = self._style_rows(bank, draws, rng)
        images = client.data.pixels().repeat_interleave(self.k, dim=0)
        foreign = (draws.flatten() != client.number).nonzero().flatten()
        for chunk in foreign.split(STYLIZED_AT_ONCE) if len(foreign) else ():
            images[chunk] = self._restyled(images[chunk], bank, styles[chunk])
        return TrainingSet(images=images, labels=client.data.labels.repeat_interleave(self.k))

    def _restyled(self, pixels: Tensor, bank: Bank, rows: Tensor) -> Tensor:
        if isinstance(bank, Amplitudes):
            return self.exchange(pixels, bank.values[rows])
        return self.generate(pixels, bank.mean[rows], bank.std[rows])

    def _style_rows(self, bank: Bank, draws: Tensor, rng: torch.Generator) -> Tensor:
        """Choose a row of the bank for each drawn client (line 8), or one per content batch (`style_per_batch`)."""
        chosen = torch.empty(draws.numel(), dtype=torch.int64)
        flat = draws.flatten()
        for owner in torch.unique(flat):
            rows = (bank.owner == owner).nonzero().flatten()
            picks = rows[torch.randint(0, len(rows), (draws.numel(),), generator=rng)]
            if self.style_per_batch:  # one style for all contents of a batch of 32
                picks = picks[(torch.arange(draws.numel()) // (STYLIZED_AT_ONCE * self.k)) * STYLIZED_AT_ONCE * self.k]
            chosen[flat == owner] = picks[flat == owner]
        return chosen

    @torch.inference_mode()
    def generate(self, pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """G of eq. (5): encode, AdaIN to the style, decode; uint8 (n, 3, H, W) in and out."""
        content = as_float(resized(pixels, self.style_size))
        made = style_transfer(
            encoder_named(self.encoder), content, mean, std, eps=self.eps, precision=self.plan.precision
        )
        return self._stored(made, pixels)

    def exchange(self, pixels: Tensor, others: Tensor) -> Tensor:
        """Appendix E: the amplitudes `others` in place of the images' own at low frequencies; uint8 in and out."""
        content = as_float(resized(pixels, self.style_size))
        b = window(self.low_frequency, (content.shape[2], content.shape[3]))
        return self._stored(exchange_amplitudes(content, others, b=b, ratio=self.amplitude_ratio), pixels)

    def _stored(self, images: Tensor, pixels: Tensor) -> Tensor:
        """Round to 8 bits, resize to the originals `pixels`, and compress by JPEG if `jpeg_quality` is set."""
        made = pictures(images, size=None if self.style_size is None else pixels.shape[2])
        return made if self.jpeg_quality is None else torch.stack([_through_jpeg(i, self.jpeg_quality) for i in made])

    def validation_set(self, client: Client, state: State) -> TrainingSet | None:
        """Originals split off before augmentation, or (released code) a tenth of the stylized images."""
        if not self.leaky_validation or "leaky_images" not in state:
            return super().validation_set(client, state)
        return TrainingSet(images=state["leaky_images"], labels=state["leaky_labels"])


def _with_leaky_split(state: State, rng: torch.Generator, *, k: int) -> State:
    order = torch.randperm(len(state["stylized_labels"]), generator=rng)
    cut = len(order) // 10
    held, kept = order[:cut], order[cut:]
    images, labels = state["stylized_images"], state["stylized_labels"]
    split = {"stylized_images": images[kept], "stylized_labels": labels[kept], "stylized_owners": kept // k}
    return {**state, **split, "leaky_images": images[held], "leaky_labels": labels[held]}


def _through_jpeg(image: Tensor, quality: int) -> Tensor:
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image  # as slow to import as torch

    buffer = BytesIO()
    to_pil_image(image).save(buffer, format="JPEG", quality=quality)
    decoded: Tensor = pil_to_tensor(Image.open(buffer))
    return decoded
