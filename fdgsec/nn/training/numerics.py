"""What the last bits of a sum depend on besides its terms: a part of the key of what networks compute and disks keep.

In bfloat16 these bits are no trifle: a style of `vgg16-hed-bfloat16` differs by 1e-4 of its length between processors
with AMX and without (docs/encoders.md)."""

import json
import os

import torch

from fdgsec.nn.training.precision import capabilities, table_rows

VARIABLES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "ONEDNN_", "TORCH_")
"""Prefixes of environment variables that choose how sums are taken."""


def numerics_of(device: torch.device) -> str:
    """Describe device, instructions, threads, number formats and what is set in the environment."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    instructions = [torch.backends.cpu.get_cpu_capability(), {key: str(value) for key, value in capabilities().items()}]
    formats = [table_rows(), str(torch.get_default_dtype()), torch.get_float32_matmul_precision()]
    return json.dumps([str(device), card, instructions, torch.get_num_threads(), formats, chosen], sort_keys=True)
