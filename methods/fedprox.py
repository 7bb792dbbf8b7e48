"""FedProx: federated optimization in heterogeneous networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, MLSys 2020, https://arxiv.org/abs/1812.06127. A client minimizes h_k(w;
w_t) = F_k(w) + mu/2 ||w - w_t||^2 around the model w_t that it received. Extends methods/fedavg.py.

Shares: what FedAvg shares.
Differs from the paper: every client does the same work (gamma is not varied), and clients are drawn uniformly and
averaged by size, as in FedAvg. The term may be added to another method's local objective (`local`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True)
class Proximal:
    """`inner` plus mu/2 ||w - w_t||^2 over the trained parameters; the term is added to each record's loss.

    `anchor` is w_t by parameter name, on the network's device."""

    inner: Objective
    anchor: Mapping[str, Tensor]
    mu: float

    @property
    def couples_records(self) -> bool:
        """As `inner`: the proximal term does not depend on records."""
        return self.inner.couples_records

    @property
    def reads_no_pixels(self) -> bool:
        """As `inner`; a subclass must declare it again."""
        return type(self) is Proximal and getattr(self.inner, "reads_no_pixels", False)

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return h_k(w; w_t) per record, (B,)."""
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        squares = torch.stack([(value - self.anchor[name]).square().sum() for name, value in trained.items()])
        return self.inner(batch, model) + self.mu / 2 * squares.sum()


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx with its constant mu; `released` omits the term in round 0, as CCST's code does.

    That code also skips the first step of each local epoch, which changes nothing in its one epoch (there w = w_t)."""

    keeps_local: ClassVar[bool] = True
    mu: float = 0.01
    released: bool = False

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise UsageError(f"fedprox needs mu >= 0; got {self.mu}.")

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The local objective plus the proximal term."""
        inner = super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if self.mu == 0 or (self.released and clock.round == 0):
            return inner
        anchor = {name: value.to(model.blueprint.device) for name, value in model.state.state.items()}
        return Proximal(inner, anchor, self.mu)
