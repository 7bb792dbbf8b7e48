"""Rounding to few levels of a public range: what leaves is on the grid, near what was, and promised nothing."""

import math

import pytest
import torch

from fdgsec.defenses.quantize import Quantize
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    ModelState,
    StyleDistribution,
    StyleStatistics,
)
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from tests.support.outgoings import outgoing


def rng(seed: int = 0) -> SecretStream:
    return simulated_stream(seed, "test")


def sent(defense: Quantize, artifact: Artifact, seed: int = 0) -> dict[str, torch.Tensor]:
    protected = defense.on_message(outgoing(artifact), rng(seed))
    assert protected is not None
    assert protected.uses is None
    assert type(protected.artifact) is type(artifact)
    return protected.artifact.tensors()


def rows() -> ImageStyles:
    return ImageStyles(
        mean=4 * torch.rand(50, 40, generator=rng(7).generator()) - 2,
        std=2 * torch.rand(50, 40, generator=rng(8).generator()),
    )


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_number_is_on_one_of_two_to_the_bits_levels(rounding: str):
    found = sent(Quantize(bits=3, low=-2, high=2, rounding=rounding), rows())  # type: ignore[arg-type]

    levels = torch.tensor([-2 + 4 * k / 7 for k in range(8)])
    assert torch.cdist(found["mean"].reshape(-1, 1), levels.reshape(-1, 1)).amin(1).max() < 1e-6
    assert len(found["mean"].unique()) == 8
    levels = torch.tensor([2 * k / 7 for k in range(8)])  # a std's range begins at 0
    assert torch.cdist(found["std"].reshape(-1, 1), levels.reshape(-1, 1)).amin(1).max() < 1e-6


def test_nearest_is_off_by_half_a_step_at_most_and_rounds_again_to_itself():
    style, defense = rows(), Quantize(bits=5, low=-2, high=2)

    once = sent(defense, style)
    twice = sent(defense, ImageStyles(mean=once["mean"], std=once["std"]))

    assert float((once["mean"] - style.mean).abs().max()) <= 4 / 31 / 2 + 1e-6
    assert torch.equal(once["mean"], twice["mean"])
    assert torch.equal(once["std"], twice["std"])


def test_stochastic_rounding_has_the_right_mean_and_is_off_by_less_than_a_step():
    many = 200_000
    style = StyleStatistics(mean=torch.full((many,), 0.3), std=torch.full((many,), 0.9))

    found = sent(Quantize(bits=2, low=-2, high=1, rounding="stochastic"), style)["mean"].double()

    # levels are 1 apart: 0 with probability .7, 1 with .3
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert abs(float(found.mean()) - 0.3) < 5 * math.sqrt(0.3 * 0.7 / many)


def test_nearest_draws_nothing_and_stochastic_draws_from_its_coins():
    style = rows()

    assert torch.equal(sent(Quantize(), style, seed=0)["mean"], sent(Quantize(), style, seed=1)["mean"])
    chance = Quantize(rounding="stochastic")
    assert torch.equal(sent(chance, style, seed=0)["mean"], sent(chance, style, seed=0)["mean"])
    assert not torch.equal(sent(chance, style, seed=0)["mean"], sent(chance, style, seed=1)["mean"])


def test_what_lies_outside_the_range_is_cut_off():
    style = StyleStatistics(mean=torch.tensor([-9.0, 9.0]), std=torch.tensor([0.0, 9.0]))

    found = sent(Quantize(low=-1, high=2), style)

    assert found["mean"].tolist() == [-1.0, 2.0]
    assert found["std"].tolist() == [0.0, 2.0]


def test_the_spreads_of_a_distribution_begin_at_zero():
    low = torch.tensor([0.01])
    style = StyleDistribution(mean=low, std=low, mean_spread=low, std_spread=low)

    found = sent(Quantize(bits=1, low=-1, high=1), style)

    assert found["mean_spread"].tolist() == [0.0]
    assert found["mean"].tolist() == [1.0]  # of -1 and 1, the nearer one


def test_no_spectrum_of_an_image_is_cut_off():
    white = torch.fft.rfft2(torch.ones(1, 3, 8, 8)).abs()

    found = sent(Quantize(bits=8), Amplitudes(values=white, owner=torch.tensor([0])))

    assert float(found["values"].max()) == 64.0  # the sum of all pixels, the largest there is


def test_models_are_none_of_its_business():
    assert Quantize().on_message(outgoing(ModelState(state={"w": torch.ones(3)})), rng()) is None


@pytest.mark.parametrize("options", [{"bits": 0}, {"bits": 24}, {"low": 1.0, "high": 1.0}, {"low": -2.0, "high": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(UsageError, match="quantize needs"):
        Quantize(**options)  # type: ignore[arg-type]
