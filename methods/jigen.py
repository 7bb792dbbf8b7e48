"""JiGen: domain generalization by solving jigsaw puzzles.

Carlucci, D'Innocente, Bucci, Caputo & Tommasi, CVPR 2019, https://arxiv.org/abs/1903.06864. Images are cut into 3 x 3
tiles and reassembled in one of P orders; the loss is that of the class, on ordered images, plus alpha times that of a
second head, which predicts the order. Extends methods/fedavg.py; both heads are averaged.

Shares: what FedAvg shares, the second head included.
Differs from the paper: images are center-cropped to sides divisible by 3 (32 -> 30, 128 -> 126; the authors
resize to 222 or 225), and tested whole; tiles are not turned gray at random (the authors' code: one in ten). The P
orders of the paper come from a greedy search for large Hamming distance (Noroozi & Favaro 2016); here they are affine
maps of the field with nine elements, any two of which differ in at least 8 of the 9 places, the most that ten or more
permutations can. CCST's baseline applies the class loss to shuffled images too (`class_loss="all"`, preset
`jigen-released`) and takes alpha = .7, the default here; the authors' own command line defaults to .1."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.group_norm_linear import drawn_linear
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError

GRID = 3
MOST = 71  # affine maps of the field with nine elements, without the identity


class JigsawClassifier(Classifier):
    """A classifier with a second linear head `jigsaw` that predicts the order of the tiles; order 0 is the original."""

    def __init__(self, plain: Classifier, *, orders: int, rng: torch.Generator) -> None:
        super().__init__(backbone=plain.backbone, norm=plain.norm, body=plain.body, neck=plain.neck, head=plain.head)
        self.jigsaw = drawn_linear(plain.features_width, orders, rng)


@lru_cache(maxsize=8)
def tile_orders(count: int) -> Tensor:
    """The identity and `count` other permutations of the nine tiles, (count + 1, 9).

    They are x -> a x + b in the field GF(3)[i] with i^2 = -1, tile 3 u + v standing for u + v i."""
    parts = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # row 3 u + v is (u, v)
    real, imaginary = parts[:, 0], parts[:, 1]
    found = []
    for a, b in torch.cartesian_prod(torch.arange(1, 9), torch.arange(9)).tolist():
        u = (real[a] * real - imaginary[a] * imaginary + real[b]) % 3
        v = (real[a] * imaginary + imaginary[a] * real + imaginary[b]) % 3
        found.append(3 * u + v)
    identity = torch.arange(9)
    others = [order for order in found if not torch.equal(order, identity)]
    return torch.stack([identity, *others[:count]])


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """Reorder the tiles of each image by `orders` (B, 9): place t of the result holds tile `orders[:, t]`.

    Images are center-cropped to sides divisible by 3. Raises ValueError below 3 px."""
    count, channels, height, width = images.shape
    high, wide = height // GRID, width // GRID
    if min(high, wide) < 1:
        raise ValueError(f"images must be at least {GRID} px high and wide to be cut; got {height} x {width}.")
    top, left = (height - GRID * high) // 2, (width - GRID * wide) // 2
    cut = images[:, :, top : top + GRID * high, left : left + GRID * wide]
    tiles = cut.reshape(count, channels, GRID, high, GRID, wide).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    moved = tiles[torch.arange(count, device=images.device).unsqueeze(1), orders]
    grid = moved.reshape(count, GRID, GRID, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    return grid.reshape(count, channels, GRID * high, GRID * wide)


@dataclass(frozen=True)
class JigsawLoss:
    """The class loss plus `weight` times the loss of the order; `orders` are on the network's device."""

    orders: Tensor
    whole: float
    weight: float
    class_loss: Literal["ordered", "all"]
    rng: torch.Generator
    couples_records: bool = False  # which images are ordered is random and does not depend on records

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,); their mean is that of the ordered images plus `weight` times that of all."""
        if not isinstance(model, JigsawClassifier):
            raise TypeError(f"jigen trains a JigsawClassifier; got a {type(model).__name__}.")
        chosen = to_device(self.draw_orders(len(batch.labels)), batch.images.device)
        images = shuffle_tiles(batch.images, self.orders[chosen])
        features = model.features(images)
        named = functional.cross_entropy(model.jigsaw(features).float(), chosen, reduction="none")
        classed = functional.cross_entropy(model.head(features).float(), batch.labels, reduction="none")
        if self.class_loss == "ordered":
            ordered = chosen == 0
            classed = classed * ordered * (len(chosen) / ordered.sum().clamp_min(1))
        return classed + self.weight * named

    def draw_orders(self, count: int) -> Tensor:
        """Draw the order of each image: the original with probability `whole`, else uniform over all orders."""
        uniform = torch.randint(len(self.orders), (count,), generator=self.rng)
        return torch.where(torch.rand(count, generator=self.rng) < self.whole, 0, uniform)


@dataclass(frozen=True, kw_only=True)
class JiGen(FedAvg):
    """JiGen; `permutations` is P, `bias_whole_image` beta, `jigsaw_weight` alpha."""

    permutations: int = 30
    bias_whole_image: float = 0.9
    jigsaw_weight: float = 0.7
    class_loss: Literal["ordered", "all"] = "ordered"

    def __post_init__(self) -> None:
        if not 1 <= self.permutations <= MOST or not 0 <= self.bias_whole_image <= 1 or self.jigsaw_weight < 0:
            raise UsageError(
                f"jigen needs permutations in 1..{MOST}, bias_whole_image in [0, 1] and jigsaw_weight >= 0; "
                f"got {self.permutations}, {self.bias_whole_image} and {self.jigsaw_weight}."
            )

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The classifier with a second head."""
        return JigsawClassifier(super().remodel(network, rng), orders=self.permutations + 1, rng=rng)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The loss of both heads."""
        orders = tile_orders(self.permutations).to(model.blueprint.device)
        return JigsawLoss(orders, self.bias_whole_image, self.jigsaw_weight, self.class_loss, rng)
