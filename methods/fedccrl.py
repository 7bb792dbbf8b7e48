"""FedCCRL: federated domain generalization with cross-client representation learning.

Wang, Guo & Tang, 2024, https://arxiv.org/abs/2410.11267. Every image of a batch is used three times: unchanged, and in
two views that take on the color statistics of other clients' images (MixStyle) and are then perturbed (AugMix);
supervised contrast aligns the features and a Jensen-Shannon divergence the predictions. FedAlign extends it, and its
paper gives the same parts: eqs. (7) and (8) the statistics, (9) and (10) the pool, (3) the views, (17) to (20)
supervised contrast, (23) Jensen-Shannon; equation numbers here are FedAlign's. Extends methods/fedavg.py.

Shares, every round: per client the mean and std of the three channels of floor(r n_i) of its images, new ones each
round, six float32 per image and no labels; the server sends every participant all rows except its own, with their
owners. They are statistics of the network's input: un-augmented images in RGB normalized by ImageNet's mean and std.
Differs from the paper: sigma divides by HW - 1 and holds 1e-6 inside its root, as the authors' code has it where eq.
(8) is plain; the loss is that code's, the sum of three cross-entropies and a tenth of each alignment term
(`classification="mean"` divides the first by three); the anchor is not its own positive (eq. 17; `include_self` is the
code); mixed images are clamped to [0, 1] before AugMix and rounded to 8 bits, where the code truncates and lets values
outside wrap around (`overflow="wrapped"`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ImageStyles, StyleBank
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.federation.style_banks import artifact_in, stack_styles
from fdgsec.federation.wire import number_of
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import IMAGENET_MEAN, IMAGENET_STD, Classifier
from fdgsec.nn.styles.channel_statistics import Moments, concatenated, moments
from fdgsec.nn.styles.feature_styles import apply_style, instance_statistics
from fdgsec.nn.training.augmix import AugMix, dirichlet
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.nn.training.losses import jensen_shannon, supervised_contrastive
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import SecretStream

EPS = 1e-6
"""Added to the variance inside the root of every sigma."""
AT_ONCE = 64  # images whose moments are taken in float64 at a time


@lru_cache(maxsize=8)
def _constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The mean and std of ImageNet, (3, 1, 1) both, rounded to float32 first."""
    with torch.inference_mode(False):  # or no later step could differentiate through them
        mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        return mean.to(device, dtype).view(3, 1, 1), std.to(device, dtype).view(3, 1, 1)


def normalized(images: Tensor) -> Tensor:
    """Normalize images in [0, 1] as the network does; all statistics are taken in that space."""
    mean, std = _constants(images.device, images.dtype)
    return (images - mean) / std


def denormalized(inputs: Tensor) -> Tensor:
    """The inverse of `normalized`; mixed images may leave [0, 1]."""
    mean, std = _constants(inputs.device, inputs.dtype)
    return inputs * std + mean


def eight_bits(images: Tensor, *, wrapped: bool = False) -> Tensor:
    """Convert images in [0, 1] to uint8; others are clamped, or truncated modulo 256 (`wrapped`, the released code)."""
    if wrapped:
        return (images * 255).trunc().to(torch.int64).remainder(256).to(torch.uint8)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def color_moments(data: DomainDataset, rows: Tensor) -> Moments:
    """The moments of the three normalized channels of the images at `rows`, one float64 row each (eqs. 7, 8)."""
    if not len(rows):
        return Moments(count=torch.zeros(0), mean=torch.zeros(0, 3), m2=torch.zeros(0, 3))
    found = concatenated([moments(as_float(data.pixels(part))) for part in rows.split(AT_ONCE)])
    mean, std = (constants.flatten() for constants in _constants(found.mean.device, found.mean.dtype))
    return Moments(count=found.count, mean=(found.mean - mean) / std, m2=found.m2 / std.square())


def color_statistics(data: DomainDataset, rows: Tensor) -> ImageStyles:
    """The mean and std of the channels of the images at `rows`, float32, as they are sent."""
    mean, std = color_moments(data, rows).style(unbiased=True, eps=EPS)
    return ImageStyles(mean=mean.float(), std=std.float())


Statistics = tuple[Tensor, Tensor]  # mean and std, each (B, C, 1, 1)


def interpolate_statistics(inputs: Tensor, own: Statistics, other: Statistics, lam: Tensor) -> Tensor:
    """Change the statistics of `inputs` (B, C, H, W) from `own` to lam own + (1 - lam) other, lam (B,).

    Algorithm 2, lines 11 and 19 to 21; MixStyle's mixing."""
    share = lam.view(-1, 1, 1, 1)
    new_mean, new_std = (torch.lerp(theirs, ours, share) for ours, theirs in zip(own, other, strict=True))
    return apply_style(inputs, *own, new_mean=new_mean, new_std=new_std)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """The statistics that a client draws from, rows of `mean` and `std` (R, 3)."""

    mean: Tensor
    std: Tensor

    def rows(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw `count` rows, without replacement if there are that many."""
        if count <= len(self.mean):
            return torch.randperm(len(self.mean), generator=rng)[:count]
        return torch.randint(len(self.mean), (count,), generator=rng)


@dataclass(frozen=True, kw_only=True)
class FedCCRL(FedAvg):
    """FedCCRL with its options.

    `upload_ratio` is r, `alpha` shapes MixStyle's lambda ~ Beta(alpha, alpha), `contrast` and `agreement` weigh the two
    alignment terms (lambda1, lambda2), and 0 disables them; `mixing` and `perturbing` switch MixStyle and AugMix. The
    second view is made of the image or, with `views="sequential"`, of the first view (FedAlign's code). `ignore_pool`
    mixes with the batch's own images instead of the pool (FedAlign's code); the shared statistics are then unused."""

    upload_ratio: float = 0.1
    alpha: float = 0.1
    temperature: float = 0.1
    contrast: float = 0.1
    agreement: float = 0.1
    classification: Literal["sum", "mean"] = "sum"
    include_self: bool = False
    views: Literal["independent", "sequential"] = "independent"
    overflow: Literal["clamped", "wrapped"] = "clamped"
    ignore_pool: bool = False
    mixing: bool = True
    perturbing: bool = True
    augmix: AugMix = field(default_factory=AugMix)

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Every round: statistics of newly drawn images."""
        return "every"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: color statistics of single images up, the other clients' pool down (eqs. 9, 10)."""
        rows = Release(stage="share", slot="statistics", kind=ImageStyles, statistic=PooledStyles(), encoder="pixels")
        return (*super().releases, rows, Release(stage="combine", slot="pool", kind=StyleBank))

    @property
    def server_needs(self) -> ServerNeeds:
        """The sender of each row."""
        return ServerNeeds(uploads="named", because="each client receives the pool without its own rows")

    @property
    def couples_records(self) -> bool:
        """True with contrast between records, or with mixing inside the batch (`ignore_pool`)."""
        return self.contrast > 0 or (self.mixing and self.ignore_pool)

    def check(self, clients: int) -> None:
        """Raise UsageError for options out of range."""
        super().check(clients)
        if not 0 < self.upload_ratio <= 1:
            raise UsageError(
                f"upload_ratio must lie in (0, 1]; got {self.upload_ratio} (--set method.upload_ratio=0.1)."
            )
        if min(self.alpha, self.temperature) <= 0 or min(self.contrast, self.agreement) < 0:
            raise UsageError(
                "alpha and temperature must be above 0, contrast and agreement at least 0; got "
                f"{self.alpha}, {self.temperature}, {self.contrast} and {self.agreement}."
            )
        if self.local is not None:
            raise UsageError(f"{type(self).__name__.lower()} has a local objective of its own; leave `local` out.")

    def releasing_all(self) -> Self | None:
        """The same method with r = 1: the statistics of every image."""
        return replace(self, upload_ratio=1.0)

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Eq. (9): the statistics of floor(r n_i) random images, in random order; the model is not used."""
        count = math.floor(self.upload_ratio * len(client.data) + 1e-9)  # .29 of 100 images are 29, not 28
        rows = torch.randperm(len(client.data), generator=rng)[:count]
        return {"statistics": color_statistics(client.data, rows)}, {**state, SHARED_ROWS: rows}

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Eq. (10) and below: join all rows into the pool, and send each client the pool without its own rows."""
        pool = stack_styles(shared, "statistics", ImageStyles)
        return {name: {"pool": pool.without_rows_of(number_of(name))} for name in shared}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The losses of three views, which draw from a separate stream so that batches are those of FedAvg."""
        return CrossClientAlignment(
            method=self, pool=self.received_pool(client, inbox, state, child(rng, "pool")), rng=child(rng, "views")
        )

    def received_pool(self, client: Client, inbox: Inbox, state: State, rng: torch.Generator) -> Pool | None:
        """The pool that the client draws from, or None if it uses none.

        Raises UsageError where it is empty, ArtifactError where its rows are not statistics of three channels."""
        if self.ignore_pool or not self.mixing:
            return None
        bank = artifact_in(inbox, "pool", StyleBank, of=client.name)
        if bank.mean.shape[1] != 3:
            raise ArtifactError(f"the pool of {client.name} must have rows of 3 channels; got {bank.mean.shape[1]}.")
        bank = self.completed(bank, client, state)
        if not len(bank.mean):
            raise UsageError(
                f"{client.name} received an empty pool; two participants or more need at least "
                f"{math.ceil(1 / self.upload_ratio)} images each, or a larger upload_ratio (or mixing=false)."
            )
        return self.build_pool(bank, rng)

    def completed(self, bank: StyleBank, client: Client, state: State) -> StyleBank:
        """The received rows, with what the client adds to them: nothing."""
        return bank

    def build_pool(self, bank: StyleBank, rng: torch.Generator) -> Pool:
        """The pool of these rows."""
        return Pool(mean=bank.mean, std=bank.std)

    @torch.no_grad()
    def augmented_view(self, images: Tensor, pool: Pool | None, rng: torch.Generator) -> Tensor:
        """M of eq. (3): images (B, 3, H, W) in [0, 1], mixed, then augmented by AugMix; layout and device stay."""
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        view = images
        if self.mixing:
            view = denormalized(self.mix_statistics(normalized(view), pool, rng))
        if self.perturbing:
            pixels = eight_bits(view, wrapped=self.overflow == "wrapped").contiguous()
            view = as_float(self.augmix(pixels, rng, scale=self.augmix_scale(pixels)))
        return view.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    def mix_statistics(self, inputs: Tensor, pool: Pool | None, rng: torch.Generator) -> Tensor:
        """Mix the statistics of normalized `inputs` with statistics drawn from the pool (Algorithm 2, 10 to 21).

        Without a pool they are drawn from the batch: a random permutation of its own statistics."""
        mean, std = instance_statistics(inputs, eps=EPS)
        if pool is None:
            order = to_device(torch.randperm(len(inputs), generator=rng), inputs.device)
            other_mean, other_std = mean[order], std[order]
        else:
            rows = pool.rows(len(inputs), rng)
            drawn = to_device(torch.cat([pool.mean[rows], pool.std[rows]], 1).to(mean.dtype), mean.device)
            other_mean, other_std = drawn[..., None, None].chunk(2, 1)
        return interpolate_statistics(
            inputs, (mean, std), (other_mean, other_std), self.ratio(inputs, mean, std, rng).to(mean)
        )

    def ratio(self, inputs: Tensor, mean: Tensor, std: Tensor, rng: torch.Generator) -> Tensor:
        """Draw the share of its own statistics that each input keeps, (B,): lambda ~ Beta(alpha, alpha)."""
        return to_device(dirichlet(len(inputs), 2, self.alpha, rng)[:, 0], inputs.device)

    def augmix_scale(self, pixels: Tensor) -> Tensor | None:
        """The factor of AugMix's m, (B,); None for 1."""
        return None

    def losses(self, features: Sequence[Tensor], logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        """The loss of each record, (B,), from the features and logits of the image and its two views."""
        each = torch.stack([functional.cross_entropy(given, labels, reduction="none") for given in logits])
        total = each.sum(0) if self.classification == "sum" else each.mean(0)
        if self.contrast:
            total = total + self.contrast * self.contrastive_loss(features, labels)
        if self.agreement:
            total = total + self.agreement * jensen_shannon(logits)
        return total

    def contrastive_loss(self, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Eqs. (18) to (20): contrast of each view with the image, a mean over views and a record's two anchors."""
        original, *views = features
        twice = torch.cat([labels, labels])
        anchors = [
            supervised_contrastive(
                torch.cat([view, original]), twice, temperature=self.temperature, include_self=self.include_self
            )
            for view in views
        ]
        return torch.stack(anchors).view(2 * len(views), -1).mean(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossClientAlignment:
    """The local objective of `method` with the received `pool`; `rng` draws the views.

    Three forward passes, so that each has its own batch-norm statistics."""

    method: FedCCRL
    pool: Pool | None
    rng: torch.Generator

    @property
    def couples_records(self) -> bool:
        """As declared by the method."""
        return self.method.couples_records

    def features(self, batch: Batch, model: Classifier) -> list[Tensor]:
        """Eqs. (3) and (5): the features (B, d) of the images and of their two views."""
        first = self.method.augmented_view(batch.images, self.pool, self.rng)
        source = first if self.method.views == "sequential" else batch.images
        second = self.method.augmented_view(source, self.pool, self.rng)
        return [model.features(images).float() for images in (batch.images, first, second)]

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        found = self.features(batch, model)
        return self.method.losses(found, [model.head(given).float() for given in found], batch.labels)
