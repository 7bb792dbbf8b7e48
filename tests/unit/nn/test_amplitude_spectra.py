"""The exchange of low-frequency amplitudes against a slow transcription on the whole shifted spectrum."""

import cmath
import math
from itertools import product

import pytest
import torch
from torch import Tensor

from fdgsec.nn.styles.amplitude_spectra import amplitudes, exchange_amplitudes, window, window_mask
from fdgsec.runtime.random_streams import stream


def noise(*shape: int, name: str) -> Tensor:
    return torch.rand(*shape, generator=stream(0, "world", name), dtype=torch.float64)


def transformed(image: Tensor, *, inverse: bool = False) -> list[list[complex]]:
    """The discrete Fourier transform of (h, w) numbers by its definition."""
    height, width = image.shape
    sign, scale = (1, 1 / (height * width)) if inverse else (-1, 1)
    result = []
    for k, m in product(range(height), range(width)):
        terms = (
            complex(image[y, x]) * cmath.exp(sign * 2j * math.pi * (k * y / height + m * x / width))
            for y, x in product(range(height), range(width))
        )
        result.append(scale * sum(terms))
    return [result[row * width : (row + 1) * width] for row in range(height)]


def slowly_exchanged(image: Tensor, other: Tensor, share: float, ratio: float) -> Tensor:
    """FedDG's exchange on one channel: shift, mix a square about the center, shift back, keep the phase."""
    height, width = image.shape
    own, foreign = transformed(image), transformed(other)
    b = math.floor(min(height, width) * share)
    mixed = torch.zeros(height, width, dtype=torch.complex128)
    for row, column in product(range(height), range(width)):  # places in the shifted spectrum
        k, m = (row - height // 2) % height, (column - width // 2) % width
        amplitude = abs(own[k][m])
        if abs(row - height // 2) <= b and abs(column - width // 2) <= b:
            amplitude = ratio * amplitude + (1 - ratio) * abs(foreign[k][m])
        mixed[k, m] = torch.tensor(amplitude * cmath.exp(1j * cmath.phase(own[k][m])), dtype=torch.complex128)
    return torch.tensor(transformed(mixed, inverse=True), dtype=torch.complex128).real


@pytest.mark.parametrize(
    ("size", "share", "ratio"),
    [((8, 8), 0.25, 0.0), ((7, 9), 0.3, 0.4), ((8, 6), 0.5, 0.7), ((6, 6), 0.0, 0.1), ((5, 8), 0.2, 1.0)],
)
def test_the_exchange_is_that_of_the_shifted_spectrum(size: tuple[int, int], share: float, ratio: float):
    images, others = noise(2, 1, *size, name="a"), noise(2, 1, *size, name="b")

    made = exchange_amplitudes(images, amplitudes(others), b=window(share, size), ratio=ratio)

    slow = torch.stack([slowly_exchanged(images[i, 0], others[i, 0], share, ratio) for i in (0, 1)])
    assert torch.allclose(made[:, 0], slow, rtol=0, atol=1e-12)


def test_an_image_that_meets_its_own_amplitudes_comes_back_bit_by_bit():
    images = noise(3, 3, 16, 16, name="own").float()

    made = exchange_amplitudes(images, amplitudes(images), b=8, ratio=torch.tensor([0.0, 0.3, 1.0]))

    assert torch.equal(made, images)


def test_ratio_one_keeps_the_image_and_each_image_has_its_own_ratio():
    images, others = noise(2, 3, 8, 8, name="a"), amplitudes(noise(2, 3, 8, 8, name="b"))

    made = exchange_amplitudes(images, others, b=2, ratio=torch.tensor([1.0, 0.25]))

    assert torch.equal(made[0], images[0])
    assert torch.equal(made[1], exchange_amplitudes(images[1:], others[1:], b=2, ratio=0.25)[0])


def test_the_whole_window_gives_the_others_amplitudes_and_keeps_the_phases():
    images, others = noise(2, 3, 9, 8, name="a"), noise(2, 3, 9, 8, name="b")

    made = exchange_amplitudes(images, amplitudes(others), b=8)

    assert torch.allclose(amplitudes(made), amplitudes(others), rtol=1e-9, atol=1e-12)
    turned = torch.fft.rfft2(made) * torch.fft.rfft2(images).conj()
    assert float((turned.imag.abs() / turned.abs()).max()) < 1e-9


def test_a_window_of_frequency_0_exchanges_the_mean_color_and_nothing_else():
    images, others = noise(1, 3, 8, 8, name="a"), noise(1, 3, 8, 8, name="b")

    made = exchange_amplitudes(images, amplitudes(others), b=0)

    assert torch.allclose(made.mean((2, 3)), others.mean((2, 3)), rtol=1e-12)
    flat = (made - images).flatten(2)
    assert float((flat - flat[..., :1]).abs().max()) < 1e-12


def test_a_black_image_takes_amplitudes_with_phase_0():
    black, others = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)

    made = exchange_amplitudes(black, amplitudes(others), b=0)

    assert torch.equal(made, others)


@pytest.mark.parametrize(
    ("share", "size", "b"),
    [(0.003, (384, 384), 1), (0.003, (224, 224), 0), (0.29, (100, 120), 29), (0.1, (32, 48), 3), (0, (64, 64), 0)],
)
def test_the_half_width_is_the_floor_of_l_times_the_smaller_side(share: float, size: tuple[int, int], b: int):
    assert window(share, size) == b


def test_the_half_spectrum_holds_2b_plus_1_rows_and_b_plus_1_columns_of_the_window():
    marked = window_mask((8, 10), 2)

    assert marked.shape == (8, 6)
    assert marked.any(1).tolist() == [True, True, True, False, False, False, True, True]
    assert marked.any(0).tolist() == [True, True, True, False, False, False]
    assert int(marked.sum()) == 15


def test_what_does_not_fit_is_refused():
    images = noise(2, 3, 8, 8, name="a")

    with pytest.raises(ValueError, match=r"need amplitudes \(2, 3, 8, 5\); got \(2, 3, 8, 8\)"):
        exchange_amplitudes(images, images, b=1)
    with pytest.raises(ValueError, match="images must be float"):
        amplitudes(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]; got 1.5"):
        window(1.5, (8, 8))
