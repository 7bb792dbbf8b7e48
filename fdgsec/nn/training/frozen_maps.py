"""What the frozen parts of a network make of images that no step changes, computed once and kept in the cache.

A plan may keep the first parts of a network as they are (`TrainingPlan.frozen`). Where it neither crops, moves nor
flips images, every step sends the same images through the same weights. Then the outputs of these parts take the place
of the images: of a plan that trains nothing but the head, a step costs next to nothing. Only networks as fdgsec builds
them are treated so, whose parts, frozen, make of an image what they make of it alone: an independence check of DP-SGD
finds on outputs what it would find on images.

Outputs are computed in blocks of one size, so that those of an image do not depend on which others come with it; from a
pass over a training batch they differ by rounding. Files are sealed, and named by the weights, the images, and the code
that made them."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from typing import cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fdgsec.data.domains import as_float
from fdgsec.nn.networks.classifiers import PARTS, Classifier, Norm, build_classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.numerics import numerics_of
from fdgsec.nn.training.precision import FLOAT, Precision
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.source_hash import source_sha256
from fdgsec.runtime.tensor_files import read_safetensors

BLOCK = 32
"""Images in one pass; the last ones are filled up with black ones."""
KEPT_BYTES = 2**28
"""Memory of a process for outputs that it may need again: those of 50,000 images of 1,280 numbers each."""

_KEPT: OrderedDict[str, Tensor] = OrderedDict()  # memo: key of a file -> outputs, oldest first
_KEEPING = threading.Lock()
_COMPUTING = ("forward", "features", "maps")
"""What computes outputs; on an object, in place of its class's."""

Structure = tuple[tuple[str, type[nn.Module], str], ...]


def kept_part(plan: TrainingPlan) -> str:
    """The last part of the network whose outputs a plan never changes; "none" where it has none, or augments images."""
    changes = plan.crop is not None or plan.translate > 0 or plan.flip > 0
    return "none" if changes else plan.frozen


@contextmanager
def through_frozen(
    model: Classifier, data: TrainingSet, objective: object, plan: TrainingPlan, *, precision: Precision, first: bool
) -> Iterator[TrainingSet]:
    """Give what to train on: `data`, or the outputs of the frozen parts in place of its images, which `model`, once
    prepared for training, takes inside.

    It is `data` where the plan augments images or freezes nothing; where the objective does more with images than give
    them to the network and read its features or logits (it says so by `reads_no_pixels`); where an image has a partner;
    where the network is not as it was built; where the outputs of an image take more memory than its pixels; and where
    the call takes one step, or draws fewer images than there are. Of a `first` round the outputs go to the disk as
    well, so that weights which a defense changes in every round leave no more than one file."""
    last, steps = kept_part(plan), plan.local_steps(len(data))
    usable = getattr(objective, "reads_no_pixels", False) and data.partners is None
    often = steps > 1 and steps * plan.batch_size >= len(data)
    if not (usable and often and can_take_outputs(model, last, data.images)):
        yield data
        return
    outputs = outputs_of(model, data.images, last, precision, store=first)
    with model.taking_outputs(last, outputs.shape[1:]):
        yield replace(data, images=outputs)


def can_take_outputs(model: Classifier, last: str, images: Tensor) -> bool:
    """Tell whether outputs of `last` can take the place of `images` (n, 3, H, W) uint8: of a network as it was built,
    whose outputs take no more memory than the pixels."""
    if last == "none" or not len(images) or images.dtype != torch.uint8 or not _is_as_built(model):
        return False
    output = _through_parts(model, images[:1], last, FLOAT)[0]
    return output.shape != images.shape[1:] and output.numel() * output.element_size() <= images[0].numel()


def outputs_of(model: Classifier, images: Tensor, last: str, precision: Precision, *, store: bool = True) -> Tensor:
    """Compute or recall what the parts up to `last` make of `images` (n, 3, H, W) uint8, float32 on the CPU.

    These parts are in evaluation mode. Outputs are maps (n, C, h, w); of the whole body, their means (n, C, 1, 1),
    which is all that the head sees of them. Without `store`, or where the cache cannot be written, they are kept in
    memory alone."""
    key = _key(model, images, last, precision)
    path = cache_root() / "features" / f"frozen-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    found = _KEPT.get(key)
    if found is None:
        stored = recalled(path, key=key, read=lambda content: read_safetensors(content, source="its content")[0])
        found = None if stored is None else stored["outputs"]
        if found is None:
            blocks = [_outputs(model, block, last, precision) for block in images.split(BLOCK)]
            found = torch.cat(blocks).contiguous()
            if store:
                with suppress(OSError):
                    remember(path, save({"outputs": found}), key=key)
    _keep(key, found)
    return found


def _keep(key: str, outputs: Tensor) -> None:
    """Keep the outputs, and as many of those before as fit beside them."""
    with _KEEPING:
        _KEPT[key] = outputs
        _KEPT.move_to_end(key)
        while len(_KEPT) > 1 and sum(each.numel() * each.element_size() for each in _KEPT.values()) > KEPT_BYTES:
            _KEPT.popitem(last=False)


def _key(model: Classifier, images: Tensor, last: str, precision: Precision) -> str:
    """Everything that decides the outputs."""
    device = next(model.parameters()).device
    return " ".join(
        map(str, [
            "frozen", last, precision.frozen, precision.layout, model.backbone, model.norm, numerics_of(device),
            _fingerprint(model, last), tuple(images.shape), hashlib.sha256(_content(images)).hexdigest(),
            source_sha256("fdgsec.nn"), source_sha256("fdgsec.data"), version("torch"), version("torchvision"),
        ])
    )  # fmt: skip


def _outputs(model: Classifier, images: Tensor, last: str, precision: Precision) -> Tensor:
    """The outputs of at most BLOCK images, on the CPU."""
    filled = images.new_zeros(BLOCK, *images.shape[1:])
    filled[: len(images)] = images
    return _through_parts(model, filled, last, precision)[: len(images)].cpu().contiguous()


def _through_parts(model: Classifier, images: Tensor, last: str, precision: Precision) -> Tensor:
    device = next(model.parameters()).device
    given = as_float(images.to(device)).contiguous(memory_format=precision.layout)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision.frozen == "bfloat16"):
        maps: Tensor = model.normalize(given)
        for name in PARTS[: PARTS.index(last) + 1]:
            maps = model.body.get_submodule(name)(maps)
    maps = maps.float()
    return maps.mean((2, 3), keepdim=True) if last == PARTS[-1] else maps


def _is_as_built(model: Classifier) -> bool:
    """Whether a network has the layers and constants that `build_classifier` gives it, and nothing is attached to them.

    A method may change them (`Method.remodel`)."""
    if any(map(_is_changed, model.modules())):
        return False
    built = _built(model.backbone, cast(Norm, model.norm), model.classes)
    constants = ((model.normalize.mean, built.normalize.mean), (model.normalize.std, built.normalize.std))
    same = all(torch.equal(ours.cpu(), theirs) for ours, theirs in constants)
    return same and _structure(model) == _structure(built)


def _is_changed(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks) or not vars(module).keys().isdisjoint(_COMPUTING)


@lru_cache(maxsize=8)
def _built(backbone: str, norm: Norm, classes: int) -> Classifier:
    return build_classifier(backbone, classes, norm=norm, rng=None)


def _structure(model: Classifier) -> Structure:
    return tuple((name, type(module), module.extra_repr()) for name, module in model.named_modules())


def _fingerprint(model: Classifier, last: str) -> str:
    """Hash the weights and statistics of the parts up to `last`."""
    digest = hashlib.sha256()
    for name in PARTS[: PARTS.index(last) + 1]:
        for entry, value in model.body.get_submodule(name).state_dict().items():
            digest.update(f"{name}.{entry} {value.dtype} {tuple(value.shape)} ".encode())
            digest.update(_content(value))
    return digest.hexdigest()


def _content(values: Tensor) -> memoryview:
    return memoryview(values.detach().cpu().contiguous().numpy()).cast("B")  # type: ignore[arg-type]
