"""StableFDG's attention-based feature highlighter, and a classifier that uses it.

Park et al., NeurIPS 2023, section 3.2. The similarity of two images is eq. (6), with the image's own query mixed in
eq. (8); the attention feature is eq. (7). The mean of S over its query axis is the product of the mean query with the
keys, so the HW x HW matrix S is never computed."""

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional, init

from fdgsec.nn.networks.classifiers import Classifier, drawn_head
from fdgsec.runtime.errors import UsageError

Similarity = Literal["mixed", "cross", "self"]


class Highlighter(nn.Module):
    """Scores the positions of maps (N, C, h, w) by similarity to a query: theta_q, theta_k as 1x1 convolutions.

    `cosine` normalizes queries and keys to length 1 at every position, as in the released code but not in the paper.
    `unused` adds the 1x1 convolutions that the released code has and never uses (values, output), to match its number
    of parameters. Without `cosine` weights are drawn from the distribution of nn.Conv2d: the paper names none, and the
    released one is for cosines."""

    def __init__(
        self, channels: int, *, embedding: int, cosine: bool, bias: bool, unused: bool, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.cosine = cosine
        parts = {"query": (channels, embedding), "key": (channels, embedding)}
        if unused:
            parts |= {"value": (channels, embedding), "output": (1, 1)}
        for name, (inputs, outputs) in parts.items():
            projection = cast(nn.Conv2d, nn.utils.skip_init(nn.Conv2d, inputs, outputs, 1, bias=bias))
            if cosine:  # as released; a cosine ignores lengths
                init.kaiming_normal_(projection.weight, mode="fan_out", nonlinearity="relu", generator=rng)
            else:  # with the released distribution one position of a ResNet's maps gets all of the softmax
                init.uniform_(projection.weight, -(inputs**-0.5), inputs**-0.5, generator=rng)
            if projection.bias is not None:
                init.zeros_(projection.bias)
            self.add_module(name, projection)

    def queries(self, maps: Tensor) -> Tensor:
        """Compute each image's query Q = theta_q X, averaged over positions, (N, d)."""
        return self._projected("query", maps).mean(2)

    def scores(self, maps: Tensor, queries: Tensor) -> Tensor:
        """Compute the attention scores a_s, (N, h, w): each image's sum to 1 over positions (section 3.2)."""
        similarity: Tensor = torch.einsum("nd,ndp->np", queries, self._projected("key", maps))
        return similarity.float().softmax(1).view(maps.shape[0], maps.shape[2], maps.shape[3])

    def _projected(self, name: str, maps: Tensor) -> Tensor:
        projected = cast(Tensor, self.get_submodule(name)(maps)).flatten(2)
        return functional.normalize(projected, dim=1) if self.cosine else projected


class HighlightedClassifier(Classifier):
    """A classifier whose head gets the pooled features concatenated with the attention feature of eq. (7).

    Called with images alone it uses each image's own query (section 3.2, "Inference"), so that no image influences
    another. It reuses the body and neck of `plain`; the wider head is drawn from `rng` by the distribution of `plain`'s
    own, which for ResNets is that of nn.Linear as released."""

    def __init__(self, plain: Classifier, highlighter: Highlighter, *, channels: int, rng: torch.Generator) -> None:
        head = drawn_head(plain.backbone, plain.features_width + channels, plain.classes, rng=rng)
        super().__init__(backbone=plain.backbone, norm=plain.norm, body=plain.body, neck=plain.neck, head=head)
        self.highlighter = highlighter

    def features(self, images: Tensor) -> Tensor:
        """Compute the input of the head, by self-attention: (N, features_width)."""
        maps = self.maps(images)
        return self.highlighted(maps, self.highlighter.queries(maps))

    def highlighted(self, maps: Tensor, queries: Tensor) -> Tensor:
        """Concatenate the last embedding feature with A(z) of eq. (7), for queries (N, d): (N, features_width)."""
        scores = self.highlighter.scores(maps, queries).flatten(1)
        attended = torch.einsum("ncp,np->nc", maps.flatten(2), scores.to(maps.dtype))
        return torch.cat([cast(Tensor, self.neck(maps)), attended], 1)


def add_highlighter(
    plain: Classifier,
    *,
    embedding: int = 30,
    cosine: bool = True,
    bias: bool = False,
    unused: bool = False,
    rng: torch.Generator,
) -> HighlightedClassifier:
    """Add an attention highlighter of `embedding` = d dimensions and a wider head to `plain`, drawn from `rng`."""
    channels = map_channels(plain)
    made = Highlighter(channels, embedding=embedding, cosine=cosine, bias=bias, unused=unused, rng=rng)
    return HighlightedClassifier(plain, made, channels=channels, rng=rng)


def map_channels(network: Classifier) -> int:
    """Give C of the last stage's maps: the features' width, unless the neck has a layer of its own (MobileNetV3)."""
    layers = [module for module in network.neck.modules() if isinstance(module, nn.Linear)]
    return layers[0].in_features if layers else network.features_width


def mixed_queries(queries: Tensor, partners: Tensor, *, similarity: Similarity = "mixed") -> Tensor:
    """Mix each row's query with that of its partner, (N, d): eq. (8), or one of the two alone (eq. 6; inference).

    `partners` (N,) int64 are positions in the batch."""
    if similarity == "self":
        return queries
    return queries[partners] if similarity == "cross" else (queries[partners] + queries) / 2


def class_partners(labels: Tensor) -> Tensor:
    """Give each row (N,) the next row of its class, cyclically; itself where its class has no other row."""
    order = torch.argsort(labels, stable=True)
    _, counts = torch.unique_consecutive(labels[order], return_counts=True)
    ends = counts.cumsum(0) - 1
    following = order.roll(-1)
    following[ends] = order[ends - counts + 1]
    partners = torch.empty_like(order)
    partners[order] = following
    return partners


@torch.inference_mode()
def attention_scores(network: Classifier, images: Tensor) -> Tensor:
    """Compute the self-attention score maps of images (N, 3, H, W) in [0, 1], (N, h, w), as in StableFDG's figure 5.

    Puts `network` into evaluation mode. Raises UsageError for a network without a highlighter."""
    if not isinstance(network, HighlightedClassifier):
        raise UsageError(
            f"attention scores need a network with a highlighter (method stablefdg); got {type(network).__name__}."
        )
    network.eval()
    maps = network.maps(images)
    return network.highlighter.scores(maps, network.highlighter.queries(maps))
