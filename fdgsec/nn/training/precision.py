"""The device of a run, and the number format and memory layout in which a network trains there.

The format comes from a fixed table, never from a timing at run time."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from fdgsec.runtime.errors import UsageError

Dtype = Literal["float32", "bfloat16"]
WantedPrecision = Literal["table", "float32", "bfloat16"]
"""The format that a training plan asks for: that of the table, or one on every processor."""
Processor = Literal["cpu", "cpu-bf16", "cuda"]
"""Kinds of processors whose fastest format differs: `cpu-bf16` is AMD's with AVX512_BF16 and every one with AMX's
bfloat16, `cpu` every other one."""

VARIABLE = "FDGSEC_PRECISION"
STYLIZATION = "stylization"
"""The row of VGG's encoders and decoders where they make training images."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number format and memory layout of one network on one kind of processor.

    `frozen` is the format of the parts that a plan does not train, which have no backward pass."""

    dtype: Dtype
    channels_last: bool
    frozen: Dtype = "float32"

    @property
    def layout(self) -> torch.memory_format:
        """The layout as a torch constant."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


FLOAT = Precision(dtype="float32", channels_last=True)
"""That of what is released or compared, and of networks of which nobody has looked what another one changes."""
BRAIN = Precision(dtype="bfloat16", channels_last=True, frozen="bfloat16")
_BRAIN_FORWARD = Precision(dtype="float32", channels_last=True, frozen="bfloat16")

# Measured with `python -m benchmarks training` on a processor of each kind (docs/performance.md). Convolutions in
# bfloat16 are 1.2 to 2.4 times as fast as in float32 on AMD's with AVX512_BF16 and on Intel's with AMX, and slower on
# Intel's that have AVX512_BF16 without AMX. The depthwise ones of MobileNetV3 are slower on all, and so are training
# steps of EfficientNet-Lite0, whose forward pass alone is 2.7 (AMD) and 1.8 times (AMX) as fast. `tiny` stays in
# float32 on every CPU: it is for tests, which compare digits. Style generators, whose few channels gain nothing from
# bfloat16, were measured on AMD's processor alone; `mini` as a loss and stylization by VGG on AMD's and with AMX.
PRECISION: Mapping[tuple[Processor, str], Precision] = {
    ("cpu", "resnet18"): FLOAT,
    ("cpu", "resnet50"): FLOAT,
    ("cpu", "densenet121"): FLOAT,
    ("cpu", "mobilenet_v3_large"): FLOAT,
    ("cpu", "efficientnet_lite0"): FLOAT,
    ("cpu", "squeezenet1_0"): FLOAT,
    ("cpu", "tiny"): FLOAT,
    ("cpu", "mini"): FLOAT,
    ("cpu", "style-generator"): FLOAT,
    ("cpu", STYLIZATION): FLOAT,
    ("cpu-bf16", "resnet18"): BRAIN,
    ("cpu-bf16", "resnet50"): BRAIN,
    ("cpu-bf16", "densenet121"): BRAIN,
    ("cpu-bf16", "mobilenet_v3_large"): FLOAT,
    ("cpu-bf16", "efficientnet_lite0"): _BRAIN_FORWARD,
    ("cpu-bf16", "squeezenet1_0"): BRAIN,
    ("cpu-bf16", "tiny"): FLOAT,
    ("cpu-bf16", "mini"): BRAIN,
    ("cpu-bf16", "style-generator"): FLOAT,
    ("cpu-bf16", STYLIZATION): BRAIN,
    ("cuda", "style-generator"): FLOAT,
    ("cuda", "*"): BRAIN,
}


def device_named(name: str) -> str:
    """Choose the device of a run: `cpu`, `cuda`, or a GPU if there is one for "auto".

    On a GPU float32 is float32 from then on, in this process: torch's default has cuDNN convolve it in TF32, with 10
    bits after the point, which is neither what the papers' cards did nor what a released statistic may be rounded to.
    Raises UsageError for a device that is unknown or not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device must be auto, cpu or cuda; got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda was asked for, but torch finds no GPU; use --device cpu or auto.")
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    if chosen == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return chosen


@lru_cache(maxsize=1)
def capabilities() -> Mapping[str, object]:
    """Give torch's description of this machine's CPU: its name and its vector instructions."""
    known = getattr(torch.cpu, "get_capabilities", None)  # missing in torch before 2.12
    return dict(known()) if known is not None else {}


def processor_of(device: torch.device) -> Processor:
    """Give the row of the table for `device`: by vendor and instructions, not by speed."""
    if device.type == "cuda":
        return "cuda"
    known = capabilities()
    amd = str(known.get("cpu_name", "")).startswith("AMD")
    return "cpu-bf16" if known.get("amx_bf16") or (amd and known.get("avx512_bf16")) else "cpu"


def precision_of(device: torch.device, backbone: str, *, wanted: WantedPrecision = "table") -> Precision:
    """Look up the table; other networks and processors use float32, contiguous.

    `wanted` is a training plan's own format: the papers trained in float32, and so do their presets and protocols on
    every processor. FDGSEC_PRECISION, `float32` or `bfloat16`, sets the format on every processor and in every plan, so
    that two machines may train alike. Raises UsageError for another value of it."""
    row = processor_of(device)
    fallback = PRECISION.get((row, "*"), Precision(dtype="float32", channels_last=False))
    found = PRECISION.get((row, backbone), fallback)
    told = requested_dtype() or (None if wanted == "table" else wanted)
    return Precision(dtype=told or found.dtype, channels_last=found.channels_last, frozen=told or found.frozen)


def requested_dtype() -> Dtype | None:
    """Read the format from FDGSEC_PRECISION; None where it is not set and the table decides."""
    match os.environ.get(VARIABLE, ""):
        case "":
            return None
        case "float32":
            return "float32"
        case "bfloat16":
            return "bfloat16"
        case other:
            raise UsageError(f"{VARIABLE}={other!r}: use float32 or bfloat16, or unset it for the table's choice.")


def table_rows() -> str:
    """Describe what decides the format here, for the record of a run: the table's rows, or the requested format."""
    rows = [processor_of(torch.device(kind)) for kind in ("cuda", "cpu") if kind == "cpu" or torch.cuda.is_available()]
    return requested_dtype() or ", ".join(rows)


def autocast(device: torch.device, precision: Precision) -> torch.autocast | nullcontext[None]:
    """Make the context for forward passes in this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision.dtype == "bfloat16" else nullcontext()
