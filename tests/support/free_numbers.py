"""Defenses that let numbers beside an update go at no cost: the loss of a training, or how many images there are."""

from dataclasses import dataclass
from typing import Any

import torch

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import NUMBERS
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import DPSGDWith
from tests.support.misstated_trainings import every_entry


@dataclass(frozen=True, kw_only=True, eq=False)
class TellingItsLoss(PrivateTrainer):
    """Returns the mean loss after training, as most training loops do."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, objective, plan = given[:4]
        found = super().__call__(*given, **named)
        with torch.no_grad():
            return {**found, "loss": float(objective(every_entry(data, plan), model).mean())}


@dataclass(frozen=True, kw_only=True, eq=False)
class TellingOfItsModel(PrivateTrainer):
    """Returns a number that is made of the noisy model: how far the last vector has moved, in units of the rate."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, plan = given[0], given[3]
        before = model.head.bias.detach().clone()
        found = super().__call__(*given, **named)
        return {**found, "moved": float((model.head.bias.detach() - before).sum() / plan.learning_rate)}


@dataclass(frozen=True, kw_only=True)
class NumbersForFree(DPSGDWith):
    """Takes all that leaves beside the model for post-processing."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        trained = outgoing.sender.trained
        if outgoing.stage != "update" or not trained:
            return None
        return Protected(artifact=outgoing.artifact, uses=trained if isinstance(outgoing.artifact, ModelState) else ())


@dataclass(frozen=True, kw_only=True)
class UpdatesWithTheirNumbers(DPFedAvg):
    """Lets losses and sizes go as they are, or sizes `alone`."""

    alone: bool = False

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.stage == "update" and outgoing.name == NUMBERS and not (self.alone and outgoing.metrics):
            return Protected(artifact=outgoing.artifact, uses=())
        return super().on_message(outgoing, rng)
