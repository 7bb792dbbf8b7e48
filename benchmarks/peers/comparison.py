"""One table of the authors' code, fdgsec, the bare network passes, and the same passes in the fastest format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.method_speed import spread
from benchmarks.training_speed import Job, Timing, interleaved

SIDES = ("peer", "ours", "bare", "limit")
QUOTIENTS = (("peer", "ours"), ("peer", "limit"), ("ours", "bare"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: for each side the names of the jobs whose seconds add up to it.

    `limit_format` is the format of the limit's passes."""

    name: str
    peer: Sequence[str]
    ours: Sequence[str]
    bare: Sequence[str]
    limit: Sequence[str]
    limit_format: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Jobs that run in turn, and the rows that they make: `images` of `pixels` x `pixels` through `network`."""

    network: str
    pixels: int
    images: int
    jobs: Mapping[str, Job]
    rows: Sequence[Row]


def measure(comparison: Comparison, *, repeats: int) -> list[dict[str, object]]:
    """Run every job `repeats` times in turn, after a warm-up each; one row of numbers for each row."""
    timings = interleaved(comparison.jobs, repeats=repeats)
    return [numbers(comparison, row, timings) for row in comparison.rows]


def numbers(comparison: Comparison, row: Row, timings: Mapping[str, Timing]) -> dict[str, object]:
    """The seconds of each side, and the quotients of neighboring runs, with their ranges."""
    parts = {"peer": row.peer, "ours": row.ours, "bare": row.bare, "limit": row.limit}
    seconds = {
        side: [sum(turn) for turn in zip(*(timings[job].processor for job in jobs), strict=True)]
        for side, jobs in parts.items()
    }
    quotients = {
        f"{over}/{under}": [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
        for over, under in QUOTIENTS
    }
    return {
        "job": row.name, "network": comparison.network, "pixels": comparison.pixels, "images": comparison.images,
        "limit_format": row.limit_format,
        "processor_seconds": {side: spread(values) for side, values in seconds.items()}, "single_runs": seconds,
        "quotients": {name: spread(values) for name, values in quotients.items()},
    }  # fmt: skip


def shown(values: Mapping[str, float], *, digits: int) -> str:
    """A median with its range, "2.10 [2.05, 2.31]"."""
    middle, least, most = (f"{values[key]:.{digits}f}" for key in ("median", "least", "most"))
    return f"{middle} [{least}, {most}]"


def line(row: Mapping[str, object]) -> str:
    """A line of a Markdown table."""
    seconds, quotients = row["processor_seconds"], row["quotients"]
    assert isinstance(seconds, dict)
    assert isinstance(quotients, dict)
    cells = [
        *(str(row[key]) for key in ("job", "network", "pixels", "images")),
        *(shown(seconds[side], digits=2) for side in SIDES),
        *(shown(quotients[f"{over}/{under}"], digits=2) for over, under in QUOTIENTS),
        str(row["limit_format"]),
    ]
    return f"| {' | '.join(cells)} |"


HEADINGS = ("job", "network", "px", "images", *SIDES, *(f"{a} / {b}" for a, b in QUOTIENTS), "limit's format")
HEAD = f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}"
