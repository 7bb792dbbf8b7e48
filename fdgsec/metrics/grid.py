"""Reconstructions beside the truth and the controls, as one picture for the report."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.metrics.images import check_images

MARGIN = 2  # pixels of white around every image


def reconstruction_grid(truth: Tensor, images: Tensor, controls: Mapping[str, Tensor], rows: int) -> Tensor:
    """Lay out one column per released row and one line each for the truth, the reconstruction and every control.

    All are (R, 3, h, w) in [0, 1], of one shape; the first min(`rows`, R) are shown, in order, not chosen. The result
    is (3, H, W) in [0, 1]. Only the report may call this, after judging: it holds the truth. Raises ValueError for
    unequal shapes, images out of range, or `rows` < 1."""
    lines = {"truth": truth, "images": images, **controls}
    for name, line in lines.items():
        check_images(line, name)
        if line.shape != truth.shape:
            raise ValueError(f"{name} must have the shape of truth, {tuple(truth.shape)}; got {tuple(line.shape)}.")
    if rows < 1:
        raise ValueError(f"rows must be at least 1; got {rows}.")
    margins = (MARGIN, MARGIN, MARGIN, MARGIN)
    strips = [
        torch.cat([*functional.pad(line[:rows].float().clamp(0, 1), margins, value=1.0)], dim=2)
        for line in lines.values()
    ]
    return torch.cat(strips, dim=1)
