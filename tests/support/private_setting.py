"""A tiny network, sixteen images of noise and DP-SGD in short, for tests of the private loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream

PLAN = TrainingPlan(batch_size=8, epochs=1, learning_rate=0.1, crop=None, flip=0.0)
WHOLE = replace(PLAN, batch_size=64, epochs=3)  # q = 1


def secret(number: int = 0) -> SecretStream:
    return simulated_stream(number, "test")


def world() -> torch.Generator:
    return stream(0, "world", "test")


def network(norm: str = "group") -> Classifier:
    return build_classifier("tiny", 3, norm="batch" if norm == "batch" else "group", rng=stream(0, "world", "network"))


def data(count: int = 16) -> TrainingSet:
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "world", "images"))
    return TrainingSet(images=images, labels=torch.arange(count) % 3)


def trainer(
    *, noise: float = 0.0, bound: float = math.inf, number: int = 0, most: int | None = None, probes: int = 0
) -> PrivateTrainer:
    return PrivateTrainer(
        noise_multiplier=noise, max_grad_norm=bound, secret=secret(number), max_physical_batch=most, probes=probes
    )


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(
    how: PrivateTrainer, given: TrainingSet, plan: TrainingPlan = PLAN, objective: Objective | None = None
) -> Tensor:  # fmt: skip
    model = network()
    how(model, given, objective or CrossEntropy(), plan, world())
    return weights(model)


@dataclass(frozen=True, eq=False)
class Made:
    """An objective out of a function."""

    loss: Callable[[Batch, Classifier], Tensor]
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        return self.loss(batch, model)
