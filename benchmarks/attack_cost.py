"""Cost of attacks, in seconds of one core and MiB: `python -m benchmarks.attack_cost [part ...]`.

Every cell runs in its own process. Part "scoring" whitens candidates and scores all of them against every pooled
release by the likelihood ratio. "look-up" finds candidates among rows of single images. Parts named after attacks make
synthetic cases (benchmarks.attack_cases) and run the attack without its controls. "style-inversion step" and
"optimization-inversion step" measure one optimization step. Encoder passes and judging are not included. Seconds are
processor time, the minimum of up to `--repeats` runs; the peak is VmHWM above what the process held with its inputs in
memory."""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.attack_cases import QUESTIONS, RECORDS, Size, records
from benchmarks.inversion_steps import adversarial_step, matching_step, regression_step
from fdgsec.attacks.membership.image_styles import nearest_row_distance
from fdgsec.attacks.statistics.tracing import fit_whitening, likelihood_ratio
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.threats.positive_control_data import planted_moments

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["benchmarks.inversion_steps"])
LONG = 10.0
"""No further turn begins after so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one core, and MiB above the inputs."""

    seconds: float
    mib: float


def memory_mib(field: str) -> float:
    """Read VmRSS (current) or VmHWM (peak) of this process. Raises RuntimeError where Linux does not report it."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(f"{field}:"):
            return int(text.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}.")


def measured(job: Callable[[], object], repeats: int) -> Cost:
    """The minimum processor time of up to `repeats` runs, and the increase of peak memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of making the inputs
    held, found = memory_mib("VmRSS"), list[float]()
    while len(found) < repeats and sum(found) < LONG:
        started = time.process_time()
        job()
        found.append(time.process_time() - started)
    return Cost(seconds=min(found), mib=max(0.0, memory_mib("VmHWM") - held))


def scoring(size: Size, *, repeats: int = 1) -> Cost:
    """Trace candidates in means: the whitening is given, the candidates are not yet whitened."""
    reference, candidates, releases = (
        records(size, count, name)
        for name, count in (("ref", size.reference), ("asked", size.candidates), ("sent", size.clients))
    )
    whiten = fit_whitening(reference)

    def score() -> torch.Tensor:
        return likelihood_ratio(whiten(releases), whiten(candidates), records=RECORDS, reference=size.reference)

    return measured(score, repeats)


def look_up(size: Size, *, repeats: int = 1) -> Cost:
    """Look candidates up among as many rows as there are clients."""
    mean, spread = records(size, size.candidates, "asked").chunk(2, dim=1)
    found, rows = planted_moments(mean, spread.exp()), records(size, size.clients, "sent")
    return measured(lambda: nearest_row_distance(found, rows), repeats)


def attack(name: str) -> Callable[..., Cost]:
    """Measure a complete attack on synthetic cases."""

    def cost(size: Size, *, repeats: int = 1) -> Cost:
        return measured(QUESTIONS[name](size).answer, repeats)

    return cost


def steps(make: Callable[[Size], Callable[[int], object]], *, few: int, many: int) -> Callable[..., Cost]:
    """Measure one optimization step: the difference between `many` steps and `few`, which cancels setup costs."""

    def cost(size: Size, *, repeats: int = 1) -> Cost:
        run = make(size)
        short, long = (measured(partial(run, count), repeats) for count in (few, many))
        return Cost(seconds=(long.seconds - short.seconds) / (many - few), mib=long.mib)

    return cost


PARTS: Mapping[str, Callable[..., Cost]] = {
    "scoring": scoring,
    "look-up": look_up,
    **{name: attack(name) for name in QUESTIONS},
    "optimization-inversion step": steps(matching_step, few=2, many=12),
    "style-inversion step, mse": steps(regression_step, few=5, many=35),
    "style-inversion step, gan": steps(adversarial_step, few=2, many=12),
}
LEARNING = ("linkage", "label-inference", "domain-inference", "property-inference")
GRIDS: Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]] = {
    **{name: ((100, 1000, 10_000), (1, 10, 100), (256, 512, 1024)) for name in PARTS},
    **{name: ((150, 450, 1350), (10, 30, 100), (256, 512)) for name in LEARNING},
    "set-reconstruction": ((100, 300, 1000), (1, 10), (256, 512, 1024)),
    "pool-exposure": ((100, 300, 1000), (1, 10, 100), (6, 256)),
    "interpolation-leakage": ((20, 40, 80), (1, 3), (256, 512, 1024)),
    **{name: ((), (8, 32), (48, 128)) for name in PARTS if name.startswith("optimization")},
    **{name: ((), (16,), (32, 64)) for name in PARTS if name.startswith("style-inversion")},
}
"""Candidates, clients and numbers of every part, each varied about the largest of the others."""


def cell(part: str, size: Size, *, threads: int, repeats: int) -> Cost:
    """Measure one cell in its own process, forked from one that has only imported."""
    with ProcessPoolExecutor(max_workers=1, mp_context=FORKS) as pool:
        return pool.submit(run, part, size, threads=threads, repeats=repeats).result()


def run(part: str, size: Size, *, threads: int, repeats: int) -> Cost:
    """Measure one cell here."""
    torch.set_num_threads(threads)
    return PARTS[part](size, repeats=repeats)


def sizes(candidates: Sequence[int], clients: Sequence[int], dimensions: Sequence[int]) -> list[Size]:
    """Vary one axis at a time with the others at their maximum, to measure the cost of each."""
    most = Size(candidates=max(candidates, default=0), clients=max(clients), dimension=max(dimensions))
    found = [replace(most, candidates=number) for number in candidates]
    found += [replace(most, clients=number) for number in clients]
    found += [replace(most, dimension=number) for number in dimensions]
    return list(dict.fromkeys(found))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack_cost", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all of them by default")
    parser.add_argument("--candidates", type=int, nargs="+", help="in place of every part's own")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--dimensions", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}.")
    return given


def main() -> None:
    """Measure, print, and write JSON where `--out` says."""
    given = arguments()
    table: list[dict[str, object]] = []
    print(f"{'part':<28}{'candidates':>11}{'clients':>9}{'numbers':>9}{'seconds':>10}{'MiB':>8}")
    for part in given.parts or PARTS:
        asked = (given.candidates, given.clients, given.dimensions)
        for size in sizes(*(own or usual for own, usual in zip(asked, GRIDS[part], strict=True))):
            cost = cell(part, size, threads=given.threads, repeats=given.repeats)
            table.append({"part": part, **asdict(size), **asdict(cost)})
            print(
                f"{part:<28}{size.candidates:>11}{size.clients:>9}{size.dimension:>9}{cost.seconds:>10.3f}{cost.mib:>8.0f}",
                flush=True,
            )
    if given.out is not None:
        write_atomic(given.out, json.dumps({"threads": given.threads, "costs": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
