"""How hostile inputs are made of valid ones: changed bytes, and changed values of structured documents."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Draw = np.random.Generator
"""What draws inputs."""
VALUES: Sequence[Any] = (
    None, True, False, 0, 1, -1, 2, 5, 0.5, -0.0, 1e-300, 1e308, 2**31, 2**62, 2**63, -(2**63), 2**64, 10**25, 10**400,
    math.nan, math.inf, -math.inf, "", "x", "none", "inf", "nan", "\x00", "é", "a/b", "../../x", "x" * 300, "9" * 5000,
    [], {}, [[]], [0], [5], ["x"], {"x": 1}, {"": None}, [None] * 3, [1.5, "a"], "client:1", "client:x", "server",
    "anonymous:2",
)  # fmt: skip
"""Values that take the place of others in structured inputs."""
PIECES: Sequence[bytes] = (
    b"", b"\x00", b"\xff", b"\xff\xfe", b"[" * 5000, b'{"a":' * 2000, b"9" * 5000, b"-", b"1e999", b"NaN", b"Infinity",
    b"null", b'"\\ud800"', b"'", b'"', b"\\", b"\n", b"\r\n", b",", b":", b"=", b"{", b"}", b"]", b"(", b"0x", b"0",
    b"\x80\x04", b"PK\x03\x04", b"\x1b[2J", (2**63 - 1).to_bytes(8, "little"), (2**31 - 1).to_bytes(4, "little"),
    b"4000000000", b"F8_E4M3", b"C64", b"|O", b"auto", b"inf", b"true", b".", b"#", b"[[", b"__metadata__",
    b"\xe2\x80\xae",
)  # fmt: skip
"""Bytes that are put into others."""


def damaged(content: bytes, rng: Draw) -> bytes:
    """Change some bytes: flips, cuts, copies, and pieces that readers stumble over."""
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(made) + 1))
        span = int(rng.integers(1, 9))
        kind = int(rng.integers(6))
        if kind == 0 and place < len(made):
            made[place] ^= 1 << int(rng.integers(8))
        elif kind == 1 and place < len(made):
            made[place] = int(rng.integers(256))
        elif kind == 2:
            del made[place : place + span]
        elif kind == 3:
            made[place : place + int(rng.integers(0, 2)) * span] = PIECES[int(rng.integers(len(PIECES)))]
        elif kind == 4:
            made[place:place] = made[max(0, place - 4 * span) : place]
        elif rng.integers(4) == 0:
            del made[place:]
    return bytes(made)


def changed(document: Any, rng: Draw) -> Any:
    """Change plain data somewhere: another value, a missing or an additional entry."""
    kind = int(rng.integers(8))
    if isinstance(document, dict) and document and kind:
        name = sorted(document)[int(rng.integers(len(document)))]
        if kind == 1:
            return {key: value for key, value in document.items() if key != name}
        if kind == 2:
            return {**document, str(any_value(rng)): any_value(rng)}
        return {**document, name: changed(document[name], rng)}
    if isinstance(document, list) and document and kind:
        place = int(rng.integers(len(document)))
        return [*document[:place], changed(document[place], rng), *document[place + 1 :]]
    return any_value(rng)


def any_value(rng: Draw) -> Any:
    """Draw one of VALUES."""
    return VALUES[int(rng.integers(len(VALUES)))]


def changed_json(content: bytes, rng: Draw) -> bytes:
    """Half of the time change the values of a JSON document, else its bytes."""
    if rng.integers(2):
        return damaged(content, rng)
    document = json.loads(content)
    for _ in range(int(rng.integers(1, 4))):
        document = changed(document, rng)
    return json.dumps(document).encode()
