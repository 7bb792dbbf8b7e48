"""JSON and TOML of others: plain data within bounds, or one typed error that names the source."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fdgsec.runtime.errors import LONGEST_LINE, ArtifactError, DataError, FdgsecError, message_line
from fdgsec.runtime.progress import warn
from fdgsec.runtime.untrusted_text import (
    DEEPEST,
    parse_json,
    parse_json_object,
    parse_toml,
    read_bytes,
    read_json,
    read_json_object,
)


@pytest.mark.parametrize(
    "value",
    [{}, [], 0, -(2**63), 2**64 - 1, 1.5, "é", None, True, {"a": [{"b": "c"}]}, json.loads("[" * 50 + "]" * 50)],
)
def test_ordinary_json_is_read_as_by_python(value: Any):
    assert parse_json(json.dumps(value), source="x") == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), source="x") == value


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "nul", "[" * 5000, "[" * 100_000, "[" * 5000 + "]" * 5000, '{"a":' * 5000, "9" * 5000, str(2**64),
        str(-(2**63) - 1), "1" + "0" * 400, '"\\ud800"', '{"\\udfff": 1}', b"\xff", b"\xef\xbb\xbf{}", "\ud800", '"\ud800"',
        b"\x00\x00", "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    ],
    ids=range(19),
)  # fmt: skip
def test_what_is_no_plain_json_is_a_typed_error(content: str | bytes):
    with pytest.raises(ArtifactError, match=r"^the thing cannot be read: .*\.$"):
        parse_json(content, source="the thing", error=ArtifactError)


@pytest.mark.parametrize(
    "content",
    [
        "a", "a = ", "a = " + "[" * 5000, "a = " + "9" * 5000, f"a = {2**64}", b"a = '\xff'", "a = '\ud800'",
        "a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), ".".join("a" * (DEEPEST + 2)) + " = 1", "#" * 300_000,
        "a = 0x" + "f" * 5000, "a = 2000-99-99",
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_plain_toml_is_a_typed_error(content: str | bytes):
    with pytest.raises(DataError, match=r"^preset x is not TOML: .*\.$"):
        parse_toml(content, source="preset x")


def test_toml_is_read_as_by_python():
    assert parse_toml(b"[a]\nb = [1, 2.5, 'c']\n", source="x") == {"a": {"b": [1, 2.5, "c"]}}


def test_an_object_is_asked_for_and_nothing_else_taken(tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_text("[1]")

    assert read_json(path) == [1]
    with pytest.raises(DataError, match=r"report\.json is no JSON object"):
        read_json_object(path)
    with pytest.raises(ArtifactError, match="it is no JSON object"):
        parse_json_object("3", source="it", error=ArtifactError)


def test_a_file_that_cannot_be_read_or_is_too_large_is_a_typed_error(tmp_path: Path):
    (tmp_path / "ten").write_bytes(b"x" * 10)

    assert read_bytes(tmp_path / "ten", largest=10) == b"x" * 10
    for path, largest in ((tmp_path / "ten", 9), (tmp_path / "absent", 9), (tmp_path, 9), (tmp_path / "a\0b", 9)):
        with pytest.raises(FdgsecError, match="cannot be read"):
            read_bytes(path, largest=largest)


@pytest.mark.parametrize("text", ["x" * 601, "word " * 100_000, "\x1b[2J" * 500, "\u202e" * 700, "é" * 601])
def test_a_message_is_one_printable_line_of_bounded_length(text: str, capsys: pytest.CaptureFixture[str]):
    said = message_line(f"first {text} last")

    assert len(said) == LONGEST_LINE
    assert said.isprintable()
    assert said.startswith("first ")
    assert said.endswith(" last")
    warn(text)
    assert len(capsys.readouterr().err) <= len("fdgsec: \n") + LONGEST_LINE


def test_a_short_message_stays_as_it_is():
    assert message_line("mean and std must\n both be (n, C).") == "mean and std must both be (n, C)."
    assert message_line("a\x1bb") == "a?b"
    assert message_line("x" * LONGEST_LINE) == "x" * LONGEST_LINE


def test_reading_takes_no_more_memory_than_a_file_has_bytes(tmp_path: Path):
    (tmp_path / "small").write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        read_bytes(tmp_path / "small", largest=2**33)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**16
