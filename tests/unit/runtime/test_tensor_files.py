"""Tensors of others: headers that lie about types, shapes and sizes take no memory and give one typed error."""

import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fdgsec.runtime.errors import ArtifactError, DataError
from fdgsec.runtime.tensor_files import DTYPES, read_npy, read_safetensors, safetensors_parts

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(7), "empty": torch.ones(0, 512)}


def test_tensors_come_back_in_the_order_of_the_header_with_its_text():
    content = save(TENSORS, {"note": "x"})

    found, metadata = read_safetensors(content, source="x")

    assert metadata == {"note": "x"}
    length = int.from_bytes(content[:8], "little")
    assert list(found) == [name for name in json.loads(content[8 : 8 + length]) if name != "__metadata__"]
    assert all(torch.equal(found[name], value) for name, value in TENSORS.items())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_that_is_written_is_read(dtype: torch.dtype):
    found, _ = read_safetensors(save({"x": torch.ones(3, dtype=dtype)}), source="x")

    assert found["x"].dtype == dtype


def test_what_is_written_in_pieces_is_what_the_library_writes():
    values = torch.arange(24).reshape(2, 3, 2, 2)
    kinds = {f"{number}.{name}": values.to(dtype) for number, (name, dtype) in enumerate(DTYPES.items())}
    others = {
        "scalar": torch.tensor(3), "empty": torch.zeros(0, 4), 'an "odd" n\u00e4me\n\x01': torch.ones(3),
        "channels last": values.float().contiguous(memory_format=torch.channels_last), "strided": values[:, 1].half(),
    }  # fmt: skip
    tensors = {**kinds, **others}

    for metadata in ({}, {"fdgsec": json.dumps({"kind": "x"})}):
        ours = b"".join(safetensors_parts(tensors, metadata))

        assert ours == save({name: value.contiguous() for name, value in tensors.items()}, metadata or None)


def file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def one(**changed: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


EIGHT = bytes(8)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00" * 7, b"\xff" * 64, (2**63).to_bytes(8, "little"), file(b"{"), file(b"[" * 5000), file([]), file({"x": 1}),
        file({"x": {}}), file(one(), b"\x00" * 7), file(one(), b"\x00" * 9), file(one(shape=[3]), EIGHT),
        file(one(shape=[2**62, 0], data_offsets=[0, 0])), file(one(shape=[2**31] * 3), EIGHT), file(one(shape=[-2]), EIGHT),
        file(one(shape=[2.0]), EIGHT), file(one(shape="2"), EIGHT), file(one(shape=[1] * 65 + [2]), EIGHT),
        file(one(shape=[True, 2]), EIGHT), file(one(dtype="C64", shape=[1]), EIGHT), file(one(dtype="F8_E4M3", shape=[8]), EIGHT),
        file(one(dtype=["F32"]), EIGHT), file(one(data_offsets=[0]), EIGHT), file(one(data_offsets=[8, 0]), EIGHT),
        file(one(data_offsets=[0, 10**30]), EIGHT), file(one(data_offsets=None), EIGHT), file(one(extra=1), EIGHT),
        file({**one(), "y": one()["x"]}, EIGHT), file({**one(), "__metadata__": 3}, EIGHT),
        file({**one(), "__metadata__": {"a": 1}}, EIGHT), file(b'{"\\ud800": 1}'),
    ],
    ids=range(31),
)  # fmt: skip
def test_what_is_no_safetensors_is_a_typed_error(content: bytes):
    with pytest.raises(ArtifactError, match=r"^the file is not safetensors: "):
        read_safetensors(content, source="the file", error=ArtifactError)


def npy(values: Any, *, by_columns: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values, order="F" if by_columns else "C"))
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "<i8", "u1"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_numbers_are_read_as_by_numpy(dtype: str, by_columns: bool):
    values = np.arange(6).reshape(2, 3).astype(dtype)

    found = read_npy(npy(values, by_columns=by_columns), source="x")

    assert found.dtype == values.dtype
    assert np.array_equal(found, values)


def header(text: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1") + body


SHAPED = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00", b"PK\x03\x04", npy(np.ones(3))[:-1], npy(np.ones(3)) + b"x", npy(["text"]),
        npy(np.ones(2, dtype=complex)), npy(np.array([1, 2], dtype="datetime64[s]")), header(""), header("{"), header("(" * 3000),
        header("{'descr': 1"), header("'" * 99), header("1if 1else 2\n"), header(SHAPED.format("<f8", "(4000000000, 512)")),
        header(SHAPED.format("<f8", "(9" + "9" * 4000 + ",)")), header(SHAPED.format("<f8", "(-1,)"), b"x"),
        header(SHAPED.format("<f8", "(2.5,)")), header(SHAPED.format("O", "(1,)"), b"x" * 8),
        header(SHAPED.format("<f0", "(0,)")), header(SHAPED.format("\\x00", "(1,)")), header("\\\n" * 300), header("[" + "-" * 900 + "1]"),
    ],
    ids=range(24),
)  # fmt: skip
def test_what_is_no_npy_of_numbers_is_a_typed_error(content: bytes):
    with pytest.raises(DataError, match=r"^v\.npy cannot be read as \.npy: "):
        read_npy(content, source="v.npy")


def test_promised_rows_take_no_memory():
    lie = header(SHAPED.format("<f8", "(4000000000, 512)"), bytes(1000))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="but 1000 bytes follow"):
            read_npy(lie, source="v.npy")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**20
