"""Whatever a file, a message or an option holds, it is read or refused with an error that fdgsec means to give."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_formats import CORPUS, Format, formats
from benchmarks.fuzz_table import HANG, fuzzed, outcome, traced
from fdgsec.runtime.errors import LONGEST_LINE, FdgsecError, message_line

NAMES = [form.name for form in formats(Path())]
SPARE = 2**20
"""Bytes beside three times the valid inputs' peak: what an interpreter takes for an error and its traceback."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Format]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield {form.name: form for form in formats(tmp_path_factory.mktemp("inputs"))}


@pytest.mark.parametrize("name", NAMES)
def test_valid_inputs_are_read(name: str, known: dict[str, Format]):
    if name in ("transcript", "run-hashes", "cached-file"):
        pytest.skip("its valid input names files that are not there")
    for content in known[name].valid:
        known[name].read(content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.medium
def test_damaged_inputs_are_read_or_refused_in_time_and_memory(name: str, known: dict[str, Format]):
    row = fuzzed(known[name], seed=1, inputs=100, seconds=30, keep=False)

    assert (row.untyped, row.hangs) == (0, 0)
    assert row.peak <= 3 * row.valid_peak + SPARE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
@settings(
    derandomize=True, database=None, max_examples=60, deadline=1000 * HANG,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    content=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
)
@pytest.mark.medium
def test_arbitrary_inputs_are_read_or_refused_with_one_line(name: str, known: dict[str, Format], content: bytes):
    if name == "flower-message":  # Flower itself decodes its messages
        return
    with contextlib.suppress(FdgsecError):
        known[name].read(content)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:8]}")
@pytest.mark.filterwarnings("ignore")
def test_what_once_crashed_a_reader_does_so_no_more(path: Path, known: dict[str, Format]):
    form, content = known[path.parent.name], path.read_bytes()
    found = outcome(form.read, content)

    assert found is None or isinstance(found, FdgsecError)
    assert len(message_line(str(found))) <= LONGEST_LINE
    assert traced(form.read, content) <= 3 * max(traced(form.read, valid) for valid in form.valid) + SPARE


def test_the_same_seed_draws_the_same_inputs(known: dict[str, Format]):
    form = known["artifact"]

    one, other = ([form.drawn(np.random.default_rng(5)) for _ in range(20)] for _ in range(2))

    assert one == other
