"""The fastest number format and memory layout of this machine for given network passes, found by timing them."""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from benchmarks.training_speed import Job
from fdgsec.nn.training.precision import Precision

FORMATS: Mapping[str, Precision] = {
    f"{dtype} {'channels_last' if last else 'contiguous'}": Precision(dtype=dtype, channels_last=last)
    for dtype in ("float32", "bfloat16")
    for last in (False, True)
}
PART = 4
"""The formats are probed on one batch divided by this."""


def fastest(make: Callable[[Precision], Job]) -> str:
    """The name of the format in which a job takes the fewest processor seconds.

    It is run twice in each, and the second run counts."""
    times: dict[str, float] = {}
    for name, precision in FORMATS.items():
        job = make(precision)
        job()
        started = time.process_time()
        job()
        times[name] = time.process_time() - started
    return min(times, key=lambda name: times[name])


def in_format(network: nn.Module, precision: Precision) -> nn.Module:
    """A copy of a network that only infers, with weights of this format and layout."""
    dtype = torch.bfloat16 if precision.dtype == "bfloat16" else torch.float32
    return deepcopy(network).to(dtype=dtype, memory_format=precision.layout)  # type: ignore[call-overload,no-any-return]


def image_format(images: Tensor, precision: Precision) -> Tensor:
    """The same for images."""
    dtype = torch.bfloat16 if precision.dtype == "bfloat16" else torch.float32
    return images.to(dtype).contiguous(memory_format=precision.layout)
