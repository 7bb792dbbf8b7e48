"""FISC with losses of single records: what of it can train under DP-SGD.

Nguyen, Johnson & Leach, 2024, https://arxiv.org/abs/2410.22622; extends methods/fisc.py, whose steps and equations these
are. DP-SGD bounds what a record adds to a step, so that no other record of the batch may enter a record's loss.

Shares: what FISC shares. A clustered style has no small sensitivity to one record (FINCH may regroup all images);
private-styles takes the plain mean (`local_clustering=false`), and the server's S_g then comes from noisy uploads.
Without that defense S_g carries all records of a client into its own transferred images: what dp-sgd alone promises of the
model does not hold then (but for `contrastive="ordinary"`, which shares nothing).
Differs from FISC in eq. (5) alone. Its negative was the transferred version of another record, of another class: the one
place where records meet. A client has nothing but private images and what it received, so that the negative is made of the
record itself (`negative`):
* "patches": the transferred image, cut into `patches` x `patches` pieces that change places. It has the record's textures
  and the interpolation style, but no object: what lies nearer to it than the margin allows looks at styles and not at
  contents, which is what eq. (5) is against. Negatives without semantics are the idea of Ge et al., NeurIPS 2021,
  https://arxiv.org/abs/2110.14189, who make them of an image's patches or textures. It takes a third pass.
* "none": the positive alone, |a - p|, draws the two versions of a record together; cross-entropy keeps classes apart.
Rows of the classifier's head, public under DP-SGD, would be another negative without a record, but features start at right
angles to them: at the paper's margin the hinge never opens.
The positive (eq. 4) is the record's own image in a style that was received; the regularizer (eq. 6) and cross-entropy are
sums over records. `contrastive="none"` (FISC-v3) averages the losses of a record's two versions: one record, one loss.
Versions are forwarded one after the other, each a batch of the B records in their order, as hooks that find per-record
gradients expect. Pieces are drawn for each record independently of how many there are. Under `norm="group"` no
layer couples records or works in place."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.method import Client, Clock, GlobalModel, Inbox, State
from fdgsec.methods.fisc import FISC, Contrast, positives, triplet_losses, wide
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.loop import Objective
from fdgsec.runtime.errors import UsageError

Negative = Literal["patches", "none"]


def rearranged(images: Tensor, pieces: int, rng: torch.Generator) -> Tensor:
    """Cut each of images (B, C, H, W) into `pieces` x `pieces` parts and put them back in random order, each its own.

    No image keeps its order. Sides that do not divide keep a margin on the right and below. Raises ValueError for
    fewer than 2 x 2 pieces, or more than pixels."""
    count, channels, height, width = images.shape
    high, broad = height // pieces, width // pieces
    if pieces < 2 or min(high, broad) < 1:
        raise ValueError(f"pieces must lie in 2..{min(height, width)} for images of {height} x {width}; got {pieces}.")
    inner = images[:, :, : high * pieces, : broad * pieces]
    cut = inner.reshape(count, channels, pieces, high, pieces, broad).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(count, pieces * pieces, channels, high, broad)
    order = _orders(count, pieces * pieces, rng).to(images.device)
    moved = cut[torch.arange(count, device=images.device).unsqueeze(1), order]
    whole = moved.reshape(count, pieces, pieces, channels, high, broad).permute(0, 3, 1, 4, 2, 5)
    inner = whole.reshape(count, channels, high * pieces, broad * pieces)
    right = torch.cat([inner, images[:, :, : high * pieces, broad * pieces :]], 3)
    return torch.cat([right, images[:, :, high * pieces :]], 2)


def _orders(count: int, places: int, rng: torch.Generator) -> Tensor:
    """Draw for each of `count` images an order of `places` pieces other than the one that they have, (count, places)."""
    orders = torch.rand(count, places, generator=rng).argsort(1)
    same = (orders == torch.arange(places)).all(1, keepdim=True)
    return torch.where(same, orders.roll(1, 1), orders)


@dataclass(frozen=True, kw_only=True)
class EachVersion:
    """FISC-v3 per record: the mean cross-entropy of a record's image and of its transferred version, (B,)."""

    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give the losses, two passes of B records each."""
        both = [
            functional.cross_entropy(wide(model(images)), batch.labels, reduction="none")
            for images in (batch.images, positives(batch))
        ]
        return torch.stack(both).mean(0)


@dataclass(frozen=True, kw_only=True)
class OwnContrast(Contrast):
    """Eq. (7) with negatives that need no other record."""

    negative: Negative
    patches: int
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give the losses, (B,): two passes, or three with negatives made of patches."""
        features = model.features(batch.images)
        entropy = functional.cross_entropy(wide(model.head(features)), batch.labels, reduction="none")
        version = positives(batch) if self.view is None else self.view(batch)
        anchor, positive = wide(features), wide(model.features(version))
        squares = anchor.square() + positive.square()  # eq. (6)
        bound = squares.mean(1) if self.regularizer == "mean" else squares.sum(1)
        if self.negative == "none":
            apart = self.distances(anchor, positive)
        else:
            torn = wide(model.features(rearranged(version, self.patches, self.rng)))
            apart = triplet_losses(anchor, positive, torn, margin=self.margin, form=self.triplet)
        return entropy + self.gamma1 * apart + self.gamma2 * bound

    def distances(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Give what is left of eq. (5) without a negative, (B,)."""
        if self.triplet == "printed":
            return (anchor - positive).square().sum(1)
        a, p = (functional.normalize(features, dim=1) for features in (anchor, positive))
        apart: Tensor = torch.linalg.vector_norm(a - p, dim=1)
        return apart


@dataclass(frozen=True, kw_only=True)
class FISCDP(FISC):
    """FISC per record: `negative` says what stands for another record, `patches` into how many pieces a side is cut."""

    negative: Negative = "patches"
    patches: int = 4

    @property
    def trains_on_own_releases(self) -> bool:
        """The interpolation style is a median that the client's own style has a part in."""
        return True

    @property
    def trains_through_trainer(self) -> bool:
        """An image, its version in the interpolation style, and nothing else make a loss."""
        return type(self) is FISCDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches < 2:
            raise UsageError(f"fisc-dp needs at least 2 patches a side; got {self.patches}.")

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Eq. (7), each record for itself."""
        made = super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if not isinstance(made, Contrast):
            return EachVersion()
        return OwnContrast(
            gamma1=made.gamma1, gamma2=made.gamma2, margin=made.margin, triplet=made.triplet,
            regularizer=made.regularizer, rng=made.rng, view=made.view, negative=self.negative, patches=self.patches,
        )  # fmt: skip
