"""Private trainers that are sound with plain steps alone."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fdgsec.nn.training.training_plan import optimizer_of
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.misstated_costs import in_each, noisy_tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class WithNoiseAfterTheStep(PrivateTrainer):
    """Steps on clipped sums, and adds the noise to the weights: the learning rate times that of a mean gradient."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        model, data, _, plan = given[:4]
        optimizer = named.pop("optimizer", None) or optimizer_of(model.parameters(), plan)
        plain, pending = optimizer.step, list[Tensor]()
        records = len(data) if data.owners is None else len(data.owners.unique())

        def kept(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            pending.append(noise * secret.normal(*total.shape).to(total))
            return total

        def stepped(*more: Any) -> None:
            plain(*more)
            with torch.no_grad():
                trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
                for weights, noise in zip(trained, pending, strict=True):
                    weights -= plan.learning_rate * noise / min(plan.batch_size, records)
            pending.clear()

        with patch.object(optimizer, "step", stepped), patch.object(dp_sgd, "noisy", in_each(kept)):
            return super().__call__(*given, optimizer=optimizer, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithSignsOfGradients(PrivateTrainer):
    """Steps on the signs of noisy gradients."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        with patch.object(
            dp_sgd, "noisy", in_each(lambda total, noise, secret: noisy_tensor(total, noise, secret).sign())
        ):
            return super().__call__(*given, **named)
