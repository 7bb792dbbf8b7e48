"""The only training loop, and evaluation by domain."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.errors import UsageError
from fdgsec.models import Classifier


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a client trains: optimiser, length and augmentation.

    `epochs` passes over the data, or exactly `steps` steps where that is set; `crop` is the area range of a random
    resized crop (None: no crop), `flip` the probability of a mirror image."""

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 64
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    crop: tuple[float, float] | None = (0.8, 1.0)
    flip: float = 0.5

    def __post_init__(self) -> None:
        if (
            self.epochs < 1
            or self.batch_size < 1
            or self.learning_rate <= 0
            or (self.steps is not None and self.steps < 1)
        ):
            raise UsageError(f"a plan needs epochs, steps, batch size and learning rate above 0; got {self}.")
        if not 0 <= self.flip <= 1 or (self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1):
            raise UsageError(
                f"a plan needs crop = (low, high) with 0 < low <= high <= 1, and flip in [0, 1]; got {self}."
            )


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number format and memory layout of one network on one kind of device."""

    dtype: Literal["float32", "bfloat16"]
    channels_last: bool


# Measured offline with benchmarks/training_speed.py; never decided by a timing at run time (DESIGN 6.2).
PRECISION: Mapping[tuple[str, str], Precision] = {
    ("cpu", "resnet18"): Precision(dtype="float32", channels_last=True),
    ("cpu", "resnet50"): Precision(dtype="float32", channels_last=True),
    ("cpu", "densenet121"): Precision(dtype="float32", channels_last=True),
    ("cpu", "mobilenet_v3_large"): Precision(dtype="float32", channels_last=True),
    ("cpu", "squeezenet1_0"): Precision(dtype="float32", channels_last=True),
    ("cpu", "tiny"): Precision(dtype="float32", channels_last=True),
    ("cuda", "*"): Precision(dtype="bfloat16", channels_last=True),
}


def precision_of(device: torch.device, backbone: str) -> Precision:
    """Look up the table; what it does not name runs in float32, contiguous."""
    fallback = PRECISION.get((device.type, "*"), Precision(dtype="float32", channels_last=False))
    return PRECISION.get((device.type, backbone), fallback)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Augmented images (B, 3, H, W) in [0, 1], labels (B,), and which records they are (B,)."""

    images: Tensor
    labels: Tensor
    records: Tensor


class Objective(Protocol):
    """Gives per-record losses (B,); `couples_records` is True where one record's loss depends on another record."""

    @property
    def couples_records(self) -> bool:
        """Whether DP-SGD must refuse it."""
        ...

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Compute the losses."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Per-record cross-entropy."""

    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give -log p(label), (B,)."""
        return functional.cross_entropy(model(batch.images).float(), batch.labels, reduction="none")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSet:
    """Images (n, 3, H, W) uint8 and labels (n,): what a client trains on, originals or stylised."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, dataset: DomainDataset) -> "TrainingSet":
        """Take a dataset as it is."""
        return cls(images=dataset.pixels(), labels=dataset.labels)

    def __len__(self) -> int:
        return int(self.labels.shape[0])


def augment(images: Tensor, plan: Plan, rng: torch.Generator) -> Tensor:
    """Crop, resize and mirror a float batch, each image with its own draw (RandomResizedCrop of CCST's released code)."""
    count, _, height, width = images.shape
    if plan.crop is None:  # mirrored without resampling, hence exactly
        mirrored = (torch.rand(count, generator=rng) < plan.flip).to(images.device)
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
    area = torch.empty(count).uniform_(plan.crop[0], plan.crop[1], generator=rng)
    aspect = torch.empty(count).uniform_(-0.2877, 0.2877, generator=rng).exp().sqrt()  # ratio 3/4 .. 4/3
    scale = torch.stack([area.sqrt() * aspect, area.sqrt() / aspect], 1).clamp_max(1.0)
    shift = (torch.rand(count, 2, generator=rng) * 2 - 1) * (1 - scale)
    mirror = torch.where(torch.rand(count, generator=rng) < plan.flip, -1.0, 1.0)
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = scale[:, 0] * mirror, scale[:, 1]
    theta[:, :, 2] = shift
    grid = functional.affine_grid(theta.to(images.device), [count, 3, height, width], align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _optimiser(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if plan.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    return torch.optim.SGD(parameters, lr=plan.learning_rate, momentum=plan.momentum, weight_decay=plan.weight_decay)


def epochs(
    model: Classifier,
    data: TrainingSet,
    objective: Objective,
    plan: Plan,
    rng: torch.Generator,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """Train `model` in place and give {"loss": mean, "steps": count}.

    Batches are drawn by reshuffling every epoch; a last short batch is kept unless one record is left over (batch norm).
    Raises UsageError for an empty set."""
    if not len(data):
        raise UsageError("a client has no training images; every client needs at least one.")
    device = next(model.parameters()).device
    precision = precision_of(device, model.backbone)
    layout = torch.channels_last if precision.channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    model.train()
    optimiser = _optimiser(model, plan)
    total, seen, step = torch.zeros((), device=device), 0, 0
    while plan.steps is None or step < plan.steps:
        order = torch.randperm(len(data), generator=rng)
        for records in order.split(plan.batch_size):
            if len(records) == 1 < min(len(data), plan.batch_size):
                continue
            pixels = as_float(data.images[records].to(device))
            images = augment(pixels, plan, rng).contiguous(memory_format=layout)
            batch = Batch(images=images, labels=data.labels[records].to(device), records=records)
            with _autocast(device, precision):
                losses = objective(batch, model)
            optimiser.zero_grad(set_to_none=True)
            losses.mean().backward()
            optimiser.step()
            total, seen, step = total + losses.detach().sum(), seen + len(records), step + 1
            if on_step is not None:
                on_step(step, float(losses.detach().mean()))
            if plan.steps is not None and step >= plan.steps:
                break
        if plan.steps is None and step >= plan.epochs * _steps_per_epoch(len(data), plan.batch_size):
            break
    return {"loss": float(total) / max(seen, 1), "steps": float(step)}


def _steps_per_epoch(records: int, batch_size: int) -> int:
    full, rest = divmod(records, batch_size)
    return full + (1 if rest > 1 or rest == records else 0)


def _autocast(device: torch.device, precision: Precision) -> torch.autocast | nullcontext[None]:
    return torch.autocast(device.type, torch.bfloat16) if precision.dtype == "bfloat16" else nullcontext()


@torch.inference_mode()
def predictions(model: Classifier, images: Tensor, *, batch_size: int = 128) -> Tensor:
    """Predict the class of each uint8 image, (n,) int64, on the CPU."""
    device = next(model.parameters()).device
    precision = precision_of(device, model.backbone)
    layout = torch.channels_last if precision.channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    model.eval()
    parts = []
    for chunk in images.split(batch_size):
        with _autocast(device, precision):
            parts.append(model(as_float(chunk.to(device)).contiguous(memory_format=layout)).argmax(1).cpu())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
