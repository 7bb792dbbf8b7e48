"""Every kind of artifact: which shapes and values it refuses, and what comes back of it from bytes."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from fdgsec.federation.artifacts import (
    KINDS,
    SCHEMA,
    Artifact,
    GeneratorState,
    ModelState,
    Scores,
    StyleBank,
    decode,
    kind_named,
    released_numbers,
    renumbered,
)
from fdgsec.runtime.errors import ArtifactError

ONE: Mapping[str, Mapping[str, Tensor]] = {
    "StyleStatistics": {"mean": torch.tensor([-1.0, 2.0]), "std": torch.tensor([0.0, 4.0])},
    "StyleDistribution": {
        "mean": torch.tensor([-1.0]), "std": torch.zeros(1), "mean_spread": torch.zeros(1), "std_spread": torch.ones(1),
    },
    "ImageStyles": {"mean": -torch.ones(3, 2), "std": torch.zeros(3, 2)},
    "StyleBank": {"mean": -torch.ones(3, 2), "std": torch.zeros(3, 2), "owner": torch.tensor([0, 1, 1])},
    "InterpolationStyle": {"mean": -torch.ones(2), "std": torch.zeros(2)},
    "ModelState": {"b": torch.ones(2), "a": torch.tensor(7), "empty": torch.ones(0)},
    "GeneratorState": {"z": torch.ones(2), "a": torch.ones(1)},
    "Amplitudes": {"values": torch.zeros(2, 3, 4, 3), "owner": torch.tensor([0, 4])},
    "Prototypes": {"features": -torch.ones(2, 5), "classes": torch.tensor([6, 0])},
    "HeadGradient": {"weight": -torch.ones(7, 5), "bias": torch.ones(7)},
    "Scores": {"values": torch.tensor([-1.0, 2.0])},
}  # fmt: skip


def made(kind: str, **changed: Tensor) -> Artifact:
    tensors = {**ONE[kind], **changed}
    cls = KINDS[kind]
    return cls(state=tensors) if issubclass(cls, ModelState) else cls(**tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_from_its_bytes_with_names_in_their_order(kind: str):
    sent = made(kind)

    received = decode(sent.encode())

    assert type(received) is KINDS[kind]
    assert set(received.tensors()) == set(ONE[kind])
    assert all(torch.equal(received.tensors()[name], value) for name, value in ONE[kind].items())
    assert received.bytes == sent.bytes == sum(v.numel() * v.element_size() for v in ONE[kind].values())
    assert received.sha256 == sent.sha256 == hashlib.sha256(sent.encode()).hexdigest()


@pytest.mark.parametrize("kind", KINDS)
def test_the_tensors_of_a_kind_are_those_of_its_fields(kind: str):
    assert list(made(kind).tensors()) == list(ONE[kind])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in ONE[kind] if name != "empty"])
def test_one_number_that_is_not_finite_is_refused_wherever_it_is(kind: str, name: str, bad: float):
    value = ONE[kind][name].clone()
    if not value.is_floating_point():
        return
    value.view(-1)[-1] = bad

    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} has 1 values that are not finite"):
        made(kind, **{name: value})


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("StyleStatistics", "ImageStyles", "StyleBank", "InterpolationStyle") for name in ("std",)]
    + [("StyleDistribution", name) for name in ("std", "mean_spread", "std_spread")] + [("Amplitudes", "values")],
)  # fmt: skip
def test_one_negative_number_is_refused_where_there_cannot_be_any(kind: str, name: str):
    value = ONE[kind][name].clone()
    value.view(-1)[-1] = -1e-30

    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} must be >= 0"):
        made(kind, **{name: value})


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("StyleStatistics", {"mean": torch.ones(1, 2), "std": torch.ones(1, 2)}),
        ("StyleStatistics", {"std": torch.ones(3)}),
        ("StyleStatistics", {"mean": torch.tensor(1.0), "std": torch.tensor(1.0)}),
        ("InterpolationStyle", {"mean": torch.ones(1, 2), "std": torch.ones(1, 2)}),
        ("StyleDistribution", {"mean_spread": torch.ones(2)}),
        ("StyleDistribution", {"std_spread": torch.ones(2)}),
        ("ImageStyles", {"mean": torch.ones(2), "std": torch.ones(2)}),
        ("ImageStyles", {"std": torch.ones(2, 2)}),
        ("StyleBank", {"owner": torch.tensor([0, 1])}),
        ("StyleBank", {"owner": torch.tensor([[0, 1, 1]])}),
        ("Amplitudes", {"values": torch.ones(2, 3, 4)}),
        ("Amplitudes", {"owner": torch.tensor([0, 1, 2])}),
        ("Prototypes", {"features": torch.ones(2, 5, 1)}),
        ("Prototypes", {"classes": torch.tensor([1])}),
        ("HeadGradient", {"weight": torch.ones(7)}),
        ("HeadGradient", {"bias": torch.ones(5)}),
    ],
)  # fmt: skip
def test_shapes_that_do_not_belong_together_are_refused(kind: str, changed: Mapping[str, Tensor]):
    with pytest.raises(ArtifactError, match=f"{kind} expects"):
        made(kind, **changed)


def encoded(tensors: Mapping[str, Tensor], **record: object) -> bytes:
    told = {"kind": "ImageStyles", "schema": SCHEMA, **record}
    return save(dict(tensors), {"fdgsec": json.dumps({k: v for k, v in told.items() if v is not None})})


@pytest.mark.parametrize(
    ("tensors", "record", "said"),
    [
        (ONE["ImageStyles"], {"schema": 2}, "has kind 'ImageStyles', schema 2"),
        (ONE["ImageStyles"], {"schema": 0}, "schema 0"),
        (ONE["ImageStyles"], {"schema": None}, "schema None"),
        (ONE["ImageStyles"], {"kind": "Nothing"}, "has kind 'Nothing'"),
        (ONE["ImageStyles"], {"kind": "artifact"}, "has kind 'artifact'"),
        (ONE["ImageStyles"], {"kind": None}, "is not an fdgsec artifact"),
        ({"mean": torch.ones(1, 1)}, {}, "must hold"),
        ({**ONE["ImageStyles"], "more": torch.ones(1)}, {}, "must hold"),
    ],
)
def test_bytes_with_another_schema_kind_or_content_are_refused(
    tensors: Mapping[str, Tensor], record: dict[str, object], said: str
):
    with pytest.raises(ArtifactError, match=f"^the file.*{said}"):
        decode(encoded(tensors, **record), source="the file")


def test_a_model_comes_back_in_the_order_of_the_header_and_a_generator_as_one():
    received = decode(made("ModelState").encode())

    assert isinstance(received, ModelState)
    assert not isinstance(received, GeneratorState)
    header = made("ModelState").encode()
    length = int.from_bytes(header[:8], "little")
    assert list(received.state) == [name for name in json.loads(header[8 : 8 + length]) if name != "__metadata__"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Loudness(Artifact):
    kind: ClassVar[str] = "Loudness"
    level: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _Louder(_Loudness):
    kind: ClassVar[str] = "Louder"


def test_kinds_of_this_process_are_found_below_other_kinds_and_unknown_ones_are_none():
    assert kind_named("Loudness") is _Loudness
    assert kind_named("Louder") is _Louder
    assert kind_named("Scores") is Scores
    assert kind_named("Silence") is None
    assert isinstance(decode(_Louder(level=torch.ones(1)).encode()), _Louder)


@pytest.mark.parametrize(
    ("artifact", "shapes"),
    [
        (lambda: made("StyleStatistics"), {"mean": (1, 2), "std": (1, 2)}),
        (lambda: made("ImageStyles"), {"mean": (3, 2), "std": (3, 2)}),
        (lambda: made("Amplitudes"), {"values": (2, 36)}),
    ],
)
def test_released_numbers_are_rows_in_float64_without_owners(
    artifact: Callable[[], Artifact], shapes: Mapping[str, tuple[int, ...]]
):
    found = released_numbers(artifact())

    assert {name: tuple(value.shape) for name, value in found.items()} == shapes
    assert {value.dtype for value in found.values()} == {torch.float64}


def test_a_changed_copy_keeps_owners_and_leaves_the_first_as_it_was():
    bank = StyleBank(**ONE["StyleBank"])

    other = renumbered(bank, lambda name, value: value + (1 if name == "mean" else 2))

    assert isinstance(other, StyleBank)
    assert (other.mean.tolist(), other.std.tolist()) == ([[0.0, 0.0]] * 3, [[2.0, 2.0]] * 3)
    assert other.owner is bank.owner
    assert float(bank.mean.max()) == -1


FLOATING = [(kind, name) for kind in KINDS for name in ONE[kind] if ONE[kind][name].is_floating_point()]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, name in FLOATING if kind not in ("ModelState", "GeneratorState")]
)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_numbers_that_are_no_real_floats_are_refused(kind: str, name: str, dtype: torch.dtype):
    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} must be a dense tensor of float16, bfloat16, float32"):
        made(kind, **{name: ONE[kind][name].to(dtype)})


@pytest.mark.parametrize("kind", ["ModelState", "GeneratorState"])
@pytest.mark.parametrize("value", [torch.tensor([complex(float("nan"), 0)]), torch.ones(2).to_sparse()])
def test_a_model_holds_no_complex_and_no_sparse_numbers(kind: str, value: Tensor):
    with pytest.raises(ArtifactError, match=rf"{kind}\.z must be a dense tensor"):
        made(kind, z=value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "name"), FLOATING)
def test_every_real_float_type_is_accepted(kind: str, name: str, dtype: torch.dtype):
    tensors = {other: value.to(dtype) if value.is_floating_point() else value for other, value in ONE[kind].items()}

    assert made(kind, **tensors).tensors()[name].dtype == dtype


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in FLOATING if name != "empty"])
def test_numbers_whose_squares_leave_float32_are_refused_and_smaller_ones_are_not(kind: str, name: str):
    value = ONE[kind][name].clone()
    value.view(-1)[-1] = 9.9e17
    made(kind, **{name: value})

    value.view(-1)[-1] = 1e37
    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} holds 1e\+37; numbers up to 1e\+(18|36) are accepted"):
        made(kind, **{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        ("Prototypes", "classes", -1), ("Prototypes", "classes", 2**62), ("Prototypes", "classes", 2**31),
        ("StyleBank", "owner", 2**62), ("StyleBank", "owner", -(2**62)), ("Amplitudes", "owner", 2**31),
    ],
)  # fmt: skip
def test_classes_and_owners_that_no_federation_has_are_refused(kind: str, name: str, number: int):
    value = ONE[kind][name].clone()
    value[0] = number

    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} must lie from -?\d+ to 2147483647"):
        made(kind, **{name: value})


@pytest.mark.parametrize(("kind", "name"), [("Prototypes", "classes"), ("StyleBank", "owner"), ("Amplitudes", "owner")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_classes_and_owners_are_64_bit_integers(kind: str, name: str, dtype: torch.dtype):
    with pytest.raises(ArtifactError, match=rf"{kind}\.{name} must be a dense tensor of int64"):
        made(kind, **{name: ONE[kind][name].to(dtype)})


def test_owners_without_a_name_are_negative_and_accepted():
    assert made("StyleBank", owner=torch.tensor([-1, -2, -5])).tensors()["owner"].tolist() == [-1, -2, -5]
