import hashlib
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    HeadGradient,
    ImageStyles,
    ModelState,
    Prototypes,
    StyleBank,
    StyleStatistics,
    decode,
)  # fmt: skip
from fdgsec.runtime.errors import ArtifactError


def bank() -> StyleBank:
    return StyleBank(mean=torch.arange(6.0).reshape(3, 2), std=torch.ones(3, 2), owner=torch.tensor([0, 0, 1]))


def test_an_artifact_survives_the_network():
    received = decode(bank().encode())

    assert isinstance(received, StyleBank)
    assert torch.equal(received.mean, bank().mean)
    assert received.sha256 == bank().sha256


def test_bytes_are_what_the_paper_counts():
    style = StyleStatistics(mean=torch.zeros(512), std=torch.zeros(512))

    assert style.bytes == 4096


@pytest.mark.parametrize(
    ("mean", "std", "complaint"),
    [
        (torch.tensor([1.0, float("nan")]), torch.ones(2), "not finite"),
        (torch.tensor([1.0, float("inf")]), torch.ones(2), "not finite"),
        (torch.ones(2), torch.tensor([1.0, -0.5]), ">= 0"),
        (torch.ones(2), torch.ones(3), "expects"),
        (torch.ones(2, 2), torch.ones(2, 2), "expects"),
    ],
)
def test_an_illegal_style_cannot_be_made(mean: torch.Tensor, std: torch.Tensor, complaint: str):
    with pytest.raises(ArtifactError, match=complaint):
        StyleStatistics(mean=mean, std=std)


def test_an_illegal_style_cannot_be_loaded():
    header = {"fdgsec": json.dumps({"kind": "ImageStyles", "schema": 1})}
    content = save({"mean": torch.full((2, 2), float("nan")), "std": torch.ones(2, 2)}, header)

    with pytest.raises(ArtifactError, match="not finite"):
        decode(content)


@pytest.mark.parametrize(
    ("header", "tensors"),
    [
        ({"fdgsec": json.dumps({"kind": "Surprise", "schema": 1})}, {"mean": torch.ones(1)}),
        ({"fdgsec": json.dumps({"kind": "ImageStyles", "schema": 9})}, {"mean": torch.ones(1, 1), "std": torch.ones(1, 1)}),
        ({"fdgsec": json.dumps({"kind": "ImageStyles", "schema": 1})}, {"mean": torch.ones(1, 1)}),
        ({"other": "x"}, {"mean": torch.ones(1, 1)}),
        ({"fdgsec": "[1, 2]"}, {"mean": torch.ones(1, 1)}),
    ],
)  # fmt: skip
def test_foreign_files_are_refused(header: dict[str, str], tensors: dict[str, torch.Tensor]):
    with pytest.raises(ArtifactError):
        decode(save(tensors, header))


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 64, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_bytes_that_are_no_artifact_are_refused(content: bytes):
    with pytest.raises(ArtifactError, match="not an fdgsec artifact"):
        decode(content)


def test_a_model_state_keeps_integers_and_names():
    state = {"norm.running_mean": torch.ones(3), "norm.num_batches_tracked": torch.tensor(7)}

    received = decode(ModelState(state=state).encode())

    assert set(received.tensors()) == set(state)
    assert int(received.tensors()["norm.num_batches_tracked"]) == 7


def test_equal_artifacts_have_equal_hashes_and_others_do_not():
    one = ImageStyles(mean=torch.ones(1, 2), std=torch.ones(1, 2))
    other = ImageStyles(mean=torch.ones(1, 2), std=torch.full((1, 2), 1.0001))

    assert one.sha256 == ImageStyles(mean=torch.ones(1, 2), std=torch.ones(1, 2)).sha256
    assert one.sha256 != other.sha256


def write_in_place(values: Tensor) -> None:
    values[0] = 9.0


def write_through_data(values: Tensor) -> None:
    values.data[0] = 9.0  # torch counts no change


def write_through_numpy(values: Tensor) -> None:
    values.numpy()[0] = 9.0


def write_through_a_view_without_gradient(values: Tensor) -> None:
    values.detach()[0] = 9.0


@pytest.mark.parametrize(
    "write",
    [write_in_place, write_through_data, write_through_numpy, write_through_a_view_without_gradient],
    ids=lambda write: write.__name__,
)
def test_the_hash_is_that_of_the_encoded_bytes_however_a_tensor_was_changed(write: Callable[[Tensor], None]):
    sent = bank()
    first = sent.sha256

    assert sent.sha256 == first == hashlib.sha256(sent.encode()).hexdigest()
    write(sent.mean)  # nobody should, and yet a transcript must not say something else than was sent
    assert sent.sha256 == hashlib.sha256(sent.encode()).hexdigest() != first


def test_the_hash_follows_the_array_that_a_tensor_was_made_of():
    own = np.ones(2, dtype=np.float32)
    sent = StyleStatistics(mean=torch.from_numpy(own), std=torch.ones(2))
    first = sent.sha256

    own[0] = 9.0

    assert sent.sha256 == hashlib.sha256(sent.encode()).hexdigest() != first


def test_tensors_without_a_count_of_changes_are_hashed_each_time():
    with torch.inference_mode():
        sent = StyleStatistics(mean=torch.ones(2), std=torch.ones(2))
        first = sent.sha256
        sent.mean.fill_(2)

        assert sent.sha256 == hashlib.sha256(sent.encode()).hexdigest() != first


SPECTRA = Amplitudes(values=torch.ones(2, 3, 4, 3), owner=torch.tensor([0, 1]))
CENTERS = Prototypes(features=torch.ones(2, 5), classes=torch.tensor([0, 6]))
GRADIENT = HeadGradient(weight=torch.ones(7, 5), bias=torch.ones(7))


@pytest.mark.parametrize("sent", [SPECTRA, CENTERS, GRADIENT], ids=lambda artifact: artifact.kind)
def test_what_the_baselines_send_survives_the_wire(sent: Artifact):
    received = decode(sent.encode())

    assert type(received) is type(sent)
    assert all(torch.equal(received.tensors()[name], value) for name, value in sent.tensors().items())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Amplitudes(values=torch.ones(2, 3, 4), owner=torch.tensor([0, 1])), "values"),
        (lambda: Amplitudes(values=-torch.ones(1, 3, 4, 3), owner=torch.tensor([0])), "must be >= 0"),
        (lambda: Amplitudes(values=torch.ones(2, 3, 4, 3), owner=torch.tensor([0])), "owner"),
        (lambda: Prototypes(features=torch.ones(2, 5), classes=torch.tensor([0])), "classes"),
        (lambda: HeadGradient(weight=torch.ones(7, 5), bias=torch.ones(6)), "bias"),
    ],
    ids=["flat spectra", "negative amplitude", "owners missing", "classes missing", "bias too short"],
)
def test_shapes_that_do_not_fit_are_refused(make, said: str):
    with pytest.raises(ArtifactError, match=said):
        make()
