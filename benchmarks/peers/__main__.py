"""fdgsec beside the authors' own code: `python -m benchmarks.peers --fedalign PATH --fisc PATH`, or other clones.

The paths are clones that you have; nothing is downloaded, and nothing in them is changed. In each row "peer" is the
authors' function or loop, imported from the clone, "ours" fdgsec doing the same job, "bare" the network passes that the
equations need, in the number format that fdgsec uses, and "limit" the same passes in the fastest of four formats
(float32 or bfloat16, contiguous or channels_last), found by a short probe. All of them take turns in one process of one
thread, with the heap of `python -m benchmarks`. Numbers are processor seconds, the median with the least and the
greatest, and quotients of neighboring runs. The modules of the jobs say what is not like for like."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.__main__ import TUNED
from benchmarks.__main__ import surroundings as environment_of
from benchmarks.method_speed import surroundings
from benchmarks.peers import ccst, fedalign, fedccrl, fisc, stablefdg
from benchmarks.peers.clones import Clone
from benchmarks.peers.comparison import HEAD, Comparison, line, measure
from benchmarks.training_speed import Setting
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError

REPOSITORIES = {
    fisc.OPTION: (fisc.REPOSITORY, fisc.COMMIT),
    ccst.OPTION: (ccst.REPOSITORY, ccst.COMMIT),
    ccst.ADAIN_OPTION: (ccst.ADAIN_REPOSITORY, ccst.ADAIN_COMMIT),
    fedccrl.OPTION: (fedccrl.REPOSITORY, fedccrl.COMMIT),
    fedalign.OPTION: (fedalign.REPOSITORY, fedalign.COMMIT),
    stablefdg.OPTION: (stablefdg.REPOSITORY, stablefdg.COMMIT),
}
BACKBONES = {
    fisc.OPTION: fisc.BACKBONE, ccst.OPTION: ccst.NETWORK, fedccrl.OPTION: fedccrl.BACKBONE,
    fedalign.OPTION: fedalign.BACKBONE, stablefdg.OPTION: stablefdg.BACKBONE,
}  # fmt: skip
"""The network of each comparison."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    for option, (repository, commit) in REPOSITORIES.items():
        made.add_argument(option, type=Path, metavar="PATH", help=f"a clone of {repository} at {commit[:7]}")
    made.add_argument("--size", type=int, default=128, help="pixels of a side")
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--batches", type=int, default=2, help="batches per repeat")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--out", type=Path, help="a JSON file")
    return made


def clones_of(given: argparse.Namespace) -> dict[str, Clone]:
    """The clones that were named, by option. Raises UsageError where there is none, or one of a pair is missing."""
    found = {
        option: Clone(option=option, repository=repository, commit=commit, folder=folder.resolve())
        for option, (repository, commit) in REPOSITORIES.items()
        if (folder := getattr(given, option.removeprefix("--"))) is not None
    }
    if not found:
        needed = "; ".join(f"{option}: {name} at {commit}" for option, (name, commit) in REPOSITORIES.items())
        raise UsageError(f"name at least one clone of the authors' code. {needed}.")
    if (ccst.OPTION in found) != (ccst.ADAIN_OPTION in found):
        raise UsageError(
            f"{ccst.OPTION} and {ccst.ADAIN_OPTION} go together: CCST's code imports net.py, which is in "
            f"{ccst.ADAIN_REPOSITORY}, at {ccst.ADAIN_COMMIT}."
        )
    return found


def comparisons(clones: Mapping[str, Clone], settings: Mapping[str, Setting], scratch: Path) -> Iterator[Comparison]:
    """One after the other, because each holds networks of its own."""
    if fisc.OPTION in clones:
        yield fisc.compared(clones[fisc.OPTION], settings[fisc.OPTION], scratch=scratch)
    if ccst.OPTION in clones:
        yield ccst.compared(clones[ccst.OPTION], clones[ccst.ADAIN_OPTION], settings[ccst.OPTION], scratch=scratch)
    if fedccrl.OPTION in clones:
        yield fedccrl.compared(clones[fedccrl.OPTION], settings[fedccrl.OPTION], scratch=scratch)
    if fedalign.OPTION in clones:
        yield fedalign.compared(clones[fedalign.OPTION], settings[fedalign.OPTION], scratch=scratch)
    if stablefdg.OPTION in clones:
        yield stablefdg.compared(clones[stablefdg.OPTION], settings[stablefdg.OPTION], scratch=scratch)


def table(clones: Mapping[str, Clone], settings: Mapping[str, Setting], *, repeats: int) -> list[dict[str, object]]:
    """Measure and print all rows; `settings` has one for each comparison."""
    rows: list[dict[str, object]] = []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for comparison in comparisons(clones, settings, Path(scratch)):
            found = measure(comparison, repeats=repeats)
            print("\n".join(map(line, found)), flush=True)
            rows += found
    return rows


def main(words: Sequence[str]) -> None:
    """Measure, print, and write JSON where `--out` says."""
    asked = parser()
    given = asked.parse_args(words)
    settings = {
        option: Setting(backbone=backbone, image_size=given.size, batch=given.batch, steps=given.batches)
        for option, backbone in BACKBONES.items()
    }
    try:
        clones = clones_of(given)
        torch.set_num_threads(1)
        rows = table(clones, settings, repeats=given.repeats)
    except UsageError as error:
        asked.error(str(error))
    if given.out is not None:
        commits = {clone.repository: clone.commit for clone in clones.values()}
        document = {"environment": surroundings(), "expected_commits": commits, "repeats": given.repeats, "rows": rows}
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


def with_kept_heap() -> None:
    """Start this command again in a process with one thread whose heap keeps freed blocks, unless it is one."""
    if os.environ.get("GLIBC_TUNABLES") == TUNED and os.environ.get("OMP_NUM_THREADS") == "1":
        return
    command = [sys.executable, "-m", "benchmarks.peers", *sys.argv[1:]]
    os.execve(sys.executable, command, environment_of(threads=1, heap="tuned"))


if __name__ == "__main__":
    with_kept_heap()
    main(sys.argv[1:])
