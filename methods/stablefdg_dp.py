"""StableFDG with losses of single records: what of it can train under DP-SGD.

Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227; extends methods/stablefdg.py, whose steps and equations these
are. DP-SGD bounds what a record adds to a step, so that no other record of the batch may enter a record's loss.

Shares: what StableFDG shares; the server also hands each participant its own Phi_n back, as it was released.
Differs from StableFDG, step by step (section 3.1), and why the loss of a record is then its own:
* step 2: k-means++ over the batch chose the half that moves; each record throws its own coin (`probability` / 2, the same
  share), and draws its own style from the laws that were received.
* step 3: copies were drawn until the batch's classes were level, which depends on the batch's labels, and gave a record
  several terms. No copies are made; a record takes the explored style in place of its own by a coin. `prior` balances
  classes instead: public shares of the classes (never counted on private labels), whose inverses weigh the losses, at most
  `heaviest`.
* step 4, eqs. (4) and (5): the center was the batch's mean style. It is mu_n as the client released it and has it back
  from the server (`center="own"`), or the mean of the received ones ("received"); under private-styles both are noisy.
  Without that defense its own center carries all of a client's records into every loss: what dp-sgd alone promises of the
  model then holds for "received" only.
* step 5: styles were mixed with those of other records; each is mixed with one drawn from the received laws.
* steps 3 to 5 act at `stage` alone, where the released styles are of; behind it nobody sent any.
* section 3.2: eq. (8) mixed an image's query with that of another image of its class; each image is seen by its own query,
  as at inference. Attention itself compares places of one image.
Coins and styles are drawn for each record independently of how many there are, so that a further record changes no other
one's law. `shift_law="printed"` is refused: it scales noise by the client's own variances, which were not released. What
the steps that are gone were set by is not read, and setting it is refused. Received styles are other clients' releases:
what they cost is on those clients' accounts. Under `norm="group"` no layer couples records or works in place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.method import Client, Clock, GlobalModel, Inbox, State
from fdgsec.federation.releases import Release
from fdgsec.methods.stablefdg import DISTRIBUTION, NEGATIVE_STDS, StableFDG
from fdgsec.nn.networks.attention import HighlightedClassifier
from fdgsec.nn.networks.classifiers import Classifier, StageHooks
from fdgsec.nn.styles.feature_styles import StyleLaws, apply_style, explored, instance_statistics
from fdgsec.nn.training.augmix import dirichlet
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.loop import Objective
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import child

CENTER = "center"
"""The slot in which a participant receives its own released Phi_n."""
Style = tuple[Tensor, Tensor]  # means and stds, each (B, C, 1, 1) or (1, C, 1, 1)
UNREAD = (
    "selection", "explore_at", "explore_once", "oversampling", "oversample", "explore_center", "similarity", "singletons",
)  # fmt: skip
"""Options of the steps that couple records."""


@dataclass(frozen=True, kw_only=True)
class StableFDGDP(StableFDG):
    """StableFDG per record; of its options those in UNREAD are not read.

    `probability` is that of enriching a record (steps 4 and 5) and, halved, of shifting it (step 2); an enriched record
    is explored with probability 1/2. `prior` are public shares of the classes, in their order; empty: unweighted."""

    center: Literal["own", "received"] = "own"
    prior: tuple[float, ...] = ()
    heaviest: float = 5.0

    @property
    def trains_on_own_releases(self) -> bool:
        """Where the center of exploration is the client's own, as it was released."""
        return self.center == "own"

    @property
    def trains_through_trainer(self) -> bool:
        """Received styles and the own image are all that a loss is made of."""
        return type(self) is StableFDGDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = StableFDG()
        moved = [name for name in UNREAD if getattr(self, name) != getattr(plain, name)]
        if moved:
            raise UsageError(f"stablefdg-dp has no step that reads {', '.join(moved)}; leave it out.")
        if self.shift_law != "normal":
            raise UsageError(
                'stablefdg-dp shifts by shift_law = "normal" alone: "printed" scales by variances that no client released.'
            )
        if self.prior and (min(self.prior) <= 0 or abs(sum(self.prior) - 1) > 1e-6):
            raise UsageError(f"stablefdg-dp needs a prior of shares above 0 that sum to 1; got {self.prior}.")
        if self.heaviest <= 0:
            raise UsageError(f"stablefdg-dp needs heaviest above 0; got {self.heaviest}.")

    @property
    def releases(self) -> Sequence[Release]:
        """As StableFDG's, and each client's own distribution back where it explores about that."""
        if self.center == "received" or self.shares == "never":
            return super().releases
        return (*super().releases, Release(stage="combine", slot=CENTER, kind=StyleDistribution))

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Mapping[str, Inbox], State]:
        """Step 1, and each participant's own Phi_n, as released, for eqs. (4) and (5)."""
        inboxes, server = super().combine(shared, server=server, clock=clock, rng=rng)
        if self.center == "received" or self.shares == "never":
            return inboxes, server
        return {name: {**inboxes.get(name, {}), CENTER: sent[DISTRIBUTION]} for name, sent in shared.items()}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Algorithm 1, stage 2, each record for itself. Raises UsageError for a prior of other classes."""
        if self.prior and len(self.prior) != model.blueprint.classes:
            raise UsageError(
                f"the prior has {len(self.prior)} shares, but the model {model.blueprint.classes} classes."
            )
        laws = self.new_styles(inbox, state) if self.style else None
        return SingleRecords(
            method=self, laws=laws, center=self.explored_about(inbox, laws) if self.style else None,
            shifting=clock.round >= self.shift_from, rng=child(rng, "stablefdg"),
            negative_stds=state.get(NEGATIVE_STDS, torch.zeros(2, dtype=torch.int64)),
        )  # fmt: skip

    def explored_about(self, inbox: Inbox, laws: StyleLaws | None) -> Style | None:
        """Give mu_n of eqs. (4) and (5) as it was released, or the mean of the received ones; None where nothing came.

        Raises TypeError for an artifact of another kind."""
        if self.center == "received":
            return None if laws is None else (_one(laws.mean.mean(0)), _one(laws.std.mean(0)))
        released = inbox.get(CENTER)
        if released is None:
            return None
        if not isinstance(released, StyleDistribution):
            raise TypeError(f"stablefdg-dp explores about a StyleDistribution; received a {released.kind}.")
        return _one(released.mean), _one(released.std)

    def weight(self, labels: Tensor) -> Tensor:
        """Give each record's weight, (B,): 1 / (classes x its class's public share), at most `heaviest`."""
        if not self.prior:
            return torch.ones(len(labels), device=labels.device)
        shares = torch.tensor(self.prior, device=labels.device)
        return (1 / (len(self.prior) * shares)).clamp_max(self.heaviest)[labels]


def _one(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SingleRecords:
    """The objective of one client in one round; `laws` and `center` are what it received, None where nothing came.

    `negative_stds` is the counter in the client's state, added to in place; it stays there."""

    method: StableFDGDP
    laws: StyleLaws | None
    center: Style | None
    shifting: bool
    negative_stds: Tensor
    rng: torch.Generator
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give -log p(label) of each record, weighed, (B,)."""
        idle = self.laws is None and self.center is None
        between: StageHooks = {} if idle else {self.method.stage: self.styled}
        maps = model.maps(batch.images, between=between)
        if isinstance(model, HighlightedClassifier):
            seen = model.highlighted(maps, model.highlighter.queries(maps))
        else:
            seen = cast(Tensor, model.neck(maps))
        logits = cast(Tensor, model.head(seen)).float()
        return self.method.weight(batch.labels) * functional.cross_entropy(logits, batch.labels, reduction="none")

    def styled(self, maps: Tensor) -> Tensor:
        """Steps 2, 4 and 5 on maps (B, C, H, W): one AdaIN to each map's last style; maps that no coin hit are left.

        Which statistics pass gradients is as in steps 3 to 5. Raises ArtifactError where channels differ."""
        method = self.method
        source = maps.detach() if method.gradient == "none" else maps
        own = instance_statistics(source, eps=method.eps, unbiased=method.unbiased)
        style = own if method.gradient == "all" else (own[0].detach(), own[1].detach())
        shifted, enriched = self._coins(maps, method.probability / 2), self._coins(maps, method.probability)
        exploring = enriched & self._coins(maps, 0.5)
        touched = torch.zeros_like(enriched)
        if self.laws is not None and self.shifting:  # step 2
            style = _where(shifted, self._received(self.laws, style), style)
            touched = touched | shifted
        if self.center is not None:  # step 4
            style = _where(exploring, self._explored(self.center, style, exploring), style)
            touched = touched | exploring
        if self.laws is not None and method.mix_alpha is not None:  # step 5
            style = _where(enriched, self._mixed(self.laws, style, method.mix_alpha), style)
            touched = touched | enriched
        new = apply_style(maps, *own, new_mean=style[0], new_std=style[1])
        return torch.where(touched, new, maps)

    def _coins(self, maps: Tensor, probability: float) -> Tensor:
        """Throw a coin for each record: (B, 1, 1, 1) bool."""
        return (torch.rand(len(maps), 1, 1, 1, generator=self.rng) < probability).to(maps.device)

    def _received(self, laws: StyleLaws, like: Style) -> Style:
        """Draw a style for each record from the received laws."""
        count, channels = like[0].shape[:2]
        self._check(laws.mean.shape[1], channels)
        mean, std = laws.drawn(count, self.rng)
        return mean.to(like[0]), std.to(like[1])

    def _explored(self, center: Style, style: Style, exploring: Tensor) -> Style:
        """Eqs. (4) and (5); negative stds of the records that are `exploring` are counted."""
        self._check(center[0].shape[1], style[0].shape[1])
        mean, std = (
            explored(each, middle.to(each), level=self.method.exploration)
            for each, middle in zip(style, center, strict=True)
        )
        far = std[exploring.flatten()]
        self.negative_stds.add_(torch.tensor([int((far < 0).sum()), far.numel()]))
        return mean, std.clamp_min(0) if self.method.clamp_explored else std

    def _mixed(self, laws: StyleLaws, style: Style, alpha: float) -> Style:
        """Step 5: lambda s + (1 - lambda) s', s' from the received laws, lambda ~ Beta(alpha, alpha)."""
        lam = dirichlet(len(style[0]), 2, alpha, self.rng)[:, 0].to(style[0]).view(-1, 1, 1, 1)
        other = self._received(laws, style)
        return torch.lerp(other[0], style[0], lam), torch.lerp(other[1], style[1], lam)

    def _check(self, received: int, channels: int) -> None:
        if received != channels:
            raise ArtifactError(
                f"a StyleDistribution of {channels} channels is expected at {self.method.stage}; got {received}."
            )


def _where(chosen: Tensor, style: Style, other: Style) -> Style:
    return torch.where(chosen, style[0], other[0]), torch.where(chosen, style[1], other[1])
