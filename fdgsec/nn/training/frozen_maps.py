"""What the frozen parts of a network make of images that no step changes, computed once and kept in the cache.

A plan may keep the first parts of a network as they are (`TrainingPlan.frozen`). Where it neither crops, moves nor
flips images, every step sends the same images through the same weights. Then the outputs of these parts take the place
of the images, in training and in evaluation: of a plan that trains nothing but the head, a step costs next to nothing.

Outputs are computed in blocks of one size, so that those of an image do not depend on which others come with it; from a
pass over a training batch they differ by rounding. Files are sealed, and named by the weights and the images."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fdgsec.data.domains import as_float
from fdgsec.nn.networks.classifiers import PARTS, Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.tensor_files import read_safetensors

BLOCK = 32
"""Images in one pass; the last ones are filled up with black ones."""
_LIBRARIES = ("torch.nn.", "torchvision.", "fdgsec.nn.networks.")
"""Where the modules of networks come from whose outputs, in evaluation mode, depend on nothing but an image."""


def kept_part(plan: TrainingPlan) -> str:
    """The last part of the network whose outputs a plan never changes; "none" where it has none, or augments images."""
    changes = plan.crop is not None or plan.translate > 0 or plan.flip > 0
    return "none" if changes else plan.frozen


@contextmanager
def through_frozen(
    model: Classifier, data: TrainingSet, objective: object, plan: TrainingPlan, *, rounds: int, precision: Precision
) -> Iterator[TrainingSet]:
    """Give what to train on: `data`, or the outputs of the frozen parts in place of its images, which `model`, once
    prepared for training, takes inside.

    It is `data` where the plan augments images or freezes nothing; where the objective does more with images than give
    them to the network (it says so by `reads_no_pixels`); where an image has a partner; where the outputs of an image
    take more memory than its pixels; and where all rounds together draw fewer images than there are."""
    last = kept_part(plan)
    drawn = rounds * plan.local_steps(len(data)) * plan.batch_size
    usable = getattr(objective, "reads_no_pixels", False) and data.partners is None and drawn >= len(data) > 0
    if not usable or not can_take_outputs(model, last, data.images):
        yield data
        return
    outputs = outputs_of(model, data.images, last, precision)
    with model.taking_outputs(last, outputs.shape[1:]):
        yield replace(data, images=outputs)


def can_take_outputs(model: Classifier, last: str, images: Tensor) -> bool:
    """Tell whether outputs of `last` can take the place of `images` (n, 3, H, W) uint8: of a network as it was built,
    whose outputs take no more memory than the pixels."""
    if last == "none" or not len(images) or images.dtype != torch.uint8:
        return False
    if type(model) is not Classifier or not _is_fixed(model, last):
        return False
    output = _through_parts(model, images[:1], last, _FLOAT)[0]
    return output.shape != images.shape[1:] and output.numel() * output.element_size() <= images[0].numel()


def outputs_of(model: Classifier, images: Tensor, last: str, precision: Precision) -> Tensor:
    """Compute or recall what the parts up to `last` make of `images` (n, 3, H, W) uint8, float32 on the CPU.

    They are maps (n, C, h, w); of the whole body, their means (n, C, 1, 1), which is all that the head sees of them."""
    key = f"frozen {last} {precision.frozen} {_fingerprint(model, last)} {_sha256(images)} {tuple(images.shape)}"
    path = cache_root() / "features" / f"frozen-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    found = recalled(path, key=key, read=lambda content: read_safetensors(content, source="its content")[0])
    if found is not None:
        return found["outputs"]
    made = [_outputs(model, block, last, precision) for block in images.split(BLOCK)]
    outputs = torch.cat(made).contiguous()
    remember(path, save({"outputs": outputs}), key=key)
    return outputs


_FLOAT = Precision(dtype="float32", channels_last=True)


def _outputs(model: Classifier, images: Tensor, last: str, precision: Precision) -> Tensor:
    """The outputs of at most BLOCK images, on the CPU, of parts that are in evaluation mode."""
    filled = images.new_zeros(BLOCK, *images.shape[1:])
    filled[: len(images)] = images
    return _through_parts(model, filled, last, precision)[: len(images)].cpu().contiguous()


def _through_parts(model: Classifier, images: Tensor, last: str, precision: Precision) -> Tensor:
    device = next(model.parameters()).device
    given = as_float(images.to(device)).contiguous(memory_format=precision.layout)
    parts = dict(model.body.named_children())
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision.frozen == "bfloat16"):
        maps: Tensor = model.normalize(given)
        for name in PARTS[: PARTS.index(last) + 1]:
            maps = parts[name](maps)
    maps = maps.float()
    return maps.mean((2, 3), keepdim=True) if last == PARTS[-1] else maps


def _is_fixed(model: Classifier, last: str) -> bool:
    """Whether the parts up to `last` are as they were built, and have nothing attached that could change outputs."""
    parts = [model.normalize, *(model.body.get_submodule(name) for name in PARTS[: PARTS.index(last) + 1])]
    return all(_plain(module) for part in parts for module in part.modules())


def _plain(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return not any(hooks) and type(module).__module__.startswith(_LIBRARIES)


def _fingerprint(model: Classifier, last: str) -> str:
    """Hash the weights and statistics of the parts up to `last`, and what they are weights of."""
    digest = hashlib.sha256(f"{model.backbone} {model.norm}".encode())
    for name in PARTS[: PARTS.index(last) + 1]:
        for entry, value in model.body.get_submodule(name).state_dict().items():
            digest.update(f"{name}.{entry} {value.dtype} {tuple(value.shape)} ".encode())
            digest.update(_content(value))
    return digest.hexdigest()


def _sha256(values: Tensor) -> str:
    return hashlib.sha256(_content(values)).hexdigest()


def _content(values: Tensor) -> memoryview:
    return memoryview(values.detach().cpu().contiguous().numpy()).cast("B")  # type: ignore[arg-type]
