"""Channel moments of the features of images, in blocks of one size."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.styles.channel_statistics import Moments, concatenated, moments
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.runtime.errors import UsageError

BLOCK = 16  # images in one pass of the network
BLOCKS: Mapping[str, int] = {"cpu": BLOCK, "cuda": 128}
"""The same by kind of device: a GPU is idle for most of a pass of 16."""


def image_moments(
    encoder: StyleEncoder,
    pixels: Tensor | DomainDataset,
    *,
    batch_size: int = BLOCK,
    progress: Callable[[int], None] | None = None,
) -> Moments:
    """Compute each image's feature moments, one float64 row per image in the order given.

    `pixels` is (N, 3, H, W) uint8 or a dataset. `batch_size` images are read at a time, rounded up to whole blocks. The
    network always gets blocks of one size (BLOCKS), a short one padded with its own first image, because its kernels
    (and so the last bits) depend on the batch size: on one kind of device a row depends on neither order nor batch
    size, to 1e-6 relative. One block of features is held at a time. `progress` is called with the number of images just
    finished.
    Raises UsageError where pixels are not uint8 or there are none."""
    size, block = len(pixels), block_of(encoder.device)
    if isinstance(pixels, Tensor) and pixels.dtype != torch.uint8:
        raise UsageError(f"image_moments takes uint8 pixels; got {pixels.dtype}; encode floats with encoder.encode.")
    if not size or batch_size < 1:
        raise UsageError(f"image_moments needs images and a batch size of at least 1; got {size} and {batch_size}.")
    parts: list[Moments] = []
    for start in range(0, size, read := -(-batch_size // block) * block):
        rows = torch.arange(start, min(start + read, size))
        chunk = pixels[rows] if isinstance(pixels, Tensor) else pixels.pixels(rows)
        parts += [_block_moments(encoder, part, block) for part in torch.split(chunk, block)]
        if progress is not None:
            progress(len(rows))
    return concatenated(parts)


def block_of(device: torch.device) -> int:
    """The number of images in one pass on `device`."""
    return BLOCKS.get(device.type, BLOCK)


def _block_moments(encoder: StyleEncoder, pixels: Tensor, block: int) -> Moments:
    """Compute the moments of at most `block` images, with the kernels for exactly `block`."""
    device = encoder.device
    filled = torch.cat([pixels, pixels[:1].expand(block - len(pixels), -1, -1, -1)])
    with torch.inference_mode():
        found = moments(encoder.encode(as_float(filled.to(device))))
    return found.rows(torch.arange(len(pixels), device=device))
