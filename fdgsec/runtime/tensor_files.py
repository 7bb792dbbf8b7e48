"""Readers for tensors that others wrote: safetensors and .npy, whose headers may promise more than the file holds.

A header is read and compared with the size of the file before any memory is taken for what it describes."""

import io
import json
import math
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from fdgsec.runtime.errors import DataError, FdgsecError
from fdgsec.runtime.untrusted_text import parse_json_object

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The dtypes that are read and written, by their names in safetensors; complex numbers and 8-bit floats are not."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_IN_FILE = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
"""The order of dtypes in a file, as the library has it: the widest first, so that everything is aligned."""
LARGEST_HEADER = 2**24
MOST_AXES = 16
LONGEST_AXIS = 2**40
_NPY_HEADER = 10_000  # characters, numpy's own limit
# what numpy's reader of headers raises beside ValueError: it runs Python's tokenizer and parser on them
_NPY_DAMAGE = (
    ValueError, TypeError, SyntaxError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
    EOFError, tokenize.TokenError, Warning,
)  # fmt: skip


def safetensors_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, *, of: str = "the tensor"
) -> Iterator[bytes | memoryview]:
    """Yield the safetensors file of `tensors` in pieces: the bytes of the library's `save`, without a copy of them.

    `metadata` are the header's text fields. Raises TypeError, naming the tensor (`of`), for a dtype that is not
    written."""
    unknown = next((name for name, value in tensors.items() if value.dtype not in _NAMES), None)
    if unknown is not None:
        raise TypeError(f"{of} {unknown!r} is of {tensors[unknown].dtype}; a file holds {', '.join(map(str, _NAMES))}.")
    ordered = sorted(tensors.items(), key=lambda entry: (_IN_FILE.index(_NAMES[entry[1].dtype]), entry[0]))
    header, end = dict[str, object](), 0
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    for name, value in ordered:
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for _, value in ordered:
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def read_safetensors(
    content: bytes, *, source: str, error: type[FdgsecError] = DataError
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors by name, in the order of the header, and the header's text fields. Raises `error`."""
    try:
        header, metadata = _header(io.BytesIO(content), len(content))
        loaded = load(content)
    except (SafetensorError, FdgsecError, ValueError, RuntimeError) as fault:
        raise error(f"{source} is not safetensors: {fault}") from fault
    return {name: loaded[name] for name in header}, metadata  # the library gives them in no fixed order


def load_safetensors(path: Path, *, error: type[FdgsecError] = DataError) -> dict[str, Tensor]:
    """Map the tensors of a file by name, in the order of the header. Raises `error`."""
    try:
        with path.open("rb") as file:
            header, _ = _header(file, path.stat().st_size)
        loaded = load_file(path)
    except (SafetensorError, FdgsecError, ValueError, RuntimeError, OSError) as fault:
        raise error(f"{path} is not safetensors: {fault}") from fault
    return {name: loaded[name] for name in header}


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the header of a file of `size` bytes, checked against it: tensors by name, and text fields."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError(f"its header would have {length} bytes, the file has {size}.")
    if length > LARGEST_HEADER:
        raise ValueError(f"its header has {length} bytes; at most {LARGEST_HEADER} are read.")
    header = parse_json_object(file.read(length), source="its header")
    metadata = _metadata(header.pop("__metadata__", {}))
    _check_extent(header, size - 8 - length)
    return header, metadata


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its text fields are not text.")
    return found


def _check_extent(header: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless the tensors fill the `size` bytes after the header, one behind the other."""
    spans = sorted(_span(name, told) for name, told in header.items())
    ends = [0, *(end for _, end in spans)]
    if [start for start, _ in spans] != ends[:-1] or ends[-1] != size:
        raise ValueError(f"its tensors do not fill the {size} bytes after its header.")


def _span(name: str, told: Any) -> tuple[int, int]:
    """The first and last byte of a tensor. Raises ValueError where they are not what shape and dtype need."""
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its tensor {name} has no dtype, shape and data_offsets.")
    dtype, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"its tensor {name} is of {dtype!r}; {', '.join(DTYPES)} are read.")
    if not _sizes(shape, MOST_AXES) or math.prod(size or 1 for size in shape) > LONGEST_AXIS:
        raise ValueError(f"the shape of its tensor {name} is none.")
    if not _sizes(offsets, 2) or len(offsets) != 2:
        raise ValueError(f"the offsets of its tensor {name} are none.")
    start, end = offsets
    if end - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"its tensor {name} has {end - start} bytes, which is not {tuple(shape)} of {dtype}.")
    return start, end


def _sizes(found: object, most: int) -> bool:
    return (
        isinstance(found, list) and len(found) <= most and all(type(one) is int and 0 <= one <= 2**62 for one in found)
    )


def read_npy(content: bytes, *, source: str, error: type[FdgsecError] = DataError) -> npt.NDArray[Any]:
    """Read a .npy array of real numbers. Raises `error` for other dtypes, and for more numbers than the file holds."""
    try:
        file = io.BytesIO(content)
        shape, by_columns, dtype = _npy_header(file)
        if dtype.kind not in "fiu":
            raise ValueError(f"it holds {dtype}, not numbers")
        held = len(content) - file.tell()
        if math.prod(shape) * dtype.itemsize != held:
            raise ValueError(f"its header promises {tuple(shape)} of {dtype}, but {held} bytes follow")
        flat = np.frombuffer(content, dtype=dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if by_columns else "C")
    except _NPY_DAMAGE as fault:
        raise error(f"{source} cannot be read as .npy: {fault}.") from fault


def _npy_header(file: io.BytesIO) -> tuple[Sequence[int], bool, np.dtype[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its format is {version[0]}.{version[1]}; 1.0 and 2.0 hold numbers")
        reads = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return reads(file, max_header_size=_NPY_HEADER)
