"""Banks of styles and spectra: rows, their owners, and artifacts of another kind."""

import pytest
import torch

from fdgsec.federation.artifacts import Amplitudes, ImageStyles, Scores, StyleBank, StyleStatistics, renumbered
from fdgsec.federation.style_banks import stack_spectra, stack_styles
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.runtime.errors import ArtifactError
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


POOL = {"client:0": {"styles": styles(1.0, 2.0)}, "client:1": {"styles": styles(3.0)}, "client:2": {"styles": styles()}}


def test_a_bank_without_an_owner_lacks_its_rows_alone():
    bank = stack_styles(POOL, "styles", ImageStyles).without_rows_of(0)

    assert bank.mean.flatten().tolist() == [3.0]
    assert bank.owner.tolist() == [1]


@pytest.mark.parametrize("owner", [0, 1, 2, 9])
def test_a_bank_of_others_is_the_bank_of_their_rows_to_the_bit(owner: int):
    whole = stack_styles(POOL, "styles", ImageStyles)
    others = whole.owner != owner
    plain = StyleBank(mean=whole.mean[others], std=whole.std[others], owner=whole.owner[others])

    bank = whole.without_rows_of(owner)

    assert isinstance(bank, StyleBank)
    assert (bank.kind, bank.bytes, bank.sha256, bank.encode()) == (
        plain.kind,
        plain.bytes,
        plain.sha256,
        plain.encode(),
    )
    assert all(torch.equal(value, plain.tensors()[name]) for name, value in bank.tensors().items())
    doubled, expected = (renumbered(each, lambda _, value: 2 * value) for each in (bank, plain))
    assert doubled.sha256 == expected.sha256
    assert bank.without_rows_of(1).sha256 == plain.without_rows_of(1).sha256


def test_styles_are_found_by_their_owner_in_their_order():
    whole = stack_styles(POOL, "styles", ImageStyles)

    found, others = whole.styles_of(0), whole.without_rows_of(0)

    assert found is not None
    assert found[0].flatten().tolist() == [1.0, 2.0]
    assert whole.styles_of(2) is others.styles_of(0) is None
    assert others.styles_of(1) is not None


def test_a_kind_whose_rows_have_no_owners_leaves_nobody_out():
    with pytest.raises(ArtifactError, match="ImageStyles has no rows of client 3 that could be left out"):
        styles(1.0).without_rows_of(3)


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
