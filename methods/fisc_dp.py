"""FISC with per-record losses, for training under DP-SGD.

Nguyen, Johnson & Leach, 2024, https://arxiv.org/abs/2410.22622; extends methods/fisc.py; steps and equation numbers are
the same. DP-SGD bounds the contribution of each record to a step, so a record's loss must not depend on other records.

Shares: what FISC shares. A clustered style has no small sensitivity to one record (FINCH may regroup all images);
private-styles uses the plain mean (`local_clustering=false`), and the server's S_g is then computed from noisy
uploads. Without that defense S_g makes a client's transferred images depend on all its records, and the guarantee of
dp-sgd alone for the model does not hold (except for `contrastive="ordinary"`, which shares nothing).
Differs from FISC only in eq. (5). There the negative is the transferred version of another record, of another class:
the only term that couples records. A client has only private images and what it received, so the negative is made
from the record itself (`negative`):
* "patches": the transferred image, cut into `patches` x `patches` pieces in random order. It keeps the record's
  textures and the interpolation style, but not the object: features close to it represent style rather than content,
  which eq. (5) penalizes. Negatives without semantics are due to Ge et al., NeurIPS 2021,
  https://arxiv.org/abs/2110.14189, who make them from an image's patches or textures. This takes a third pass.
* "none": only the positive, |a - p|, pulls the two versions of a record together; cross-entropy separates classes.
Rows of the classifier's head, public under DP-SGD, would be another negative without a record, but features are
initially orthogonal to them: at the paper's margin the hinge is always 0.
The positive (eq. 4) is the record's own image in the received style; the regularizer (eq. 6) and cross-entropy are
sums over records. `contrastive="none"` (FISC-v3) averages the losses of a record's two versions: one record, one
loss.
Versions are forwarded one after the other, each a batch of the B records in their order, as hooks for per-record
gradients expect. Pieces are drawn for each record independently of the batch size. Under `norm="group"` no layer
couples records or works in place."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fisc import FISC, Contrast, at_least_float32, positives, triplet_losses
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError

Negative = Literal["patches", "none"]


def shuffle_patches(images: Tensor, pieces: int, rng: torch.Generator) -> Tensor:
    """Cut each of images (B, C, H, W) into `pieces` x `pieces` parts and permute them, independently for each image.

    No image keeps its order. If a side is not divisible, the margin on the right or below stays. Raises ValueError for
    fewer than 2 x 2 pieces, or more than pixels."""
    count, channels, height, width = images.shape
    high, broad = height // pieces, width // pieces
    if pieces < 2 or min(high, broad) < 1:
        raise ValueError(f"pieces must lie in 2..{min(height, width)} for images of {height} x {width}; got {pieces}.")
    inner = images[:, :, : high * pieces, : broad * pieces]
    cut = inner.reshape(count, channels, pieces, high, pieces, broad).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(count, pieces * pieces, channels, high, broad)
    order = _draw_orders(count, pieces * pieces, rng).to(images.device)
    moved = cut[torch.arange(count, device=images.device).unsqueeze(1), order]
    whole = moved.reshape(count, pieces, pieces, channels, high, broad).permute(0, 3, 1, 4, 2, 5)
    inner = whole.reshape(count, channels, high * pieces, broad * pieces)
    right = torch.cat([inner, images[:, :, : high * pieces, broad * pieces :]], 3)
    return torch.cat([right, images[:, :, high * pieces :]], 2)


def _draw_orders(count: int, places: int, rng: torch.Generator) -> Tensor:
    """Draw for each of `count` images a permutation of `places` pieces, never the identity, (count, places)."""
    orders = torch.rand(count, places, generator=rng).argsort(1)
    same = (orders == torch.arange(places)).all(1, keepdim=True)
    return torch.where(same, orders.roll(1, 1), orders)


@dataclass(frozen=True, kw_only=True)
class EachVersion:
    """FISC-v3 per record: the mean cross-entropy of a record's image and of its transferred version, (B,)."""

    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,), from two passes of B records each."""
        both = [
            functional.cross_entropy(at_least_float32(model(images)), batch.labels, reduction="none")
            for images in (batch.images, positives(batch))
        ]
        return torch.stack(both).mean(0)


@dataclass(frozen=True, kw_only=True)
class OwnContrast(Contrast):
    """Eq. (7) with negatives made from the record itself."""

    negative: Negative
    patches: int
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,), from two passes, or from three with negatives made of patches."""
        features = model.features(batch.images)
        entropy = functional.cross_entropy(at_least_float32(model.head(features)), batch.labels, reduction="none")
        version = positives(batch) if self.view is None else self.view(batch)
        anchor, positive = at_least_float32(features), at_least_float32(model.features(version))
        squares = anchor.square() + positive.square()  # eq. (6)
        bound = squares.mean(1) if self.regularizer == "mean" else squares.sum(1)
        if self.negative == "none":
            apart = self.distances(anchor, positive)
        else:
            torn = at_least_float32(model.features(shuffle_patches(version, self.patches, self.rng)))
            apart = triplet_losses(anchor, positive, torn, margin=self.margin, form=self.triplet)
        return entropy + self.gamma1 * apart + self.gamma2 * bound

    def distances(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Eq. (5) without a negative, (B,)."""
        if self.triplet == "printed":
            return (anchor - positive).square().sum(1)
        a, p = (functional.normalize(features, dim=1) for features in (anchor, positive))
        apart: Tensor = torch.linalg.vector_norm(a - p, dim=1)
        return apart


@dataclass(frozen=True, kw_only=True)
class FISCDP(FISC):
    """FISC per record; `negative` replaces the negative record, `patches` is the number of pieces per side."""

    negative: Negative = "patches"
    patches: int = 4

    @property
    def trains_on_own_releases(self) -> bool:
        """True: the client's own style contributes to the interpolation style."""
        return True

    @property
    def trains_through_trainer(self) -> bool:
        """True: a loss depends only on one image and its version in the interpolation style."""
        return type(self) is FISCDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches < 2:
            raise UsageError(f"fisc-dp needs at least 2 patches a side; got {self.patches}.")

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Eq. (7) per record."""
        made = super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if not isinstance(made, Contrast):
            return EachVersion()
        return OwnContrast(
            gamma1=made.gamma1, gamma2=made.gamma2, margin=made.margin, triplet=made.triplet,
            regularizer=made.regularizer, rng=made.rng, view=made.view, negative=self.negative, patches=self.patches,
        )  # fmt: skip
