"""Step 1 of StableFDG: clients send the distribution of their styles and receive those of other clients.

Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227, section 3.1, step 1 (eqs. 1 to 3), and appendix E.1.
Extends methods/fedavg.py. methods/stablefdg.py extends this file and lists what is shared and the deviations from the
paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, StyleDistribution
from fdgsec.federation.early_layer_encoder import introduced_layers
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.released_statistics import StyleDistributions
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.feature_styles import StyleLaws, batch_styles
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.nn.training.batches import TrainingSet, batches_in_order, epoch_of_batches
from fdgsec.nn.training.precision import precision_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

STAGES = ("stem", "stage1", "stage2", "stage3", "stage4")
PHI = ("mean", "std", "mean_spread", "std_spread")  # eq. (3)
DISTRIBUTION = "distribution"
OWN_VARIANCES = "own_variances"


@dataclass(frozen=True, kw_only=True)
class StyleSharing(FedAvg):
    """FedAvg whose participants exchange style distributions before they train, without using them.

    Statistics are taken at the end of `stage`, in evaluation mode on plain images unless `statistics_training_mode` and
    `statistics_augmented` say otherwise; `spread` is sent of them. Each participant gets the distributions of
    `received` others, random ones or the farthest (`sharing`). Without `style` nothing is sent."""

    style: bool = True
    unbiased: bool = True
    eps: float = 1e-6
    stage: str = "stage1"
    spread: Literal["variance", "std"] = "variance"
    statistics_training_mode: bool = False
    statistics_augmented: bool = False
    received: int = 1
    sharing: Literal["random", "farthest"] = "random"
    shift_law: Literal["normal", "printed"] = "normal"

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise UsageError(f"stablefdg acts at {', '.join(STAGES)}; got stage = {self.stage!r}.")
        if self.received < 0 or self.eps <= 0:
            raise UsageError(f"stablefdg needs received of at least 0, and eps > 0; got {self.received}, {self.eps}.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Style distributions, every round, if any are to be received."""
        return "every" if self.style and self.received else "never"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: each client's distribution of maps after `stage` up, those of others down."""
        if self.shares == "never":
            return super().releases
        statistic = StyleDistributions(unbiased=self.unbiased, eps=self.eps, released=self.spread == "std")
        up = Release(stage="share", slot=DISTRIBUTION, kind=StyleDistribution, statistic=statistic, layers=self.stage)
        return (*super().releases, up, Release(stage="combine", slot=f"{DISTRIBUTION}.*", kind=StyleDistribution))

    @property
    def server_needs(self) -> ServerNeeds:
        """The sender of each distribution, if any are shared."""
        if self.shares == "never":
            return super().server_needs
        return ServerNeeds(uploads="named", because="each client receives another one's styles, never its own")

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Step 1: send Phi_n, center and spread of the client's image styles under the current model (eqs. 2 and 3).

        Raises UsageError for a client without images, or without a received model."""
        if self.shares == "never":
            return {}, state
        if model is None:
            raise UsageError(
                "stablefdg shares styles of the current model, and got none; give the run a model, or set received "
                "to 0."
            )
        if not len(client.data):
            raise UsageError(f"{client.name} has no images; a style needs at least one. Use fewer clients.")
        mean, std = self.image_styles(client, model, rng)
        if self.shift_law == "printed":
            own = torch.stack([mean.var(0, correction=0), std.var(0, correction=0)]).float()
            state = {**state, OWN_VARIANCES: own}
        return {DISTRIBUTION: self.distribution(mean, std)}, state

    def image_styles(self, client: Client, model: GlobalModel, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """mu(s_i) and sigma(s_i) of each image's maps at the end of `stage` (eq. 1), two (n, C) float64.

        Later stages are not run. Computed in float32 on every device. If these layers are registered as an encoder
        (`introduced_layers`), its cached statistics are used."""
        alone = not (self.statistics_training_mode or self.statistics_augmented)
        encoder = introduced_layers(model, stage=self.stage) if alone else None
        if encoder is not None:
            return statistics(encoder, client.data).style(unbiased=self.unbiased, eps=self.eps)
        network = model.module().train(self.statistics_training_mode)
        device = network.head.weight.device
        layout = precision_of(device, network.backbone).layout
        if self.statistics_augmented:
            dealt = epoch_of_batches(TrainingSet.of(client.data), self.plan, rng, device=device, layout=layout)
        else:
            dealt = batches_in_order(client.data, self.plan.batch_size, device=device, layout=layout)
        return batch_styles(network, dealt, stage=self.stage, eps=self.eps, unbiased=self.unbiased)

    def distribution(self, mean: Tensor, std: Tensor) -> StyleDistribution:
        """Phi_n of eq. (3) for image styles (n, C): averages, and variances about them (eq. 2).

        With `spread="std"` the latter are sqrt(variance + eps) with n - 1 in the denominator, as released."""
        correction = 1 if self.spread == "std" and len(mean) > 1 else 0
        spreads = [values.var(0, correction=correction) for values in (mean, std)]
        if self.spread == "std":
            spreads = [(variance + self.eps).sqrt() for variance in spreads]
        return StyleDistribution(
            mean=mean.mean(0).float(), std=std.mean(0).float(),
            mean_spread=spreads[0].float(), std_spread=spreads[1].float(),
        )  # fmt: skip

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Step 1: send each participant the distributions of `received` others, as `_senders` assigns them.

        With fewer participants each receives those of all others; a single one receives nothing."""
        if self.shares == "never" or len(shared) < 2:
            return {}, server
        sent = [inbox[DISTRIBUTION] for inbox in shared.values()]
        received = zip(shared, self._senders(sent, rng).tolist(), strict=True)
        return {
            name: {f"{DISTRIBUTION}.{turn}": sent[giver] for turn, giver in enumerate(givers)}
            for name, givers in received
        }, server

    def _senders(self, sent: Sequence[Artifact], rng: SecretStream) -> Tensor:
        """The senders for each participant, (participants, min(`received`, participants - 1)).

        With random sharing each column is a permutation without fixed points."""
        turns = min(self.received, len(sent) - 1)
        if self.sharing == "farthest":  # appendix E.1
            vectors = torch.stack([torch.cat(list(phi.tensors().values())) for phi in sent]).double()
            return torch.cdist(vectors, vectors).fill_diagonal_(-1).topk(turns, dim=1).indices
        steps = [rng.derangement(len(sent))]  # one cycle through all, longer than `turns`
        while len(steps) < turns:
            steps.append(steps[0][steps[-1]])
        return torch.stack(steps, 1)

    def new_styles(self, inbox: Inbox, state: State) -> StyleLaws | None:
        """The distributions of new styles in step 2 from the received ones, or None if there are none.

        Raises TypeError for an artifact of another kind."""
        received = [inbox[slot] for slot in sorted(inbox) if slot.startswith(DISTRIBUTION)]
        if not received:
            return None
        phis = [phi for phi in received if isinstance(phi, StyleDistribution)]
        if len(phis) < len(received):
            kinds = ", ".join(artifact.kind for artifact in received)
            raise TypeError(f"stablefdg shifts to a StyleDistribution; received {kinds}.")
        vectors = [torch.stack([phi.tensors()[name] for phi in phis]) for name in PHI]
        spreads = torch.stack(vectors[2:])
        scales = spreads.sqrt() if self.spread == "variance" else spreads
        if self.shift_law == "printed":  # eps Sigma_n'(.) with eps ~ N(0, Sigma_n(.)), n being the receiver
            scales = scales.square() * state[OWN_VARIANCES].sqrt().unsqueeze(1)
        return StyleLaws(mean=vectors[0], std=vectors[1], mean_scale=scales[0], std_scale=scales[1])
