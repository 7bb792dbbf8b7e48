"""Training sets, batches and standard augmentation."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Augmented images (B, 3, H, W) in [0, 1], labels (B,), and their record numbers (B,).

    `partners` (B, 3, H, W) are the records' second versions where the training set has them, with the same crops and
    flips; where the set holds them as floats, in their own range."""

    images: Tensor
    labels: Tensor
    records: Tensor
    partners: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSet:
    """A client's training images (n, 3, H, W) uint8 and labels (n,), original or stylized.

    `partners`, of the same shape, holds another version of each image (FISC: in the interpolation style), as uint8, or
    as float32 where values may leave [0, 1] (FISC's released code). `owners` (n,) int64 is the record of each entry
    where a record has several versions (CCST); None: each entry is a record."""

    images: Tensor
    labels: Tensor
    partners: Tensor | None = None
    owners: Tensor | None = None

    @classmethod
    def of(cls, dataset: DomainDataset) -> "TrainingSet":
        """Take the images and labels of a dataset."""
        return cls(images=dataset.pixels(), labels=dataset.labels)

    def __len__(self) -> int:
        return int(self.labels.shape[0])


def augment(images: Tensor, plan: TrainingPlan, rng: torch.Generator) -> Tensor:
    """Crop, resize, shift and flip a float batch (B, C, H, W), each image with its own draw.

    The crop is RandomResizedCrop of CCST's released code, the translation that of StableFDG's."""
    if plan.translate > 0:
        images = _translated(images, plan.translate, rng)
    count = images.shape[0]
    if plan.crop is None:  # flipped without resampling, hence exactly
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
    return _resampled(images, theta)


def _translated(images: Tensor, probability: float, rng: torch.Generator) -> Tensor:
    """Enlarge by 1/8 and crop the old size at a random position, with `probability` per image."""
    count = images.shape[0]
    chosen = torch.rand(count, generator=rng) < probability
    scale = 1 / 1.125
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = (torch.rand(count, 2, generator=rng) * 2 - 1) * (1 - scale)
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1), _resampled(images, theta), images)


def _resampled(images: Tensor, theta: Tensor) -> Tensor:
    grid = functional.affine_grid(theta.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def epoch_of_batches(
    data: TrainingSet, plan: TrainingPlan, rng: torch.Generator, *, device: torch.device, layout: torch.memory_format
) -> Iterator[Batch]:
    """Yield one reshuffled pass over `data` in batches of `plan.batch_size`, augmented, on `device`.

    A last short batch is kept unless it has one record (batch norm has no variance there).
    Raises UsageError for an empty set."""
    if not len(data):
        raise UsageError("a client has no training images; every client needs at least one.")
    order = torch.randperm(len(data), generator=rng)
    for records in order.split(plan.batch_size):
        if len(records) == 1 < min(len(data), plan.batch_size):
            continue
        yield batch_of(data, records, plan, rng, device=device, layout=layout)


def batch_of(
    data: TrainingSet,
    records: Tensor,
    plan: TrainingPlan,
    rng: torch.Generator,
    *,
    device: torch.device,
    layout: torch.memory_format,
) -> Batch:
    """Load the entries of `data` at `records` (B,), augmented, on `device`."""
    pixels = as_float(data.images[records].to(device))
    partners = None
    if data.partners is None:
        images = augment(pixels, plan, rng).contiguous(memory_format=layout)
    else:
        both = augment(torch.cat([pixels, as_float(data.partners[records].to(device))], 1), plan, rng)
        images, partners = (half.contiguous(memory_format=layout) for half in both.split(3, 1))
    return Batch(images=images, labels=data.labels[records].to(device), records=records, partners=partners)


def batches_in_order(
    data: DomainDataset, size: int, *, device: torch.device, layout: torch.memory_format
) -> Iterator[Batch]:
    """Yield all of `data` in batches of `size`, on `device`: in order, not augmented."""
    for records in torch.arange(len(data)).split(size):
        images = as_float(data.pixels(records).to(device)).contiguous(memory_format=layout)
        yield Batch(images=images, labels=data.labels[records].to(device), records=records)
