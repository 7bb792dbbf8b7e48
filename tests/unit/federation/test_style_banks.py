"""Banks of styles and spectra: rows, their owners, and artifacts of another kind."""

import pytest
import torch

from fdgsec.federation.artifacts import Amplitudes, ImageStyles, Scores, StyleStatistics
from fdgsec.federation.style_banks import stack_spectra, stack_styles, without_owner
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.runtime.random_streams import stream


def noise(*shape: int, name: str) -> torch.Tensor:
    return torch.rand(*shape, generator=stream(0, "world", name), dtype=torch.float64)


def styles(*rows: float) -> ImageStyles:
    return ImageStyles(mean=torch.tensor(rows).unsqueeze(1), std=torch.ones(len(rows), 1))


def test_single_styles_are_stacked_in_the_order_of_their_senders():
    shared = {"client:7": {"styles": styles(1.0, 2.0)}, "client:2": {"styles": styles(3.0)}}

    bank = stack_styles(shared, "styles", ImageStyles)

    assert bank.mean.flatten().tolist() == [1.0, 2.0, 3.0]
    assert bank.owner.tolist() == [7, 7, 2]


def test_an_overall_style_becomes_one_row():
    shared = {"client:1": {"style": StyleStatistics(mean=torch.tensor([1.0, 2.0]), std=torch.tensor([3.0, 4.0]))}}

    bank = stack_styles(shared, "style", StyleStatistics)

    assert bank.mean.tolist() == [[1.0, 2.0]]
    assert bank.std.tolist() == [[3.0, 4.0]]
    assert bank.owner.tolist() == [1]


def test_a_bank_without_an_owner_lacks_its_rows_alone():
    shared = {"client:0": {"styles": styles(1.0, 2.0)}, "client:1": {"styles": styles(3.0)}}

    bank = without_owner(stack_styles(shared, "styles", ImageStyles), 0)

    assert bank.mean.flatten().tolist() == [3.0]
    assert bank.owner.tolist() == [1]


def test_styles_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="client:0 should hold StyleStatistics in 'styles'; it holds ImageStyles"):
        stack_styles({"client:0": {"styles": styles(1.0)}}, "styles", StyleStatistics)


def test_rows_belong_to_their_sender_whatever_the_sender_says():
    first, second = (amplitudes(noise(rows, 3, 8, 8, name=f"{rows}").float()) for rows in (2, 1))
    shared = {
        "client:7": {"spectra": Amplitudes(values=second, owner=torch.tensor([0]))},
        "client:2": {"spectra": Amplitudes(values=first, owner=torch.tensor([5, 5]))},
    }

    bank = stack_spectra(shared, "spectra")

    assert bank.owner.tolist() == [2, 2, 7]
    assert torch.equal(bank.values, torch.cat([first, second]))


def test_another_artifact_where_spectra_should_be_is_named():
    with pytest.raises(TypeError, match="client:1 should hold Amplitudes in 'spectra'; it holds Scores"):
        stack_spectra({"client:1": {"spectra": Scores(values=torch.zeros(1))}}, "spectra")
    with pytest.raises(TypeError, match="it holds nothing"):
        stack_spectra({"client:1": {}}, "spectra")
