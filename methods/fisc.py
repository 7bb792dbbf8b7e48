"""FISC: federated domain generalization via interpolative style transfer and contrastive learning.

Nguyen, Johnson & Leach, 2024, https://arxiv.org/abs/2410.22622 (ICDCS 2025 as PARDON). FINCH on a client's images is
eq. (1), a cluster's style eq. (2), the client's style their average (section 2.2; Algorithm 1, lines 9 to 12), FINCH on
the clients' styles eq. (3) and the interpolation style its median (lines 15, 16), AdaIN eq. (4), the triplet loss eq.
(5), the regularizer eq. (6), the objective eq. (7) (Algorithm 2). Extends methods/fedavg.py, which averages by n_i.

Shares, once, before round 0: every client's style, 2C numbers, with the server alone; the server sends the
interpolation style, 2C numbers, to every client.
Differs from the paper: FINCH compares image styles ("closeness between two image styles", below eq. (1)), not the
feature maps that eq. (1) prints and the code flattens, which cluster by layout (`compared="map"`). Eq. (5) as printed
has no hinge and squares the distances of features of any length, so that it is unbounded below; the default is the
authors' code (hinge, unit vectors, plain distances), `triplet="printed"` the equation. Eq. (6) does not say whether a
vector's squares are summed; they are averaged, as in the code. Eq. (4) alone is `alpha=1`; the default mixes half of
the content back in, as the code behind the paper's numbers does. Images are transferred in the encoder's features,
decoded, once each, and cropped like their originals; the code transfers every crop anew. The features of a batch and of
its transferred batch serve all three terms: two passes where the code makes five, with the same gradient as long as no
batch norm trains (`plan.freeze_norm`, set by both presets). Each further difference of the code is an option;
`fisc-released` sets them all. Eq. (3) takes FINCH's last partition, and its median of an even number of clusters is the
midpoint; the code takes the first partition and torch's lower median, and each partition has its own median by default.
The code's color jitter and random grays are not available. Eq. (6) grows with the square of the features, and the
paper's gamma_2 is for ResNet-50: without batch norm features can be so long that training only shortens them
(SqueezeNet, ImageNet weights, PACS at 64 px: mean square 1,600, the regularizer's gradient 90 times that of
cross-entropy); set gamma2 to about 1e-4 there. With fewer than about 20 clients there is little to cluster: FINCH puts
up to 3 into one cluster, and the median of one mean is that mean; a single client gets its own style."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import CLUSTER_SIZES, Client, Clock, Inbox, InboxesOf, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.released_statistics import ChannelMeans, MeanStyles, PooledStyles
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc_lists import shared_lists
from fdgsec.nn.networks.classifiers import Classifier, Normalization
from fdgsec.nn.networks.group_norm_linear import drawn_linear
from fdgsec.nn.styles.channel_statistics import EPS, Moments, concatenated, moments
from fdgsec.nn.styles.finch import cluster_means, finch
from fdgsec.nn.styles.image_styles import encoder_named, pictures, resized, scaled, statistics, style_transfer
from fdgsec.nn.training.batches import Batch, TrainingSet, augment, to_device
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import SecretStream

Partition = Literal["first", "last"]
Median = Literal["of_partition", "lower", "mean_of_middle"]
Sigma = Literal["mean", "mixture"]
Triplet = Literal["hinge", "printed"]
MEDIANS: Mapping[Partition, Median] = {"last": "mean_of_middle", "first": "lower"}
"""The median that goes with each partition: the paper's pair, and the authors' code's."""
AT_ONCE = 32  # images encoded or transferred together


def partition_of(rows: Tensor, which: Partition) -> Tensor:
    """The finest ("first") or coarsest ("last") FINCH partition of `rows` (n, d) by cosine: labels (n,)."""
    if which not in ("first", "last"):
        raise ValueError(f"partition must be 'first' or 'last'; got {which!r}.")
    return finch(rows, metric="cosine")[0 if which == "first" else -1]


def client_style(images: Moments, labels: Tensor, *, sigma: Sigma = "mean", eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Average the styles of a client's clusters, each pooled over its pixels (eq. 2): mean (C,) and std (C,), float64.

    `images` has one row per image and `labels` (n,) its cluster. `sigma` "mean" averages the clusters' stds (S_Ck of
    the paper); "mixture" is the std of their equal mixture, which holds the spread between them too (the code)."""
    return averaged(images.pooled_within(labels), sigma=sigma, eps=eps)


def averaged(pooled: Moments, *, sigma: Sigma, eps: float) -> tuple[Tensor, Tensor]:
    """Average the styles of clusters, mean (C,) and std (C,), as `client_style` does."""
    mean, std = pooled.style(unbiased=False, eps=eps)
    if sigma == "mean":
        return mean.mean(0), std.mean(0)
    within = (pooled.m2 / pooled.count.unsqueeze(1)).mean(0)
    return mean.mean(0), (within + mean.var(0, correction=0) + eps).sqrt()


def interpolation_style(
    means: Tensor, stds: Tensor, *, partition: Partition = "last", median: Median = "of_partition"
) -> InterpolationStyle:
    """Cluster the clients' styles by FINCH, average each cluster, take the median per coordinate (eq. 3; lines 15, 16).

    `means` and `stds` are (clients, C), as clients send them; the result has their dtype. The paper takes FINCH's last
    partition, the code its first. For an even number of clusters, "mean_of_middle" is the median as usually defined,
    the mean of the two middle values, "lower" the smaller of them (torch.median, in the code); "of_partition" is the
    first for the last partition and the second for the first one. The last partition often has two clusters, of which
    "lower" would be the minimum. The order of the clients does not matter, beyond rounding; a single client gets its
    own style. Raises ValueError for other shapes or names and for values that are not finite."""
    if means.ndim != 2 or means.shape != stds.shape or not means.numel():
        raise ValueError(f"means and stds must both be (clients, C); got {tuple(means.shape)} and {tuple(stds.shape)}.")
    if median not in ("of_partition", *MEDIANS.values()):
        raise ValueError(f"median must be 'of_partition', 'lower' or 'mean_of_middle'; got {median!r}.")
    styles = torch.cat([means, stds], dim=1).to(torch.float64)
    ordered = cluster_means(styles, partition_of(styles, partition)).sort(dim=0).values
    upper = len(ordered) // 2
    lower = (len(ordered) - 1) // 2
    chosen = MEDIANS[partition] if median == "of_partition" else median
    center = ordered[lower] if chosen == "lower" else (ordered[lower] + ordered[upper]) / 2
    mean, std = center.to(means.dtype).chunk(2)
    return InterpolationStyle(mean=mean, std=std)


def verbatim_fraction(interpolation: InterpolationStyle, means: Tensor, stds: Tensor) -> float:
    """The fraction of the 2C numbers of an interpolation style that equal some client's number exactly.

    `means` and `stds` are (clients, C). Coordinates on which clients agree count too. Raises ValueError for other
    shapes."""
    center = torch.cat([interpolation.mean, interpolation.std])
    styles = torch.cat([means, stds], dim=-1)
    if styles.ndim != 2 or means.shape != stds.shape or styles.shape[1] != len(center):
        raise ValueError(
            f"means and stds must both be (clients, {len(center) // 2}); "
            f"got {tuple(means.shape)} and {tuple(stds.shape)}."
        )
    return float((styles.to(center) == center).any(0).to(torch.float64).mean())


def negatives(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Draw for each record a uniformly random one of another class (section 2.2), (B,); -1 if there is none."""
    foreign = labels.unsqueeze(0) != labels.unsqueeze(1)
    priorities = to_device(torch.rand(foreign.shape, generator=rng), labels.device).masked_fill(~foreign, -1.0)
    best, position = priorities.max(dim=1)
    return torch.where(best >= 0, position, -1)


def triplet_losses(anchor: Tensor, positive: Tensor, negative: Tensor, *, margin: float, form: Triplet) -> Tensor:
    """The loss of each triplet, (B,), for features (B, d): the code's, or eq. (5) as printed."""
    if form == "printed":
        return (anchor - positive).square().sum(1) - (anchor - negative).square().sum(1) + margin
    a, p, n = (functional.normalize(features, dim=1) for features in (anchor, positive, negative))
    return functional.relu((a - p).norm(dim=1) - (a - n).norm(dim=1) + margin)


@dataclass(frozen=True, kw_only=True)
class SecondView:
    """Another random crop of each record's image: the positives of ordinary contrastive learning (FISC-v4)."""

    images: Tensor
    plan: TrainingPlan
    rng: torch.Generator

    def __call__(self, batch: Batch) -> Tensor:
        """Return (B, 3, H, W) in [0, 1], on the batch's device."""
        return augment(as_float(self.images[batch.records].to(batch.images.device)), self.plan, self.rng)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Eq. (7): cross-entropy on originals, the triplet loss, and the regularizer."""

    gamma1: float
    gamma2: float
    margin: float
    triplet: Triplet
    regularizer: Literal["mean", "sum"]
    rng: torch.Generator
    view: SecondView | None = None
    couples_records: bool = True  # a negative is another record

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,), from two forward passes."""
        features = model.features(batch.images)
        entropy = functional.cross_entropy(at_least_float32(model.head(features)), batch.labels, reduction="none")
        anchor = at_least_float32(features)
        positive = at_least_float32(model.features(positives(batch) if self.view is None else self.view(batch)))
        squares = anchor.square() + positive.square()  # eq. (6)
        bound = squares.mean(1) if self.regularizer == "mean" else squares.sum(1)
        return entropy + self.gamma1 * self.triplets(anchor, positive, batch.labels) + self.gamma2 * bound

    def triplets(self, anchor: Tensor, positive: Tensor, labels: Tensor) -> Tensor:
        """Eq. (5) per record, (B,); 0 for a batch of one class."""
        picked = negatives(labels, self.rng)
        losses = triplet_losses(anchor, positive, positive[picked.clamp_min(0)], margin=self.margin, form=self.triplet)
        return torch.where(picked >= 0, losses, 0.0)


@dataclass(frozen=True)
class BothVersions:
    """Cross-entropy on both originals and transferred images, without contrast (FISC-v3)."""

    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (2B,)."""
        logits = torch.cat([model(batch.images), model(positives(batch))])
        return functional.cross_entropy(at_least_float32(logits), batch.labels.repeat(2), reduction="none")


def positives(batch: Batch) -> Tensor:
    """The transferred images of a batch. Raises ValueError if there are none."""
    if batch.partners is None:
        raise ValueError("fisc trains with transferred images as partners; this batch has none.")
    return batch.partners


def at_least_float32(features: Tensor) -> Tensor:
    """Convert to at least float32; bfloat16 distances are too coarse for the margin."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


@dataclass(frozen=True, kw_only=True)
class FISC(FedAvg):
    """FISC with its options; the defaults are the paper's where it specifies them, else the authors' code's.

    `encoder` "vgg19-pre-relu" takes styles before ReLU 4_1 and transfers after it, as the code does. `compared` is
    what FINCH compares at a client: image styles, or (the code) whole feature maps, all held in memory. `style_input`
    "loader" encodes images as the code's loader yields them: cropped, mirrored, ImageNet-normalized. `clamp` keeps
    transferred images in [0, 1] and rounds them to 8 bits; the code hands the decoder's output to the network as it is.
    `extra_layer` is the code's additional linear layer after the pooled features. Table 11: v1 and v2 are
    `local_clustering` and `global_clustering` off (plain averages of image styles and of clients), v3 is
    `contrastive="none"`, v4 "ordinary" (two crops of one image; nothing is shared), v5 the default."""

    encoder: str = "mini"
    style_size: int | None = None
    eps: float = EPS
    compared: Literal["style", "map"] = "style"
    style_input: Literal["images", "loader"] = "images"
    sigma: Sigma = "mean"
    client_partition: Partition = "last"
    server_partition: Partition = "last"
    median: Median = "of_partition"
    local_clustering: bool = True
    global_clustering: bool = True
    alpha: float = 0.5
    clamp: bool = True
    contrastive: Literal["interpolation", "ordinary", "none"] = "interpolation"
    triplet: Triplet = "hinge"
    margin: float = 0.3
    gamma1: float = 0.75
    regularizer: Literal["mean", "sum"] = "mean"
    gamma2: float = 0.2
    extra_layer: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or min(self.margin, self.gamma1, self.gamma2) < 0 or self.eps <= 0:
            raise UsageError(
                "fisc needs alpha in [0, 1], margin, gamma1 and gamma2 at least 0, eps above 0; got "
                f"{self.alpha}, {self.margin}, {self.gamma1}, {self.gamma2} and {self.eps}."
            )
        if self.local is not None:
            raise UsageError("fisc trains its own objective (eq. 7); leave the local method out.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Styles, once, before round 0; never if training does not use them."""
        return "never" if self.contrastive == "ordinary" else "once"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: a style over clusters of images up, the interpolation style down.

        Without clusters the style is a mean over images: CCST's with the std of their mixture, else of their means and
        stds. With them an image of cluster k has the weight 1 / (K n_k), in the means and in the mixture's squares."""
        if self.shares == "never":
            return super().releases
        plain = not self.local_clustering
        means = PooledStyles() if self.sigma == "mixture" else MeanStyles(eps=self.eps) if plain else ChannelMeans()
        known = None if self._uses_loader else means  # random crops are not known
        style = Release(
            stage="share", slot="style", kind=StyleStatistics,
            statistic=known if plain else None, weighted=None if plain else known,
        )  # fmt: skip
        return (*super().releases, style, Release(stage="combine", slot="style", kind=InterpolationStyle))

    @property
    def server_needs(self) -> ServerNeeds:
        """Individual styles without names, if styles are shared."""
        if self.shares == "never":
            return super().server_needs
        return ServerNeeds(uploads="unnamed", because="the interpolation style is a median over clusters of clients")

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The plain classifier, with `extra_layer` a linear layer in its neck."""
        if not self.extra_layer:
            return network
        width = network.features_width
        network.neck = nn.Sequential(network.neck, drawn_linear(width, width, rng))
        return network

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Lines 9 to 12: cluster the images, pool each cluster, average.

        Raises UsageError for a client without images."""
        if not len(client.data):
            raise UsageError(
                f"{client.name} has no images; a style needs at least one. Use fewer clients or more data."
            )
        images, compared = self.encode_images(client.data, rng)
        alone = torch.arange(len(images))
        labels = partition_of(compared, self.client_partition) if self.local_clustering else alone
        mean, std = client_style(images, labels, sigma=self.sigma, eps=self.eps)
        sizes = torch.bincount(labels)[labels]
        return {"style": StyleStatistics(mean=mean.float(), std=std.float())}, {**state, CLUSTER_SIZES: sizes}

    def sharing(self, data: DomainDataset) -> InboxesOf | None:
        """What clients with parts of these images share, many at a time, where each is encoded by itself."""
        if self.style_input != "images" or self.compared != "style" or not self.local_clustering:
            return None
        images, compared = self.encode_images(data, torch.Generator())
        products, last = compared @ compared.T, self.client_partition == "last"
        style = partial(averaged, sigma=self.sigma, eps=self.eps)
        return lambda lists: shared_lists(images, products, lists, style, last=last)

    @torch.no_grad()
    def encode_images(self, data: DomainDataset, rng: torch.Generator) -> tuple[Moments, Tensor]:
        """The moments of each image, and the rows (n, d) that FINCH compares."""
        if self.style_input == "images" and self.compared == "style":  # encodings of images are cached in a process
            found = statistics(self.encoder, data, size=self.style_size)
            return found, torch.cat(found.style(unbiased=True, eps=self.eps), dim=1)
        encoder, parts, maps = encoder_named(self.encoder), [], []
        for rows in torch.arange(len(data)).split(AT_ONCE):
            pixels = as_float(resized(data.pixels(rows), self.style_size))
            features = encoder.encode(
                self._encoder_input(augment(pixels, self.plan, rng) if self._uses_loader else pixels)
            )
            parts.append(moments(features))
            maps += [features.flatten(1)] if self.compared == "map" else []
        found = concatenated(parts)
        return found, torch.cat(maps) if maps else torch.cat(found.style(unbiased=True, eps=self.eps), dim=1)

    @property
    def _uses_loader(self) -> bool:
        return self.style_input == "loader"

    def _encoder_input(self, images: Tensor) -> Tensor:
        normalized: Tensor = Normalization()(images) if self._uses_loader else images
        return normalized

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Lines 15, 16: one interpolation style from all clients' styles, sent to every client."""
        sent = [inbox["style"].tensors() for inbox in shared.values()]
        means, stds = (torch.stack([tensors[name] for tensors in sent]) for name in ("mean", "std"))
        if self.global_clustering:
            style = interpolation_style(means, stds, partition=self.server_partition, median=self.median)
        else:
            style = InterpolationStyle(mean=means.mean(0), std=stds.mean(0))
        return {name: {"style": style} for name in shared}, server

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        """The client's images with their transferred versions, which are computed once and stored."""
        if self.contrastive == "ordinary":
            return TrainingSet.of(client.data), state
        pixels = client.data.pixels()
        if "transferred" not in state:
            style = inbox.get("style")
            if not isinstance(style, InterpolationStyle):
                came = "nothing" if style is None else f"a {style.kind}"
                raise TypeError(f"fisc trains with an InterpolationStyle; {client.name} received {came}.")
            state = {**state, "transferred": torch.cat([self.transfer(p, style) for p in pixels.split(AT_ONCE)])}
        return TrainingSet(images=pixels, labels=client.data.labels, partners=state["transferred"]), state

    @torch.no_grad()
    def transfer(self, pixels: Tensor, style: InterpolationStyle) -> Tensor:
        """Eq. (4) in the encoder's features, mixed with the content by `alpha`, decoded; uint8 (n, 3, H, W) in and out.

        Without `clamp` the result is float32 and may leave [0, 1]. With `style_input="loader"` the decoder's output is
        denormalized, because the network normalizes its input."""
        encoder = encoder_named(self.encoder.removesuffix("-pre-relu"))
        content = self._encoder_input(as_float(resized(pixels, self.style_size)))
        drawn = style_transfer(
            encoder, content, style.mean, style.std, eps=self.eps, alpha=self.alpha, clamp=self.clamp,
            precision=self.plan.precision,
        )  # fmt: skip
        if self._uses_loader:
            normal = Normalization()
            drawn = drawn * normal.std + normal.mean
        size = None if self.style_size is None else pixels.shape[2]
        return pictures(drawn, size=size) if self.clamp else scaled(drawn, size)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Eq. (7), or its replacement in an ablation of Table 11."""
        if self.contrastive == "none":
            return BothVersions()
        view: SecondView | None = None
        if self.contrastive == "ordinary":
            view = SecondView(images=client.data.pixels(), plan=self.plan, rng=child(rng, "views"))
        return Contrast(
            gamma1=self.gamma1, gamma2=self.gamma2, margin=self.margin, triplet=self.triplet,
            regularizer=self.regularizer, rng=child(rng, "negatives"), view=view,
        )  # fmt: skip
