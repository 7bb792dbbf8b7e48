"""The training plan of a client: optimizer, length, schedule and augmentation."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fdgsec.nn.training.precision import WantedPrecision
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The optimizer, length, schedule and augmentation of a client's training.

    `epochs` passes over the data, or exactly `steps` steps where that is set. `schedule` lowers the learning rate over
    the whole run: "cosine" per round, "cosine-epoch" per local epoch, "step" by `decay` every `decay_every` rounds.
    `crop` is the area range of a random resized crop (None: no crop), `translate` the probability of a random
    translation (enlarge by 1/8, crop the old size), `flip` that of a horizontal flip. `clip_norm` bounds the gradient's
    norm; `freeze_norm` keeps batch-norm layers in evaluation mode while everything else trains. `frozen` is the last
    part of the body that is not trained at all, nor those before it ("stem", "stage1", ..., "stage4"); "none" trains
    everything. `precision` is the number format: that of the table in fdgsec/nn/training/precision.py, or float32 or
    bfloat16 on every processor."""

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "cosine-epoch", "step"] = "constant"
    decay: float = 0.1
    decay_every: int = 20
    crop: tuple[float, float] | None = (0.8, 1.0)
    translate: float = 0.0
    flip: float = 0.5
    clip_norm: float | None = None
    freeze_norm: bool = False
    frozen: Literal["none", "stem", "stage1", "stage2", "stage3", "stage4"] = "none"
    precision: WantedPrecision = "table"

    def __post_init__(self) -> None:
        counts = (self.epochs, self.batch_size, self.decay_every, 1 if self.steps is None else self.steps)
        rates = (self.learning_rate, self.momentum, self.weight_decay, self.decay, self.clip_norm or 1.0)
        if not all(map(math.isfinite, rates)):
            named = ("learning_rate", "momentum", "weight_decay", "decay", "clip_norm")
            wrong = next(name for name, rate in zip(named, rates, strict=True) if not math.isfinite(rate))
            raise UsageError(f"a plan needs finite numbers; got {wrong} = {getattr(self, wrong)}.")
        if min(counts) < 1 or self.learning_rate <= 0:
            counted = {name: getattr(self, name) for name in ("epochs", "batch_size", "decay_every", "steps")}
            wrong = next((name for name, count in counted.items() if count is not None and count < 1), "learning_rate")
            got = f"{wrong} = {getattr(self, wrong)}"
            raise UsageError(f"a plan needs epochs, steps, batch size and learning rate above 0; got {got}.")
        if not 0 <= self.flip <= 1 or (self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1):
            raise UsageError(
                f"a plan needs crop = (low, high) with 0 < low <= high <= 1, and flip in [0, 1]; got {self.crop} and "
                f"{self.flip}."
            )
        if not 0 <= self.translate <= 1 or (self.clip_norm is not None and self.clip_norm <= 0):
            raise UsageError(
                f"a plan needs translate in [0, 1] and clip_norm above 0; got {self.translate} and {self.clip_norm}."
            )

    def rate(self, *, round: int, rounds: int, epoch: int = 0) -> float:
        """Compute the learning rate of local epoch `epoch` in round `round` of `rounds`, both counted from 0."""
        if self.schedule == "cosine":
            return self.learning_rate * _half_cosine(round, rounds)
        if self.schedule == "cosine-epoch":
            return self.learning_rate * _half_cosine(round * self.epochs + epoch, rounds * self.epochs)
        if self.schedule == "step":
            return float(self.learning_rate * self.decay ** (round // self.decay_every))
        return self.learning_rate

    def local_steps(self, images: int) -> int:
        """Count the steps of a client with `images` images in a round; a last batch of one record is skipped."""
        if self.steps is not None:
            return self.steps
        full, left = divmod(images, self.batch_size)
        return self.epochs * (full + (left > (1 if full else 0)))

    def one_step(self, records: int) -> "TrainingPlan":
        """Make the shortest plan with the same learning rate and weight decay: one plain SGD step on `records` images.

        The images are not augmented and form one batch."""
        return replace(
            self, steps=1, batch_size=records, optimizer="sgd", momentum=0.0, schedule="constant", crop=None,
            translate=0.0, flip=0.0, clip_norm=None,
        )  # fmt: skip


def _half_cosine(done: int, total: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(done / max(total, 1), 1.0)))


def optimizer_of(parameters: Iterable[nn.Parameter], plan: TrainingPlan) -> torch.optim.Optimizer:
    """Make the plan's optimizer for those `parameters` that require gradients, in one kernel where all are on a GPU."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    fused = True if trained and all(parameter.is_cuda for parameter in trained) else None  # None: torch's choice
    if plan.optimizer == "adam":
        return torch.optim.Adam(trained, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=fused)
    return torch.optim.SGD(
        trained, lr=plan.learning_rate, momentum=plan.momentum, weight_decay=plan.weight_decay, fused=fused
    )


def optimizer_memory(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Export an optimizer's state as named tensors ("optimizer.3.exp_avg"), for methods whose clients keep it."""
    entries = optimizer.state_dict()["state"]
    return {
        f"optimizer.{number}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for number, moments in entries.items()
        for name, value in moments.items()
        if value is not None
    }


def remember(optimizer: torch.optim.Optimizer, memory: Mapping[str, Tensor]) -> None:
    """Load the state that `optimizer_memory` exported; entries of `memory` with other names are ignored."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in memory.items():
        prefix, _, rest = key.partition(".")
        number, _, name = rest.partition(".")
        if prefix == "optimizer":
            state.setdefault(int(number), {})[name] = value.clone()
    if state:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
