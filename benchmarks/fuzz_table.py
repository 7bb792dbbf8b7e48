"""Fuzz every format that fdgsec reads of others, and write the table of docs/testing.md.

Each input must be read or refused with an FdgsecError, within HANG seconds. `untyped` counts the inputs that raise
anything else; they are written to tests/fuzz/corpus, where a test runs them from then on. Peak memory is Python's and
numpy's (tracemalloc), the largest of every SAMPLED-th input, beside the largest of the valid inputs.

    python -m benchmarks.fuzz_table                      # the number of inputs of each format, and the table
    python -m benchmarks.fuzz_table --seconds 3600       # an hour over all formats; `make fuzz`"""

import argparse
import hashlib
import os
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fuzz_formats import CORPUS, Format, formats
from benchmarks.written_tables import write_table
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.random_streams import integer_seed, stream

HANG = 5.0
SAMPLED = 50
CRASHES = 20
"""At most so many crashes of one format are written to the corpus: one of each kind is enough."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of the inputs of one format; peaks are bytes."""

    name: str
    inputs: int
    refused: int
    untyped: int
    hangs: int
    slowest: float
    peak: int
    valid_peak: int

    def line(self) -> str:
        """The row of the table."""
        return (
            f"| {self.name} | {self.inputs:,} | {self.refused:,} | {self.untyped} | {self.hangs} | "
            f"{1000 * self.slowest:.0f} ms | {self.peak / 1024:,.0f} KiB | {self.valid_peak / 1024:,.0f} KiB |"
        )


HEAD = (
    "| format | inputs | refused | untyped errors | hangs | slowest | peak memory | of valid inputs |\n"
    "|---|---|---|---|---|---|---|---|"
)


def outcome(read: Callable[[bytes], object], content: bytes) -> Exception | None:
    """The error of a reader, if any."""
    try:
        read(content)
    except Exception as error:  # noqa: BLE001 (which errors there are is what is asked)
        return error
    return None


def traced(read: Callable[[bytes], object], content: bytes) -> int:
    """The peak memory of reading one input, in bytes."""
    tracemalloc.start()
    try:
        outcome(read, content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fuzzed(form: Format, *, seed: int, inputs: int, seconds: float, keep: bool) -> Row:
    """Run `inputs` inputs of one format, or as many as `seconds` allow; `keep` writes crashes to the corpus."""
    rng = np.random.default_rng(integer_seed(stream(seed, "world", "fuzz", form.name)))
    for content in form.valid:
        outcome(form.read, content)  # imports and caches are not memory of an input
    valid_peak = max(traced(form.read, content) for content in form.valid)
    kinds = set[str]()
    done = refused = untyped = hangs = peak = 0
    slowest, started = 0.0, time.monotonic()
    while done < inputs and time.monotonic() - started < seconds:
        content = form.drawn(rng)
        before = time.process_time()
        found = outcome(form.read, content)
        took = time.process_time() - before
        if done % SAMPLED == 0:
            peak = max(peak, traced(form.read, content))
        done += 1
        slowest, hangs = max(slowest, took), hangs + (took > HANG)
        refused += isinstance(found, FdgsecError)
        if found is not None and not isinstance(found, FdgsecError):
            untyped += 1
            _report(form, content, found, kinds, keep=keep)
    return Row(
        name=form.name, inputs=done, refused=refused, untyped=untyped, hangs=hangs, slowest=slowest, peak=peak,
        valid_peak=valid_peak,
    )  # fmt: skip


def _report(form: Format, content: bytes, found: Exception, kinds: set[str], *, keep: bool) -> None:
    """Print a crash of a kind that was not seen before, and write it to the corpus."""
    place = found.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    kind = f"{type(found).__name__} in {place.tb_frame.f_code.co_name if place else '?'}"
    if kind in kinds or len(kinds) >= CRASHES:
        return
    kinds.add(kind)
    print(f"{form.name}: {kind}: {str(found)[:200]}: {content[:200]!r}", flush=True)
    if keep:
        path = CORPUS / form.name / hashlib.sha256(content).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line, and fuzz."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_table", description=__doc__.split("\n")[0])
    parser.add_argument("formats", nargs="*", help="names of formats; all without one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="time for all formats together, in place of numbers of inputs")
    parser.add_argument("--inputs", type=int, help="inputs of each format, in place of its own number")
    parser.add_argument("--write", action="store_true", help="write the table into docs/testing.md")
    options = parser.parse_args(given)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FDGSEC_CACHE"] = str(Path(folder) / "cache")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # damaged cache entries are said there, one by one
        warnings.simplefilter("ignore")
        chosen = [form for form in formats(Path(folder)) if not options.formats or form.name in options.formats]
        for form in chosen:
            inputs = options.inputs or (2**62 if options.seconds else form.inputs)
            seconds = options.seconds / len(chosen) if options.seconds else float("inf")
            rows.append(fuzzed(form, seed=options.seed, inputs=inputs, seconds=seconds, keep=True))
            print(rows[-1].line(), flush=True)
    table = "\n".join([HEAD, *(row.line() for row in rows)])
    if options.write:
        write_table("testing.md", "fuzz", table)
    if any(row.untyped or row.hangs for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
