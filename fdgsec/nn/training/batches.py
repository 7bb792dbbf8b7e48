"""Training sets, batches and standard augmentation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Augmented images (B, 3, H, W) in [0, 1], labels (B,), and their record numbers (B,), these on the CPU.

    `copied` are the labels as they were moved to the device, and where they came from, for `labels_on_cpu`. `partners`
    (B, 3, H, W) are the records' second versions where the training set has them, with the same crops and flips; where
    the set holds them as floats, in their own range."""

    images: Tensor
    labels: Tensor
    records: Tensor
    partners: Tensor | None = None
    copied: tuple[Tensor, Tensor] | None = None

    def labels_on_cpu(self) -> Tensor:
        """The labels on the CPU, without a wait for the device unless they were changed there."""
        if self.copied is not None and self.copied[0] is self.labels:
            return self.copied[1]
        return self.labels.cpu()


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

    def on(self, device: torch.device) -> "TrainingSet":
        """Put images and partners on `device`, so that training moves them once and not batch by batch.

        Where they would take more than half of a GPU's free memory they stay where they are."""
        held = [each for each in (self.images, self.partners) if each is not None]
        needed = sum(each.numel() * each.element_size() for each in held)
        if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0] // 2:
            return self
        partners = None if self.partners is None else self.partners.to(device)
        return replace(self, images=self.images.to(device), partners=partners)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Move a batch's numbers to `device`; to a GPU from pinned memory, so that the host does not wait."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


DRAWN = 14
"""Numbers that augmentation draws for an image: two transforms of 2 x 3, and whether it is translated and mirrored."""


def augment(images: Tensor, plan: TrainingPlan, rng: torch.Generator) -> Tensor:
    """Crop, resize, shift and flip a float batch (B, C, H, W), each image with its own draw.

    The crop is RandomResizedCrop of CCST's released code, the translation that of StableFDG's."""
    return _augmented(images, plan, to_device(_draws(len(images), plan, rng), images.device))


def _draws(count: int, plan: TrainingPlan, rng: torch.Generator) -> Tensor:
    """What `count` images are augmented by, (count, DRAWN) on the CPU: translation, crop, translated, mirrored."""
    made = torch.zeros(count, DRAWN)
    if plan.translate > 0:
        made[:, 12] = torch.rand(count, generator=rng) < plan.translate
        scale = 1 / 1.125
        made[:, 0] = made[:, 4] = scale
        made[:, [2, 5]] = (torch.rand(count, 2, generator=rng) * 2 - 1) * (1 - scale)
    if plan.crop is None:
        made[:, 13] = torch.rand(count, generator=rng) < plan.flip
        return made
    area = torch.empty(count).uniform_(plan.crop[0], plan.crop[1], generator=rng)
    aspect = torch.empty(count).uniform_(-0.2877, 0.2877, generator=rng).exp().sqrt()  # ratio 3/4 .. 4/3
    sides = torch.stack([area.sqrt() * aspect, area.sqrt() / aspect], 1).clamp_max(1.0)
    shift = (torch.rand(count, 2, generator=rng) * 2 - 1) * (1 - sides)
    mirror = torch.where(torch.rand(count, generator=rng) < plan.flip, -1.0, 1.0)
    made[:, 6], made[:, 10], made[:, [8, 11]] = sides[:, 0] * mirror, sides[:, 1], shift
    return made


def _augmented(images: Tensor, plan: TrainingPlan, draws: Tensor) -> Tensor:
    if plan.translate > 0:  # enlarged by 1/8, and the old size cropped at a random position
        moved = _resampled(images, draws[:, :6])
        images = torch.where((draws[:, 12] > 0).view(-1, 1, 1, 1), moved, images)
    if plan.crop is None:  # flipped without resampling, hence exactly
        return torch.where((draws[:, 13] > 0).view(-1, 1, 1, 1), images.flip(3), images)
    return _resampled(images, draws[:, 6:12])


def _resampled(images: Tensor, transforms: Tensor) -> Tensor:
    theta = transforms.reshape(-1, 2, 3).contiguous()
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ahead:
    """The augmentation of an epoch, drawn before its first batch: `draws` of each batch, on the device.

    `states` are those of the generator before each batch and after the last, so that nobody can tell from the generator
    that the numbers were drawn early."""

    draws: Sequence[Tensor]
    states: Sequence[Tensor]

    @classmethod
    def of(cls, sizes: Sequence[int], plan: TrainingPlan, rng: torch.Generator, device: torch.device) -> "_Ahead":
        made, states = [torch.empty(0, DRAWN)], [rng.get_state()]
        for size in sizes:
            made.append(_draws(size, plan, rng))
            states.append(rng.get_state())
        rng.set_state(states[0])
        return cls(draws=to_device(torch.cat(made), device).split(list(sizes)), states=states)

    def taken(self, number: int, rng: torch.Generator) -> Tensor | None:
        """The draws of batch `number`; None where something else has drawn from the generator since."""
        if not torch.equal(rng.get_state(), self.states[number]):
            return None
        rng.set_state(self.states[number + 1])
        return self.draws[number]


def epoch_of_batches(
    data: TrainingSet, plan: TrainingPlan, rng: torch.Generator, *, device: torch.device, layout: torch.memory_format
) -> Iterator[Batch]:
    """Yield one reshuffled pass over `data` in batches of `plan.batch_size`, augmented, on `device`.

    A last short batch is kept unless it has one record (batch norm has no variance there). For a GPU the augmentation
    of all batches is drawn and moved at once, which changes no number.
    Raises UsageError for an empty set."""
    if not len(data):
        raise UsageError("a client has no training images; every client needs at least one.")
    order = torch.randperm(len(data), generator=rng)
    parts = [part for part in order.split(plan.batch_size) if len(part) > 1 or min(len(data), plan.batch_size) == 1]
    rows = to_device(order, data.images.device).split(plan.batch_size)
    labels = to_device(data.labels[order], device).split(plan.batch_size)
    ahead = None if device.type == "cpu" else _Ahead.of([len(part) for part in parts], plan, rng, device)
    for number, records in enumerate(parts):
        draws = None if ahead is None else ahead.taken(number, rng)
        if draws is None:
            draws = to_device(_draws(len(records), plan, rng), device)
        yield _loaded(data, records, (rows[number], labels[number], draws), plan, device=device, layout=layout)


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
    moved = to_device(records, data.images.device), to_device(data.labels[records], device)
    draws = to_device(_draws(len(records), plan, rng), device)
    return _loaded(data, records, (*moved, draws), plan, device=device, layout=layout)


def _loaded(
    data: TrainingSet,
    records: Tensor,
    moved: tuple[Tensor, Tensor, Tensor],
    plan: TrainingPlan,
    *,
    device: torch.device,
    layout: torch.memory_format,
) -> Batch:
    """The batch of `records`; `moved` are their rows on the device of the images, their labels and their draws."""
    rows, labels, draws = moved
    pixels = as_float(to_device(data.images[rows], device))
    partners = None
    if data.partners is None:
        images = _augmented(pixels, plan, draws).contiguous(memory_format=layout)
    else:
        both = torch.cat([pixels, as_float(to_device(data.partners[rows], device))], 1)
        parts = _augmented(both, plan, draws).split(3, 1)
        images, partners = (half.contiguous(memory_format=layout) for half in parts)
    copied = None if device.type == "cpu" else (labels, data.labels[records])
    return Batch(images=images, labels=labels, records=records, partners=partners, copied=copied)


def batches_in_order(
    data: DomainDataset, size: int, *, device: torch.device, layout: torch.memory_format
) -> Iterator[Batch]:
    """Yield all of `data` in batches of `size`, on `device`: in order, not augmented."""
    for records in torch.arange(len(data)).split(size):
        images = as_float(data.pixels(records).to(device)).contiguous(memory_format=layout)
        yield Batch(images=images, labels=data.labels[records].to(device), records=records)
