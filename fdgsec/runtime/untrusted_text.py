"""One reader for JSON and TOML that others wrote: files, messages of the network, options of the command line.

Whatever they hold, the result is plain data or an FdgsecError, and memory is bounded: by the size of a document, its
depth, and the length of its integers. Python's own readers raise RecursionError, UnicodeDecodeError and ValueError, and
give integers of thousands of digits, on which later arithmetic fails with an OverflowError."""

import json
import os
import re
import tomllib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fdgsec.runtime.errors import DataError, FdgsecError, UsageError

LARGEST_JSON, LARGEST_TOML = 2**28, 2**18
"""Bytes of a document. The largest that fdgsec writes are reports and transcripts of some megabytes."""
DEEPEST = 100
"""Tables and lists inside each other."""
INTEGERS = range(-(2**63), 2**64)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# tomllib's own errors are ValueErrors; what nobody expected in it is of these
_DAMAGE = (ValueError, RecursionError, TypeError, AttributeError, LookupError, ArithmeticError)


def read_bytes(path: Path, *, largest: int, error: type[FdgsecError] = DataError) -> bytes:
    """Read a file of at most `largest` bytes. Raises `error` where it is larger or cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # Python takes the memory for as many bytes as it is asked for
            content = file.read(min(size, largest) + 1)
    except (OSError, ValueError) as fault:  # a name with a null byte is a ValueError
        raise error(f"{path} cannot be read: {getattr(fault, 'strerror', None) or fault}.") from fault
    if len(content) > largest:
        raise error(f"{path} cannot be read: it has more than {largest} bytes.")
    return content


def read_json(path: Path, *, error: type[FdgsecError] = DataError) -> Any:
    """Read a JSON file. Raises `error`, naming the file."""
    return parse_json(read_bytes(path, largest=LARGEST_JSON, error=error), source=str(path), error=error)


def read_json_object(path: Path, *, error: type[FdgsecError] = DataError) -> dict[str, Any]:
    """Read a JSON file that must hold an object. Raises `error`, naming the file."""
    return parse_json_object(read_bytes(path, largest=LARGEST_JSON, error=error), source=str(path), error=error)


def parse_json(content: str | bytes, *, source: str, error: type[FdgsecError] = DataError, bits: int = 64) -> Any:
    """Parse JSON with integers of at most `bits`; `source` names it in errors. Raises `error`."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        if len(text) > LARGEST_JSON:
            raise ValueError(f"it has {len(text)} characters")
        found = json.loads(text, parse_int=partial(_integer, bits=bits))
        if text.count("[") + text.count("{") > DEEPEST or not text.isascii() or _SURROGATE.search(text):
            check_plain(found, bits=bits)
    except (ValueError, RecursionError) as fault:
        raise error(f"{source} cannot be read: {_reason(fault)}.") from fault
    return found


def parse_json_object(
    content: str | bytes, *, source: str, error: type[FdgsecError] = DataError, bits: int = 64
) -> dict[str, Any]:
    """Parse JSON that must be an object; see `parse_json`. Raises `error`."""
    found = parse_json(content, source=source, error=error, bits=bits)
    if not isinstance(found, dict):
        raise error(f"{source} is no JSON object; it was altered, or is something else.")
    return found


def parse_toml(content: str | bytes, *, source: str, error: type[FdgsecError] = DataError) -> dict[str, Any]:
    """Parse TOML; `source` names it in errors. Raises `error`."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        if len(text) > LARGEST_TOML:
            raise ValueError(f"it has {len(text)} characters")
        found = tomllib.loads(text)
        check_plain(found)
    except _DAMAGE as fault:
        raise error(f"{source} is not TOML: {_reason(fault)}.") from fault
    return found


def check_text(text: str, *, error: type[FdgsecError] = UsageError) -> None:
    """Raise `error` for text that is not Unicode: an argument of the command line in another encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise error(f"{text!r} is not text in UTF-8.") from fault


def check_plain(document: object, *, bits: int = 64) -> None:
    """Raise ValueError for data nested deeper than DEEPEST, integers of more than `bits`, and text that is no Unicode.

    Of 64 bits, negative integers are those of int64, others those of uint64."""
    level: list[object] = [document]
    for _ in range(DEEPEST):
        for value in level:
            if isinstance(value, int) and not _fits(value, bits):
                raise ValueError(_too_long(value.bit_length(), "bits", bits))
            if isinstance(value, str):
                value.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple) else ()


def _integer(text: str, *, bits: int) -> int:
    if len(text) > bits or not _fits(value := int(text), bits):
        raise ValueError(_too_long(len(text), "characters", bits))
    return value


def _fits(value: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= value < 1 << bits


def _too_long(length: int, unit: str, bits: int) -> str:
    return f"it holds an integer of {length} {unit}; {bits} bits are the limit"


def _reason(fault: BaseException) -> str:
    if isinstance(fault, RecursionError):
        return "it is nested too deeply"
    return str(fault) or type(fault).__name__
