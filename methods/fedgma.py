"""FedGMA: gradient masked averaging for federated learning.

Tenison, Sreeramadas, Mugunthan, Oyallon, Rish & Belilovsky, TMLR 2023, https://arxiv.org/abs/2201.11986. Clients train
as in FedAvg; the server averages their changes Delta_i and multiplies each coordinate by a mask that is 1 where the
signs of the changes agree (agreement A = |mean_i sign Delta_i| of at least tau) and A where they do not. Extends
methods/fedavg.py; any local objective fits.

Shares: what FedAvg shares.
Differs from the paper: what is not a parameter (batch-norm's running statistics) is averaged, unmasked. `released=True`
is the mask that the benchmark code used by FISC's authors actually computes: 1 + A where the signs agree and 0 where
they do not, because "0 - mask" gives "+ mask" there, over the running statistics too; its results are no
reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import ServerNeeds, State, Update
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import UsageError


def agreement(changes: Sequence[Tensor]) -> Tensor:
    """A = |mean_i sign(Delta_i)| in [0, 1], unweighted over clients; float64, of the changes' shape."""
    votes = torch.zeros_like(changes[0], dtype=torch.float64)
    for change in changes:
        votes += change.sign()
    return (votes / len(changes)).abs()


def mask(agreed: Tensor, *, tau: float, released: bool = False) -> Tensor:
    """1 where `agreed` >= tau and `agreed` elsewhere; with `released` 1 + `agreed` and 0."""
    accepted = agreed >= tau
    if released:
        return torch.where(accepted, 1 + agreed, 0.0)
    return torch.where(accepted, 1.0, agreed)


@dataclass(frozen=True, kw_only=True)
class FedGMA(FedAvg):
    """FedGMA; coordinates with an agreement of at least `tau` are not masked; `server_step` is eta."""

    tau: float = 0.4
    server_step: float = 1.0
    released: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.tau <= 1 or self.server_step <= 0:
            raise UsageError(
                f"fedgma needs tau in [0, 1] and server_step above 0; got {self.tau} and {self.server_step}."
            )

    @property
    def server_needs(self) -> ServerNeeds:
        """Individual model changes, without names."""
        return ServerNeeds(uploads="unnamed", because="signs of single clients' changes vote")

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """theta + eta mask(A) sum_i (n_i / n) (theta_i - theta)."""
        total = sum(update.weight for update in updates.values())
        weights = [update.weight / total for update in updates.values()]
        states = [update.artifacts["model"].tensors() for update in updates.values()]
        mean, server = super().aggregate(updates, scores=scores, model=model, server=server)
        made = dict(mean.state.state)
        parameters = model.parameter_names()
        for name, before in model.state.state.items():
            if before.is_floating_point() and (self.released or name in parameters):
                made[name] = self.stepped(before, [state[name] for state in states], weights)
        return model.with_state(made), server

    def stepped(self, before: Tensor, after: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Move one tensor by its masked mean change, computed in float64."""
        changes = [value.double() - before.double() for value in after]
        mean = torch.zeros_like(before, dtype=torch.float64)
        for weight, change in zip(weights, changes, strict=True):
            mean += weight * change
        masked = mask(agreement(changes), tau=self.tau, released=self.released) * mean
        return (before.double() + self.server_step * masked).to(before.dtype)
