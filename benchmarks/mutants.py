"""Mutation testing: the share of small faults that the matching tests notice, module by module.

    python -m benchmarks.mutants [target ...] [--sample 60] [--seed 0]

The mutants are Cosmic Ray's (https://cosmic-ray.readthedocs.io) and those of `benchmarks/mutation_operators.py`. Each
runs in a process forked from one that has loaded torch, which imports the mutated module in place of the one on disk
and runs the target's fast tests until one fails. `--sample` mutants of each target are drawn at random (0: all).

Not counted: mutants that no test can import, those in annotations, decorators, protocols and f-strings, and those
inside a `raise` statement (its removal counts). Results go to `benchmarks/results/mutants.json`; a "reason" that
somebody wrote there beside a survivor is kept when the same mutant survives again."""

import argparse
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from scipy import stats

from benchmarks.mutation_operators import Mutant, mutants_of
from benchmarks.mutation_targets import TARGETS, Target

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "mutants.json"
PRELOADED = ("torch", "torchvision", "scipy.stats", "sklearn", "dp_accounting", "opacus", "matplotlib.pyplot")
INTERNAL_ERROR = 3
"""pytest's exit code where it fails itself: no test was judged."""
SLOWER = 4
"""A mutant counts as killed (by the clock) after this many times the seconds of the unchanged tests, and 20 more."""


Reasons = Mapping[tuple[str, str], str]
"""Why a mutant that survived is no hole, by its path and changed lines."""


class MutatedLoader(SourceFileLoader):
    """Loads one module from a mutated text."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compile the mutated text; what is cached is that of the file."""
        return self.source_to_code(self.text.encode(), self.get_filename(fullname))


@dataclass(frozen=True)
class MutatedModule(importlib.abc.MetaPathFinder):
    """Finds one module, with a mutated text, before any other finder does."""

    name: str
    path: str
    text: str

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Give the mutated module for its own name."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=MutatedLoader(fullname, self.path, self.text)
        )


def module_name(path: str) -> str:
    """The name under which `path` is imported: the four folders of the root are one package."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts if parts[0] == "fdgsec" else ("fdgsec", *parts))


def run_tests(tests: Sequence[str], mutant: Mutant | None, folder: Path, seconds: float) -> int:
    """Run `tests` on `mutant` (None: unchanged) in a forked process: pytest's exit code, -1 where time ran out."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_tested(tests, mutant, folder))
        finally:  # an error must not go on in a second copy of this program
            os._exit(INTERNAL_ERROR)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := os.waitpid(child, os.WNOHANG))[0]:
            break
        time.sleep(0.01)
    else:
        found = (0, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests have started, too
    if found[0]:
        return os.waitstatus_to_exitcode(found[1])
    os.waitpid(child, 0)
    return -1


def _tested(tests: Sequence[str], mutant: Mutant | None, folder: Path) -> int:
    """Run pytest in this process, a child with a session of its own."""
    os.setsid()
    out = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if mutant is not None:
        sys.meta_path.insert(0, MutatedModule(module_name(mutant.path), str(ROOT / mutant.path), mutant.text))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not data and not gpu"]
    return int(pytest.main([*options, f"--basetemp={folder / 'tests'}", *tests]))


def judge(name: str, target: Target, *, sample: int, seed: int, reasons: Reasons) -> dict[str, object]:
    """Run a sample of one target's mutants and describe the result."""
    every = [mutant for path in target.modules for mutant in mutants_of(path, (ROOT / path).read_text())]
    random.Random(f"{seed} {name}").shuffle(every)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        begun = time.monotonic()
        if code := run_tests(target.tests, None, folder, 600):
            raise SystemExit(
                f"{name}: the tests fail without a mutant (exit {code}):\n{(folder / 'output').read_text()}"
            )
        unchanged = time.monotonic() - begun
        counts = {"killed": 0, "timed_out": 0, "not_importable": 0}
        survivors = list[dict[str, object]]()
        for mutant in _drawn(every, counts, survivors, sample):
            code = run_tests(target.tests, mutant, folder, SLOWER * unchanged + 20)
            if code == 0:
                found = mutant.document()
                reason = reasons.get((mutant.path, str(found["after"])))
                survivors.append(found | ({"reason": reason} if reason else {}))
                print(
                    "survived {path}:{line}: {before} -> {after}".format_map(found), f"({reason or 'new'})", flush=True
                )
            else:
                counts["killed" if code == 1 else "timed_out" if code < 0 else "not_importable"] += 1
    killed = counts["killed"] + counts["timed_out"]
    judged = killed + len(survivors)
    low, high = stats.binomtest(killed, judged).proportion_ci(method="wilson")
    print(f"{name}: {killed} of {judged} killed ({low:.0%} to {high:.0%}), {len(every)} possible", flush=True)
    return {
        **asdict(target), "possible": len(every), "judged": judged, **counts, "survived": len(survivors),
        "share_killed": round(killed / judged, 4), "wilson95": [round(float(low), 4), round(float(high), 4)],
        "seed": seed, "seconds_unchanged": round(unchanged, 2), "seconds": round(time.monotonic() - begun, 1),
        "survivors": survivors,
    }  # fmt: skip


def _drawn(
    every: Sequence[Mutant], counts: dict[str, int], survivors: Sequence[object], sample: int
) -> Iterator[Mutant]:
    """Yield mutants until `sample` of them were judged."""
    for mutant in every:
        if sample and counts["killed"] + counts["timed_out"] + len(survivors) >= sample:
            return
        yield mutant


def main() -> None:
    """Judge the targets of the command line and write their results beside those of the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=f"{', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each target; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}.")
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    for name in PRELOADED:
        importlib.import_module(name)
    for name in given.targets or TARGETS:
        results = json.loads(given.out.read_text()) if given.out.exists() else {}
        reasons = {
            (one["path"], one["after"]): one["reason"]
            for each in results.values() for one in each["survivors"] if "reason" in one
        }  # fmt: skip
        result = judge(name, TARGETS[name], sample=given.sample, seed=given.seed, reasons=reasons)
        results = {key: value for key, value in {**results, name: result}.items() if key in TARGETS}
        given.out.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
