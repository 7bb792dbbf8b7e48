"""Coverage of the judge's 95% intervals: AUC, TPR at a low FPR, hit rates, accuracies, errors, and mean gains.

    python -m benchmarks.interval_coverage                  # 2,000 draws per row (TPR: 500), half an hour
    python -m benchmarks.interval_coverage --summary        # the stored table

Clients are drawn from a population with a known truth, and bounded by the functions that the judge bounds such rows by.
A client's answers depend on each other:

* `auc`: scores are N(delta_c, 1) for members and N(0, 1) for others, delta_c ~ N(delta, between^2). The truth is the
  mean over clients of their AUC, Phi(delta / sqrt(2 + between^2)).
* `top1`: a client's hit rate is Beta(r / rho - r, ...) with mean r and intra-class correlation rho.
* `relative_error`: log errors are N(log m + u_c, within^2), u_c ~ N(0, between^2). The truth is the median m.
* `gain`: gains are N(u_c, within^2), `skewed_gain`: u_c plus exponential numbers less their mean. The truth is 0.
* `tpr_at_1pct_fpr`: scores as for `auc`, `size` members and as many others a client, without correlation.
* `balanced_accuracy`: every class of seven has this recall, shares from 50% to 2%, each present.
* `accuracy`: Clopper-Pearson of `size` images, as for trained models.

`covered` is the share of intervals that contain the truth, `above` and `below` those of intervals that lie wholly on
either side of it; `above` for rates, and `below` for errors, are the false leaks of a row whose truth is chance.
In `unbounded` draws clients are too few to bound an error from above: no end excludes the truth, and the row has no
interval and no verdict."""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist

import torch
from scipy import special

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import cluster_auc_bootstrap, tpr_interval
from fdgsec.metrics.proportion_intervals import (
    balanced_accuracy_interval,
    clopper_pearson,
    clustered_proportion,
    median_interval,
)
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.judging.groups import gain_interval

RESULTS = Path(__file__).parent / "results" / "interval-coverage.jsonl"
DOUBLE = torch.float64
SHARES = (0.5, 0.2, 0.1, 0.08, 0.06, 0.04, 0.02)
"""Of the classes whose balanced accuracy is bounded."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A population: the measurement, clients, answers per client, correlation within clients, and the truth."""

    measurement: str
    clients: int
    size: int
    correlation: float
    truth: float


def designs() -> list[Design]:
    """Few and many clients, small and large, independent and dependent, at chance, between, and near the best value."""
    truths = {"auc": (0.5, 0.75, 0.97), "top1": (0.01, 0.1, 0.9, 0.99), "relative_error": (0.9, 0.05)}
    clustered = [
        Design(measurement=name, clients=clients, size=size, correlation=correlation, truth=truth)
        for name, found in truths.items()
        for truth in found
        for clients, size in ((3, 70), (12, 20), (40, 20), (12, 2))
        for correlation in (0.0, 0.3)
        if size > 2 or name != "auc"
    ]
    gains = [
        Design(measurement=name, clients=clients, size=size, correlation=correlation, truth=0.0)
        for name in ("gain", "skewed_gain")
        for clients, size, correlation in (
            (3, 1, 0.0), (5, 1, 0.0), (6, 1, 0.0), (12, 1, 0.0), (50, 1, 0.0), (3, 10, 0.3), (6, 10, 0.3), (12, 10, 0.3)
        )
    ]  # fmt: skip
    others = [
        Design(measurement=name, clients=clients, size=size, correlation=0.0, truth=truth)
        for name, truth, clients, size in (
            ("tpr_at_1pct_fpr", 0.01, 12, 150), ("tpr_at_1pct_fpr", 0.2, 12, 150), ("tpr_at_1pct_fpr", 0.01, 3, 400),
            ("balanced_accuracy", 1 / 7, 1, 50), ("balanced_accuracy", 0.5, 1, 50), ("balanced_accuracy", 0.9, 1, 50),
            ("balanced_accuracy", 1 / 7, 1, 400), ("accuracy", 0.5, 1, 100), ("accuracy", 0.9, 1, 100),
            ("accuracy", 0.99, 1, 100), ("accuracy", 0.9, 1, 1000), ("accuracy", 0.99, 1, 1000),
        )
    ]  # fmt: skip
    return [*clustered, *gains, *others]


def auc_interval(design: Design, rng: torch.Generator, *, repeats: int = 1000) -> Interval:
    """Bound the mean AUC of clients that differ in how far their members' scores lie from the others'."""
    k, size = design.clients, design.size
    between = math.sqrt(2 * design.correlation / (1 - design.correlation))
    delta = NormalDist().inv_cdf(design.truth) * math.sqrt(2 + between**2)
    shifts = delta + between * torch.randn(k, 1, generator=rng, dtype=DOUBLE)
    positive, negative = (torch.randn(k, size, generator=rng, dtype=DOUBLE) for _ in range(2))
    owners = torch.arange(k).repeat_interleave(size)
    return cluster_auc_bootstrap(
        (positive + shifts).flatten(), negative.flatten(), pos_clusters=owners, neg_clusters=owners, rng=rng,
        repeats=repeats,
    )  # fmt: skip


def top1_interval(design: Design, rng: torch.Generator) -> Interval:
    """Bound the hit rate of clients that have hit rates of their own."""
    rates = torch.full((design.clients,), design.truth, dtype=DOUBLE)
    if design.correlation:
        a, b = (share * (1 / design.correlation - 1) for share in (design.truth, 1 - design.truth))
        drawn = torch.rand(design.clients, generator=rng, dtype=DOUBLE).numpy()
        rates = torch.from_numpy(special.betaincinv(a, b, drawn))
    hits = torch.rand(design.clients, design.size, generator=rng, dtype=DOUBLE) < rates.unsqueeze(1)
    return clustered_proportion(hits.sum(1).tolist(), [design.size] * design.clients)


def error_interval(design: Design, rng: torch.Generator) -> Interval | None:
    """Bound the median error of clients whose errors are larger or smaller than those of others."""
    shifts = math.sqrt(design.correlation) * torch.randn(design.clients, 1, generator=rng, dtype=DOUBLE)
    noise = math.sqrt(1 - design.correlation) * torch.randn(design.clients, design.size, generator=rng, dtype=DOUBLE)
    errors = design.truth * (shifts + noise).exp()
    return median_interval(errors.flatten(), bounds=(0.0, math.inf), sizes=[design.size] * design.clients)


def mean_gain_interval(design: Design, rng: torch.Generator) -> Interval | None:
    """Bound the mean of gains that have mean 0, by clients where these have several."""
    size = (design.clients, design.size)
    shifts = math.sqrt(design.correlation) * torch.randn(design.clients, 1, generator=rng, dtype=DOUBLE)
    noise = torch.randn(*size, generator=rng, dtype=DOUBLE)
    if design.measurement == "skewed_gain":
        noise = -torch.rand(*size, generator=rng, dtype=DOUBLE).clamp_min(1e-300).log() - 1
    gains = (shifts + math.sqrt(1 - design.correlation) * noise).flatten()
    sizes = [design.size] * design.clients
    return gain_interval(gains, torch.zeros_like(gains), sizes, rng=rng, repeats=1000, bounds=None)


def low_rate_interval(design: Design, rng: torch.Generator) -> Interval:
    """Bound the true-positive rate at a false-positive rate of 1% of clients that are alike."""
    normal = NormalDist()
    shift = normal.inv_cdf(0.99) - normal.inv_cdf(1 - design.truth)
    positive, negative = torch.randn(2, design.clients * design.size, generator=rng, dtype=DOUBLE)
    owners = torch.arange(design.clients).repeat_interleave(design.size)
    return tpr_interval(
        positive + shift, negative, pos_clusters=owners, neg_clusters=owners, fpr=0.01, rng=rng, repeats=300
    )


def recall_interval(design: Design, rng: torch.Generator) -> Interval:
    """Bound the balanced accuracy of seven classes of unequal size, all with the same recall."""
    drawn = torch.multinomial(torch.tensor(SHARES), design.size - len(SHARES), replacement=True, generator=rng)
    true = torch.cat([torch.arange(len(SHARES)), drawn])
    right = torch.rand(design.size, generator=rng, dtype=DOUBLE) < design.truth
    said = torch.where(right, true, (true + 1) % len(SHARES))
    return balanced_accuracy_interval(true, said, classes=len(SHARES))


def accuracy_interval(design: Design, rng: torch.Generator) -> Interval:
    """Bound the accuracy of a trained model."""
    return clopper_pearson(
        int((torch.rand(design.size, generator=rng, dtype=DOUBLE) < design.truth).sum()), design.size
    )


INTERVALS: Mapping[str, Callable[[Design, torch.Generator], Interval | None]] = {
    "auc": auc_interval, "top1": top1_interval, "relative_error": error_interval, "gain": mean_gain_interval,
    "skewed_gain": mean_gain_interval, "tpr_at_1pct_fpr": low_rate_interval, "balanced_accuracy": recall_interval,
    "accuracy": accuracy_interval,
}  # fmt: skip


def coverage(design: Design, draws: int) -> dict[str, object]:
    """How many of `draws` intervals contain the truth, lie above and lie below it."""
    rng, above, below, unbounded = stream(0, "attack", "coverage", str(design)), 0, 0, 0
    for _ in range(draws):
        found = INTERVALS[design.measurement](design, rng)
        unbounded += found is None
        above += found is not None and found.low > design.truth + 1e-12
        below += found is not None and found.high < design.truth - 1e-12
    covered = draws - above - below
    return {
        **asdict(design), "draws": draws, "covered": covered, "above": above, "below": below, "unbounded": unbounded
    }  # fmt: skip


def stored(path: Path) -> list[dict[str, object]]:
    """The rows of earlier calls."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def line(found: Mapping[str, object]) -> str:
    """One row of the table."""
    covered, draws = int(str(found["covered"])), int(str(found["draws"]))
    interval = clopper_pearson(covered, draws)
    numbers = [str(found["measurement"]), f"{float(str(found['truth'])):.3g}"]
    numbers += [str(found[key]) for key in ("clients", "size", "correlation")]
    shares = [f"{covered / draws:.3f} [{interval.low:.3f}, {interval.high:.3f}]"]
    shares += [f"{int(str(found[side])) / draws:.3f}" for side in ("above", "below", "unbounded")]
    return "| " + " | ".join([*numbers, *shares]) + " |"


def main() -> None:
    """Simulate the designs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="print the stored table only")
    told = parser.parse_args()
    done = [{key: one[key] for key in asdict(designs()[0])} for one in stored(told.out)]
    for design in [] if told.summary else designs():
        if asdict(design) not in done:
            slow = design.measurement == "tpr_at_1pct_fpr"
            found = coverage(design, told.draws // 4 if slow else told.draws)
            with told.out.open("a") as out:
                out.write(json.dumps(found) + "\n")
            print(line(found), flush=True)
    print("| measurement | truth | clients | answers each | correlation | covered | above | below | unbounded |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(map(line, stored(told.out))))


if __name__ == "__main__":
    main()
