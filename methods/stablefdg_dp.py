"""StableFDG with per-record losses, for training under DP-SGD.

Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227; extends methods/stablefdg.py; steps and equation numbers
are the same. DP-SGD bounds the contribution of each record to a step, so a record's loss must not depend on other
records of the batch.

Shares: what StableFDG shares; the server also returns each participant its own Phi_n, as released.
Differs from StableFDG in each step that couples records (section 3.1):
* step 2: k-means++ over the batch selects the half that is shifted. Here each record is shifted with probability
  `probability` / 2 (the same share), to its own draw from the received style distributions.
* step 3: copies balance the classes of the batch, which depends on the batch's labels and gives a record several
  terms. Here no copies are made; an enriched record takes the explored style with probability 1/2. Classes are
  balanced by `prior`: public shares of the classes (never counted on private labels), whose inverses weigh the
  losses, at most `heaviest`.
* step 4, eqs. (4) and (5): the center is the batch's mean style. Here it is mu_n as the client released it and
  received it back from the server (`center="own"`), or the mean of the received ones ("received"); under
  private-styles both are noisy. Without that defense the own center makes every loss depend on all records of the
  client, and the guarantee of dp-sgd alone for the model holds only for "received" with sharing="random": with
  "farthest" the client's own Phi_n chooses whose it receives.
* step 5: styles are mixed with those of other records. Here each is mixed with a draw from the received
  distributions.
* steps 3 to 5 act only at `stage`, where the released styles are taken; no styles of later stages are sent.
* section 3.2: eq. (8) mixes an image's query with that of another image of its class. Here each image uses its own
  query, as at inference. Attention itself compares positions of one image.
All draws are per record and independent of the batch size, so that a further record does not change the distribution
of any other. `shift_law="printed"` is refused: it scales noise by the client's own variances, which were not
released. Options of the removed steps are not read, and setting them is refused. Received styles are other clients'
releases, whose privacy cost is charged to those clients. Under `norm="group"` no layer couples records or works in
place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.stablefdg import DISTRIBUTION, NEGATIVE_STDS, StableFDG, count_negative
from fdgsec.nn.networks.attention import HighlightedClassifier
from fdgsec.nn.networks.classifiers import Classifier, StageHooks
from fdgsec.nn.styles.feature_styles import StyleLaws, apply_style, explored, instance_statistics
from fdgsec.nn.training.augmix import dirichlet
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import SecretStream

CENTER = "center"
"""The slot in which a participant receives its own released Phi_n."""
Style = tuple[Tensor, Tensor]  # means and stds, each (B, C, 1, 1) or (1, C, 1, 1)
UNREAD = (
    "selection", "explore_at", "explore_once", "oversampling", "oversample", "explore_center", "similarity",
    "singletons",
)  # fmt: skip
"""Options of the steps that couple records."""


@dataclass(frozen=True, kw_only=True)
class StableFDGDP(StableFDG):
    """StableFDG per record; options in UNREAD are refused.

    `probability` is that of enriching a record (steps 4 and 5) and, halved, of shifting it (step 2); an enriched record
    is explored with probability 1/2. `prior` are public shares of the classes, in their order; empty: unweighted."""

    center: Literal["own", "received"] = "own"
    prior: tuple[float, ...] = ()
    heaviest: float = 5.0

    @property
    def trains_on_own_releases(self) -> bool:
        """Whether a client's own distribution is the center of exploration, or chooses whose it receives."""
        return self.shares != "never" and (self.center == "own" or self.sharing == "farthest")

    @property
    def trains_through_trainer(self) -> bool:
        """True: a loss depends only on one image and received styles."""
        return type(self) is StableFDGDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = StableFDG()
        moved = [name for name in UNREAD if getattr(self, name) != getattr(plain, name)]
        if moved:
            raise UsageError(f"stablefdg-dp has no step that reads {', '.join(moved)}; leave it out.")
        if self.shift_law != "normal":
            raise UsageError(
                'stablefdg-dp shifts by shift_law = "normal" alone: "printed" scales by variances that no client '
                "released."
            )
        if self.prior and (min(self.prior) <= 0 or abs(sum(self.prior) - 1) > 1e-6):
            raise UsageError(f"stablefdg-dp needs a prior of shares above 0 that sum to 1; got {self.prior}.")
        if self.heaviest <= 0:
            raise UsageError(f"stablefdg-dp needs heaviest above 0; got {self.heaviest}.")

    @property
    def releases(self) -> Sequence[Release]:
        """As StableFDG's, and with `center="own"` each client's own distribution back."""
        if self.center == "received" or self.shares == "never":
            return super().releases
        return (*super().releases, Release(stage="combine", slot=CENTER, kind=StyleDistribution))

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Step 1; with `center="own"` also each participant's own released Phi_n, for eqs. (4) and (5)."""
        inboxes, server = super().combine(shared, server=server, clock=clock, rng=rng)
        if self.center == "received" or self.shares == "never":
            return inboxes, server
        return {name: {**inboxes.get(name, {}), CENTER: sent[DISTRIBUTION]} for name, sent in shared.items()}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Algorithm 1, stage 2, per record. Raises UsageError for a prior of another number of classes."""
        if self.prior and len(self.prior) != model.blueprint.classes:
            raise UsageError(
                f"the prior has {len(self.prior)} shares, but the model {model.blueprint.classes} classes."
            )
        laws = self.new_styles(inbox, state) if self.style else None
        center = self.exploration_center(inbox, laws) if self.style else None
        if center is not None:
            center = center[0].to(model.blueprint.device), center[1].to(model.blueprint.device)
        return PerRecordLearning(
            method=self, laws=laws, center=center,
            shifting=clock.round >= self.shift_from, rng=child(rng, "stablefdg"),
            negative_stds=state.get(NEGATIVE_STDS, torch.zeros(2, dtype=torch.int64)),
        )  # fmt: skip

    def exploration_center(self, inbox: Inbox, laws: StyleLaws | None) -> Style | None:
        """The released mu_n of eqs. (4) and (5), or the mean of the received ones; None if nothing was received.

        Raises TypeError for an artifact of another kind."""
        if self.center == "received":
            return None if laws is None else (_as_map(laws.mean.mean(0)), _as_map(laws.std.mean(0)))
        released = inbox.get(CENTER)
        if released is None:
            return None
        if not isinstance(released, StyleDistribution):
            raise TypeError(f"stablefdg-dp explores about a StyleDistribution; received a {released.kind}.")
        return _as_map(released.mean), _as_map(released.std)

    def weight(self, labels: Tensor) -> Tensor:
        """Each record's weight, (B,): 1 / (classes x its class's public share), at most `heaviest`."""
        if not self.prior:
            return torch.ones(len(labels), device=labels.device)
        shares = torch.tensor(self.prior, device=labels.device)
        return (1 / (len(self.prior) * shares)).clamp_max(self.heaviest)[labels]


def _as_map(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PerRecordLearning:
    """The objective of one client in one round; `laws` and `center` are the received ones, None if there are none.

    `negative_stds` is the counter in the client's state, updated in place; it is never sent."""

    method: StableFDGDP
    laws: StyleLaws | None
    center: Style | None
    shifting: bool
    negative_stds: Tensor
    rng: torch.Generator
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The weighted -log p(label) of each record, (B,)."""
        idle = self.laws is None and self.center is None
        between: StageHooks = {} if idle else {self.method.stage: self.apply_steps}
        maps = model.maps(batch.images, between=between)
        if isinstance(model, HighlightedClassifier):
            seen = model.highlighted(maps, model.highlighter.queries(maps))
        else:
            seen = cast(Tensor, model.neck(maps))
        logits = cast(Tensor, model.head(seen)).float()
        return self.method.weight(batch.labels) * functional.cross_entropy(logits, batch.labels, reduction="none")

    def apply_steps(self, maps: Tensor) -> Tensor:
        """Steps 2, 4 and 5 on maps (B, C, H, W): one AdaIN to each map's final style; maps without any step are
        unchanged.

        Statistics pass gradients as in steps 3 to 5. Raises ArtifactError where channels differ."""
        method = self.method
        source = maps.detach() if method.gradient == "none" else maps
        own = instance_statistics(source, eps=method.eps, unbiased=method.unbiased)
        style = own if method.gradient == "all" else (own[0].detach(), own[1].detach())
        chances = (method.probability / 2, method.probability, 0.5)
        shifted, enriched, explored_if_enriched = self._bernoulli(maps, chances)
        exploring = enriched & explored_if_enriched
        touched = torch.zeros_like(enriched)
        if self.laws is not None and self.shifting:  # step 2
            style = _where(shifted, self._draw_received(self.laws, style), style)
            touched = touched | shifted
        if self.center is not None:  # step 4
            style = _where(exploring, self._explore(self.center, style, exploring), style)
            touched = touched | exploring
        if self.laws is not None and method.mix_alpha is not None:  # step 5
            style = _where(enriched, self._mix(self.laws, style, method.mix_alpha), style)
            touched = touched | enriched
        new = apply_style(maps, *own, new_mean=style[0], new_std=style[1])
        return torch.where(touched, new, maps)

    def _bernoulli(self, maps: Tensor, chances: Sequence[float]) -> Sequence[Tensor]:
        """Draw True with each of `chances` for each record, (B, 1, 1, 1) bool."""
        drawn = [torch.rand(len(maps), 1, 1, 1, generator=self.rng) < chance for chance in chances]
        return to_device(torch.stack(drawn), maps.device).unbind()

    def _draw_received(self, laws: StyleLaws, like: Style) -> Style:
        """Draw a style for each record from the received distributions."""
        count, channels = like[0].shape[:2]
        self._check(laws.mean.shape[1], channels)
        return laws.drawn(count, self.rng, like=like[0])

    def _explore(self, center: Style, style: Style, exploring: Tensor) -> Style:
        """Eqs. (4) and (5); counts negative stds of the records that are `exploring`."""
        self._check(center[0].shape[1], style[0].shape[1])
        mean, std = (
            explored(each, middle.to(each), level=self.method.exploration)
            for each, middle in zip(style, center, strict=True)
        )
        count_negative(self.negative_stds, exploring & (std < 0), exploring.sum() * std.shape[1])
        return mean, std.clamp_min(0) if self.method.clamp_explored else std

    def _mix(self, laws: StyleLaws, style: Style, alpha: float) -> Style:
        """Step 5: lambda s + (1 - lambda) s', s' from the received distributions, lambda ~ Beta(alpha, alpha)."""
        drawn = dirichlet(len(style[0]), 2, alpha, self.rng)[:, 0].to(style[0].dtype)
        lam = to_device(drawn, style[0].device).view(-1, 1, 1, 1)
        other = self._draw_received(laws, style)
        return torch.lerp(other[0], style[0], lam), torch.lerp(other[1], style[1], lam)

    def _check(self, received: int, channels: int) -> None:
        if received != channels:
            raise ArtifactError(
                f"a StyleDistribution of {channels} channels is expected at {self.method.stage}; got {received}."
            )


def _where(chosen: Tensor, style: Style, other: Style) -> Style:
    return torch.where(chosen, style[0], other[0]), torch.where(chosen, style[1], other[1])
