"""Amplitude spectra of images, and their exchange at low frequencies: the style of FedDG and CCST's appendix E.

Liu, Chen, Qin, Dou & Heng (FedDG, CVPR 2021, https://arxiv.org/abs/2103.06030) split an image's Fourier transform into
amplitude and phase and mix the amplitudes of another image into it inside a centered square window of the shifted
spectrum. Here a spectrum is the half that `torch.fft.rfft2` gives, (..., H, W // 2 + 1): the other half of a real
image's spectrum is its mirror image. Pure functions, deterministic, on the device of their inputs. `SpectralEncoder`
offers spectra as a style encoder; they are a statistic of pixels, not of features."""

import hashlib
import math

import torch
from torch import Tensor

from fdgsec.nn.styles.encoders import StyleEncoder

LOW_FREQUENCIES = 16
"""Attacks compare the frequencies -16..16 of a spectrum: 3 x 33 x 17 numbers identify images, and thousands fit in
memory."""


def amplitudes(images: Tensor) -> Tensor:
    """Compute |F(x)| of real images (N, C, H, W): (N, C, H, W // 2 + 1), not normalized (the first entry is a sum).

    Raises ValueError for anything else."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(f"images must be float (N, C, H, W); got {images.dtype} {tuple(images.shape)}.")
    spectrum: Tensor = torch.fft.rfft2(images)
    return spectrum.abs()


def window(share: float, size: tuple[int, int]) -> int:
    """Compute b = floor(L min(h, w)) for L = `share` of an image of `size` = (h, w): frequencies -b..b are exchanged.

    The product is rounded at 1e-9 first, so that L = 0.29 of 100 pixels is 29. b = 0 is the mean color alone, and from
    L = 1/2 on it is the whole spectrum. Raises ValueError where L is outside [0, 1]."""
    if not 0 <= share <= 1:
        raise ValueError(f"the window's share L must lie in [0, 1]; got {share}.")
    return math.floor(share * min(size) + 1e-9)


def window_mask(size: tuple[int, int], b: int) -> Tensor:
    """Mark the frequencies -b..b x -b..b of an (h, w) image in its half spectrum, (h, w // 2 + 1) bool."""
    height, width = size
    row = torch.arange(height)
    near = torch.minimum(row, height - row) <= b
    return near.unsqueeze(1) & (torch.arange(width // 2 + 1) <= b)


def low_frequencies(spectra: Tensor, b: int = LOW_FREQUENCIES) -> Tensor:
    """Keep the frequencies -b..b of half spectra (N, C, H, W // 2 + 1), in float64: (N, C x those)."""
    height, columns = int(spectra.shape[-2]), int(spectra.shape[-1])
    return spectra[..., window_mask((height, 2 * columns - 1), b)].flatten(1).to(torch.float64)


def exchange_amplitudes(images: Tensor, others: Tensor, *, b: int, ratio: Tensor | float = 0.0) -> Tensor:
    """Mix the amplitudes `others` into `images` inside the window of half width `b`, and keep the phases.

    A' = ratio A + (1 - ratio) A_other inside, A' = A outside, x' = F^-1(A' e^{i phase}). `images` is (N, C, H, W),
    `others` (N, C, H, W // 2 + 1), `ratio` one number or one per image (N,). Computed as x + F^-1((A' - A) e^{i
    phase}), so that an image mixed with its own amplitudes is unchanged bit by bit. The result is not clamped.
    Raises ValueError where the sizes do not fit."""
    size = (int(images.shape[-2]), int(images.shape[-1]))
    expected = (*images.shape[:-1], size[1] // 2 + 1)
    if images.ndim != 4 or others.shape != expected:
        raise ValueError(
            f"images {tuple(images.shape)} need amplitudes {tuple(expected)}; got {tuple(others.shape)}: both must "
            f"come from images of one size."
        )
    spectrum: Tensor = torch.fft.rfft2(images)
    own = spectrum.abs()
    phase = torch.where(own > 0, torch.sgn(spectrum), 1.0)
    kept = ratio.to(own).view(-1, 1, 1, 1) if isinstance(ratio, Tensor) else ratio
    change = (1 - kept) * (others - own) * window_mask(size, b).to(own)
    difference: Tensor = torch.fft.irfft2(change * phase, s=size)
    return images + difference


class SpectralEncoder(StyleEncoder):
    """The low amplitudes of images of `size` = (H, W) pixels, as maps of one cell whose mean is the amplitude.

    Computed in float64, as CCST averages them. There is no variance within an image, and no decoder."""

    window: Tensor

    def __init__(self, size: tuple[int, int], *, frequencies: int = LOW_FREQUENCIES) -> None:
        super().__init__()
        self.size, self.frequencies = size, frequencies
        self.register_buffer("window", window_mask(size, frequencies))
        self.channels, self.stride, self.has_decoder = 3 * int(self.window.sum()), max(size), False
        self.name = f"spectrum:{size[0]}x{size[1]}:{frequencies}"
        self.fingerprint = hashlib.sha256(self.name.encode()).hexdigest()

    def _features(self, images: Tensor) -> Tensor:
        if tuple(images.shape[2:]) != self.size:
            raise ValueError(f"{self.name} reads images of {self.size}; got {tuple(images.shape[2:])}.")
        return low_frequencies(amplitudes(images.to(torch.float64)), self.frequencies)[..., None, None]
