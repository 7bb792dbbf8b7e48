"""The training loop, and predictions of a trained model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.dropout import seed_dropout
from fdgsec.nn.training.batches import Batch, TrainingSet, epoch_of_batches
from fdgsec.nn.training.frozen_maps import can_take_outputs, outputs_of, through_frozen
from fdgsec.nn.training.precision import Precision, autocast, precision_of
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.runtime.random_streams import child


class Objective(Protocol):
    """Per-record losses, (B,) or more where the objective adds records of its own.

    `couples_records` is True where one record's loss depends on another record. An objective that does nothing with
    images but call the network on them (`model` or `model.features`) may say so by an attribute `reads_no_pixels`
    (fdgsec/nn/training/frozen_maps.py)."""

    @property
    def couples_records(self) -> bool:
        """Tell whether DP-SGD must refuse the objective."""
        ...

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Compute the losses."""
        ...


class Trainer(Protocol):
    """A training loop: `epochs`, or a defense's replacement of it."""

    def __call__(
        self,
        model: Classifier,
        data: TrainingSet,
        objective: Objective,
        plan: TrainingPlan,
        rng: torch.Generator,
        *,
        round: int = 0,
        rounds: int = 1,
        beside: Iterable[nn.Parameter] = (),
        optimizer: torch.optim.Optimizer | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> dict[str, float]:
        """Train `model` in place and give metrics, which go to the server."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Per-record cross-entropy."""

    couples_records: bool = False

    @property
    def reads_no_pixels(self) -> bool:
        """True for this class itself; a subclass must declare it again."""
        return type(self) is CrossEntropy

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Compute -log p(label), (B,)."""
        return functional.cross_entropy(model(batch.images).float(), batch.labels, reduction="none")


def prepare_training(
    model: Classifier, plan: TrainingPlan, rng: torch.Generator | None = None
) -> tuple[torch.device, Precision]:
    """Put `model` into training mode and its fastest layout; give its device and precision.

    Its dropout draws from a child of `rng`, without one it does nothing."""
    device = next(model.parameters()).device
    precision = precision_of(device, model.backbone, wanted=plan.precision)
    model.to(memory_format=precision.layout)
    model.train()
    if rng is not None:
        seed_dropout(model, child(rng, "dropout"))
    if plan.frozen != "none":
        model.freeze(plan.frozen, brain=precision.frozen == "bfloat16")
    if plan.freeze_norm:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    return device, precision


def optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor, plan: TrainingPlan) -> None:
    """Take one optimizer step on `loss`, with the plan's bound on the gradient's norm.

    Only the optimizer's parameters get a gradient: frozen layers and images are left out of the backward pass."""
    trained = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=trained)
    if plan.clip_norm is not None:
        nn.utils.clip_grad_norm_(trained, plan.clip_norm)
    optimizer.step()


def epochs(
    model: Classifier,
    data: TrainingSet,
    objective: Objective,
    plan: TrainingPlan,
    rng: torch.Generator,
    *,
    round: int = 0,
    rounds: int = 1,
    beside: Iterable[nn.Parameter] = (),
    optimizer: torch.optim.Optimizer | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """Train `model` in place and give {"loss": mean, "steps": count}.

    `round` of `rounds` sets the learning rate by the schedule; `beside` are an objective's own parameters, trained by
    the same optimizer; a given `optimizer` continues from its state. Raises UsageError for an empty set."""
    device, precision = prepare_training(model, plan, rng)
    optimizer = optimizer or optimizer_of([*model.parameters(), *beside], plan)
    total, seen, step, epoch = torch.zeros((), device=device), 0, 0, 0
    with through_frozen(model, data, objective, plan, precision=precision, first=round == 0) as given:
        given = given.on(device)
        while step < plan.steps if plan.steps is not None else epoch < plan.epochs:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(round=round, rounds=rounds, epoch=epoch)
            for batch in epoch_of_batches(given, plan, rng, device=device, layout=precision.layout):
                with autocast(device, precision):
                    losses = objective(batch, model)
                optimizer_step(optimizer, losses.mean(), plan)
                total, seen, step = total + losses.detach().sum(), seen + len(losses), step + 1
                if on_step is not None:
                    on_step(step, float(losses.detach().mean()))
                if plan.steps is not None and step >= plan.steps:
                    break
            epoch += 1
    return {"loss": float(total) / max(seen, 1), "steps": float(step)}


def predictions(model: Classifier, images: Tensor, *, batch_size: int = 128, frozen: str = "none") -> Tensor:
    """Predict the class of each uint8 image, (n,) int64, on the CPU; arguments as for `logits`."""
    return logits(model, images, batch_size=batch_size, frozen=frozen).argmax(1)


def logits(model: Classifier, images: Tensor, *, batch_size: int = 128, frozen: str = "none") -> Tensor:
    """Compute the logits of uint8 images, (n, classes) float32, on the CPU; `model` is left in evaluation mode.

    Always in float32, because peers and attacks compare losses of single images. What the parts up to `frozen` make of
    the images may be recalled from the cache."""
    device = next(model.parameters()).device
    precision = replace(precision_of(device, model.backbone), frozen="float32")
    model.to(memory_format=precision.layout)  # outside inference mode, or its parameters could not be trained again
    model.eval()
    if can_take_outputs(model, frozen, images):
        outputs = outputs_of(model, images, frozen, precision)
        with model.taking_outputs(frozen, outputs.shape[1:]):
            return _logits(model, outputs, batch_size, device, precision)
    return _logits(model, images, batch_size, device, precision)


def _logits(model: Classifier, images: Tensor, batch_size: int, device: torch.device, precision: Precision) -> Tensor:
    parts = []
    with torch.inference_mode():
        for chunk in images.split(batch_size):
            given = model(as_float(chunk.to(device)).contiguous(memory_format=precision.layout))
            parts.append(given.float().cpu())
    return torch.cat(parts) if parts else torch.zeros(0, model.classes)
