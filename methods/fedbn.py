"""FedBN: federated learning on non-IID features via local batch normalization.

Li, Jiang, Zhang, Kamp & Dou, ICLR 2021, https://arxiv.org/abs/2102.07623. Clients keep the parameters and the
statistics of their batch-norm layers, the server averages the rest. Extends methods/fedavg.py.

Shares: the model without its batch-norm layers. The paper tests on the clients' own domains; for a domain that no
client has, batch norm must come from elsewhere. With `unseen="average"` (as in CCST's code) every client also sends
its batch-norm entries in every round, as a second artifact "norm", and the server puts their average into the global
model, which is sent back whole: clients with batch norm of their own ignore that part. FedBN then shares everything
that FedAvg does, and only what a client trains from differs. With `unseen="initial"` batch norm never leaves a client
and the global model keeps the entries it started with, untrained, with which it is also tested.
Differs from the paper: a client that first takes part after round 0 starts from the batch norm of the model it
receives. Validation (`select="validation"`) evaluates the global model, which is also the tested one. A network without
batch norm (`--norm group`, SqueezeNet) is refused, because nothing would be local and the run would equal FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Aggregation, Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.fedavg import KEPT, FedAvg, WeightedMean
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.runtime.errors import UsageError


def norm_entries(network: nn.Module, *, by: Literal["type", "bn-substring"] = "type") -> frozenset[str]:
    """Name the state entries of batch-norm layers: weight, bias, running statistics and counter.

    "bn-substring" takes entries with `bn` in their name: CCST's code, which misses those of ResNet's downsampling."""
    if by == "bn-substring":
        return frozenset(name for name in network.state_dict() if "bn" in name)
    return frozenset(
        f"{name}.{entry}"
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for entry in module.state_dict()
    )


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """FedBN; `unseen` selects the batch norm of the tested model, `released` the way CCST's code finds the layers."""

    unseen: Literal["average", "initial"] = "average"
    released: Literal["", "bn-substring"] = ""

    @property
    def releases(self) -> Sequence[Release]:
        """The model, and with `unseen="average"` its batch norm as a second artifact."""
        if self.unseen == "initial":
            return super().releases
        return (*super().releases, Release(stage="update", slot="norm", kind=ModelState))

    @property
    def server_needs(self) -> ServerNeeds:
        """The means of all uploads."""
        return super().server_needs

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """The batch-norm entries."""
        return norm_entries(network, by=self.released or "type")

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The plain classifier. Raises UsageError if it has no batch-norm layer."""
        changed = super().remodel(network, rng)
        if not self.kept_entries(changed):
            found = "an entry named bn" if self.released else "a batch-norm layer"
            raise UsageError(
                f"fedbn keeps batch norm local, but {network.backbone} (norm {network.norm}) has not {found}; "
                f"use --norm batch and a backbone that has, or --method fedavg."
            )
        return changed

    def results(
        self,
        client: Client,
        network: Classifier,
        data: TrainingSet,
        *,
        inbox: Inbox,
        state: State,
        clock: Clock,
        rng: torch.Generator,
    ) -> tuple[Inbox, State]:
        """Send the model without batch norm, and with `unseen="average"` batch norm as a second artifact."""
        sent, state = super().results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        if self.unseen == "initial":
            return sent, state
        norm = {name: state[KEPT + name] for name in sorted(self.kept_entries(network))}
        return {**sent, "norm": ModelState(state=norm)}, state

    def aggregation(self, *, model: GlobalModel, server: State) -> Aggregation:
        """Average all sent entries; the others are unchanged."""
        slots = ("model",) if self.unseen == "initial" else ("model", "norm")
        return WeightedMean(model=model, server=server, slots=slots)
