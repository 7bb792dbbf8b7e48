"""DP-FedAvg: learning differentially private recurrent language models.

McMahan, Ramage, Talwar & Zhang, ICLR 2018, https://arxiv.org/abs/1710.06963. A client's update, Delta_i = model sent -
model received over all float parameters, is scaled to an L2 norm of at most S. Gaussian noise gives the sum of the
Delta_i a standard deviation of z S per parameter. All images of one client together change the sum by S at most, for
any objective or architecture: the privacy unit is the client.

Differs from the paper: participants are a fixed-size sample that the server draws and knows, so there is no
amplification by sampling (the paper's are Poisson and secret); weights are uniform, or min(n_i / cap, 1) applied by the
client itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifact_checks import LARGEST
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense import Outgoing, Protected, Sender
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import NUMBERS, Method
from fdgsec.federation.reply_slots import Slot
from fdgsec.federation.server_needs import needs_of
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import CLIENTS, Receipt, Upload
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.clipping import ROUNDING
from fdgsec.privacy.discrete_gaussian import lattice_gaussian
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.mechanisms import multiplier_per_release, noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import name_of
from fdgsec.runtime.secret_streams import SecretStream

SLOT = "model"
PUBLIC_WEIGHT = 1.0

_TRUST = {
    "local": (
        "every client noises its own message: the guarantee holds against the server, other clients and outsiders"
    ),
    "distributed": (
        "a single message has 1/sqrt(N) of the sum's standard deviation: only the sum reaches the multiplier, "
        "against a party that sees nothing but the sum (secure aggregation), where all N participants add their share; "
        "a participant knows its own share of the noise, and the epsilon against it is larger"
    ),
    "server": (
        "clients send clipped models without noise, the server is trusted to add it to their sum: the guarantee holds "
        "against other clients and readers of the final model who read no uploads, not against the server or an "
        "outsider on the links"
    ),
}
_AGAINST = {
    "distributed": "who sees sums alone",
    "server": "other clients and readers of the model, who read no uploads",
}


@dataclass(frozen=True, kw_only=True)
class DPFedAvg:
    """Clip a client's model update and add noise to it: differential privacy per client (McMahan et al. 2018).

    `clip` is S. The multiplier z is `noise_multiplier`, else the smallest for which all rounds together cost
    (`epsilon`, `delta`) between `neighbors`: a client is replaced by one that learned nothing ("zero-out", sensitivity
    S), or by any other client ("replace-one", 2 S). `trust` says who adds the noise, and so against whom the guarantee
    holds: "local" (each client z S to its own message), "distributed" (each z S / sqrt(N)), "server" (the server z S to
    the sum). `weight_cap` scales a client's update by min(n / cap, 1); the weight that it sends is 1. `buffers` refuses
    models that average over images in the forward pass (batch norm), or sends the received buffers back."""

    epsilon: float = 8.0
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clip: float = 1.0
    trust: Literal["local", "distributed", "server"] = "local"
    neighbors: Literal["zero-out", "replace-one"] = "zero-out"
    weight_cap: int | None = None
    buffers: Literal["refuse", "received"] = "refuse"

    @property
    def needs_everyone(self) -> bool:
        """With distributed noise, a missing client would leave too little noise in the sum."""
        return self.trust == "distributed"

    def __post_init__(self) -> None:
        if not 0 < self.clip <= LARGEST:
            raise UsageError(f"dp-fedavg.clip must be above 0 and at most {LARGEST:g}; got {self.clip}.")
        if self.noise_multiplier is not None and not 0 <= self.noise_multiplier < math.inf:
            raise UsageError(f"dp-fedavg.noise_multiplier must be finite and at least 0; got {self.noise_multiplier}.")
        if self.weight_cap is not None and self.weight_cap < 1:
            raise UsageError(f"dp-fedavg.weight_cap counts images, at least 1; got {self.weight_cap}.")
        noise_multiplier(self.epsilon, self.delta)  # raises for invalid values

    @property
    def mechanism_on(self) -> frozenset[str]:
        """Replaces what the update stage sends by a noisy function of the records."""
        return frozenset({f"update/{SLOT}", f"update/{NUMBERS}"})

    @property
    def assumptions(self) -> Sequence[str]:
        """The parties against whom the guarantee holds, and what is public."""
        lines = [
            _TRUST[self.trust],
            "who takes part in a round, and how many, is known: no amplification by sampling",
            "clip, noise and weights were fixed without looking at the clients' images",
            "the noise is a discrete Gaussian on a grid (Canonne et al. 2020), whose key the adversary lacks",
        ]
        if self.buffers == "received":
            lines.append("buffers (batch norm's running statistics) go back as received: they never learn")
        return lines

    @property
    def promise(self) -> PlannedGuarantee:
        """A guarantee per client, whoever adds the noise."""
        relations = frozenset(self._sensitivities())
        return PlannedGuarantee(
            by=f"dp-fedavg:neighbors={self.neighbors}", stage="update", unit="client", relations=relations
        )

    def check(self, method: Method) -> None:
        """Raise UsageError where the server needs numbers that this defense withholds."""
        below = method.base if isinstance(method, Stacked) else method
        read = ", ".join(sorted(needs_of(below).metrics))
        if method.reviews == "before" or read:
            kept = f"clients' numbers ({read})" if read else "clients' losses and sizes"
            raise UsageError(
                f"dp-fedavg keeps {kept}, by which the server of {name_of('methods', type(below))} weighs their "
                "models; use a method that averages (fedavg, ccst, stablefdg, fisc, fedalign, ...)."
            )

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Clip and noise the model of an update, and withhold its weight and metrics; other messages are not
        affected."""
        if outgoing.stage != "update":
            return None
        if outgoing.name == NUMBERS:
            return Protected(artifact=Scores(values=torch.tensor([PUBLIC_WEIGHT], dtype=torch.float64)), uses=())
        if outgoing.name != SLOT or type(outgoing.artifact) is not ModelState:
            return None
        sender = outgoing.sender
        if sender.model is None:
            raise UsageError(f"dp-fedavg needs the model that {sender.name} received; it received none.")
        received = sender.model.state.state
        names = self._parameters(sender.model, outgoing.artifact.state)
        noise = self.noise(sender)
        changes = self._clipped_change(outgoing.artifact.state, received, names)
        share = 1.0 if self.weight_cap is None else min(len(sender.client.data) / self.weight_cap, 1.0)
        state = {name: received[name] for name in outgoing.artifact.state}
        shared = {name: share * change for name, change in changes.items()}
        noisy = noisy_together(shared, noise, distance=self.clip, rng=rng)
        return Protected(artifact=ModelState(state=state | _moved(received, noisy)), uses=self._uses(noise))

    @property
    def keeps_shares_apart(self) -> bool:
        """True: the server changes models alone."""
        return True

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        """With a trusted server, replace every client's model by the noisy mean; record in the ledger what sums cost.

        The server clips every change itself: a client's float32 model may lie beyond S by rounding, or on purpose. Of
        a sum it adds the rounding to S. Any aggregate that the method computes from the models is then computed from
        their noisy mean, so its weights need no bound."""
        uploads = receipt.uploads
        first = uploads[0]
        if self.trust == "local" or first.stage != "update" or SLOT not in first.artifacts:
            return uploads
        bound = self.clip
        if self.trust == "server" and first.sender == CLIENTS:
            bound += self._rounding_of_sum(receipt)
        noise = self.multiplier(receipt.rounds) * bound
        if self.trust == "server" or first.sender == CLIENTS:
            uses = (Use(mechanism="gaussian", noise=noise, sensitivity=self._sensitivities(bound), unit="client"),)
            receipt.ledger.restate(first.round, stage=first.stage, slot=SLOT, uses=uses, against=_AGAINST[self.trust])
        if self.trust == "distributed":
            return uploads
        mean = self._noisy_mean(receipt, noise, bound=bound)
        return [replace(upload, artifacts={**upload.artifacts, SLOT: mean}) for upload in uploads]

    def _noisy_mean(self, receipt: Receipt, noise: float, *, bound: float) -> ModelState:
        model, clients = _model_of(receipt), _clients_of(receipt)
        senders, models = [one.sender for one in receipt.uploads], [one.artifacts[SLOT] for one in receipt.uploads]
        Slot(name=SLOT, senders=senders, artifacts=models, model=model.state).compare()
        received, sent = model.state.state, models[0].tensors()
        names = self._parameters(model, sent)
        changes = [self._clipped_change(one.tensors(), received, names) for one in models]
        means = {name: torch.stack([change[name] for change in changes]).mean(0) for name in names}
        noisy = noisy_together(means, noise / clients, distance=bound / clients, rng=receipt.rng)
        return ModelState(state={name: received[name] for name in sent} | _moved(received, noisy))

    def _rounding_of_sum(self, receipt: Receipt) -> float:
        """How much further than S one of N clients moves N times their mean, where messages and mean are rounded.

        Rounding to a parameter's dtype moves two neighbors apart by at most the step between numbers of its size: once
        in the client's message, and N times in N times the mean."""
        model = _model_of(receipt)
        received = model.state.state
        largest = [
            received[name].abs() + self.clip
            for name in self._parameters(model, receipt.uploads[0].artifacts[SLOT].tensors())
        ]
        steps = [(torch.nextafter(top, torch.full_like(top, math.inf)) - top).double() for top in largest]
        return (_clients_of(receipt) + 1) * math.sqrt(math.fsum(float(step.square().sum()) for step in steps))

    def multiplier(self, rounds: int) -> float:
        """z: the standard deviation of the noise on the sum divided by S, the same in each of `rounds` rounds."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        one = noise_multiplier(self.epsilon, self.delta) * self._sensitivities()[self.neighbors] / self.clip
        return multiplier_per_release(one, releases=max(rounds, 1))

    def noise(self, sender: Sender) -> float:
        """The standard deviation that a client adds to each parameter of its message."""
        if self.trust == "server":
            return 0.0
        own = self.multiplier(sender.clock.rounds) * self.clip
        return own / math.sqrt(len(sender.clock.participants)) if self.trust == "distributed" else own

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        """What a client's model changed of the received one, in float64, shortened to S."""
        return clipped({name: state[name].double() - received[name].double() for name in names}, self.clip)

    def _uses(self, noise: float) -> tuple[Use, ...] | None:
        """The privacy cost of one message to its client, against a reader of that message alone."""
        if self.trust == "server":
            return None
        return (Use(mechanism="gaussian", noise=noise, sensitivity=self._sensitivities(), unit="client"),)

    def _sensitivities(self, bound: float | None = None) -> Mapping[Relation, float]:
        """The sensitivity under `neighbors`, and under the relations that it implies, where a client moves at most
        `bound` (None: S).

        Add-remove is not among them: participation is visible, so that a client cannot join or leave unnoticed."""
        bound = self.clip if bound is None else bound
        return {"zero-out": bound} if self.neighbors == "zero-out" else {"zero-out": bound, "replace-one": 2 * bound}

    def _parameters(self, model: GlobalModel, sent: Mapping[str, Tensor]) -> list[str]:
        """The entries that are noised. Raises UsageError for buffers where they are refused, or foreign entries."""
        foreign = sorted(set(sent) - set(model.state.state))
        if foreign:
            raise UsageError(f"dp-fedavg was sent {foreign[0]!r}, which is not in the model that it was trained from.")
        parameters = model.parameter_names()
        kept = [name for name in sent if name not in parameters]
        if kept and self.buffers == "refuse":
            raise UsageError(
                f"dp-fedavg does not clip what a client's images do to {len(kept)} buffers ({min(kept)}, ...), "
                "averages over them; use --norm group, or dp-fedavg:buffers=received to send the received ones back."
            )
        return [name for name in sent if name in parameters and sent[name].is_floating_point()]


def _model_of(receipt: Receipt) -> GlobalModel:
    if receipt.model is None:
        raise UsageError("dp-fedavg:trust=server needs the model that clients received.")
    return receipt.model


def _clients_of(receipt: Receipt) -> int:
    """The number of clients that sent a model in this round, also where only their sum arrived."""
    first = receipt.uploads[0]
    return sum(
        (entry.round, entry.stage, entry.slot) == (first.round, first.stage, SLOT) for entry in receipt.ledger.entries
    )


def _moved(received: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The received parameters plus `changes`, in their dtype."""
    return {name: (received[name].double() + change).to(received[name].dtype) for name, change in changes.items()}


def clipped(changes: Mapping[str, Tensor], bound: float) -> dict[str, Tensor]:
    """Scale `changes` together so that the L2 norm over all of their numbers is at most `bound` ("flat clipping").

    Where a number or the norm is not finite, all changes become 0."""
    least = bound * (1 - ROUNDING)
    norm = math.sqrt(math.fsum(float(change.square().sum()) for change in changes.values()))
    if not math.isfinite(norm):
        return {name: torch.zeros_like(change) for name, change in changes.items()}
    if norm <= least:
        return dict(changes)
    return {name: change * (least / norm) for name, change in changes.items()}


def noisy_together(values: Mapping[str, Tensor], sd: float, *, distance: float, rng: SecretStream) -> dict[str, Tensor]:
    """Release all `values` as one vector with Gaussian noise of standard deviation `sd`, in float64.

    `distance` is the L2 sensitivity of the whole vector."""
    flat = torch.cat([value.double().flatten() for value in values.values()])
    parts = lattice_gaussian(flat, sd, distance=distance, rng=rng).split([value.numel() for value in values.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(values.items(), parts, strict=True)}
