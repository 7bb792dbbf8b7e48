"""The learning rate of each arm, chosen by one rule on images of the source domains alone.

For every arm and column (the domains left out) the arm is trained at each rate of the protocol, with a seed that no
cell of the table has. The rate with the highest accuracy on validation images of the clients' own domains is kept; of
equal ones the lowest. Every arm has the same number of tries. A tuning run stores nothing that was measured on the
unseen domain or on LTDO's validation domain, and the choices are written down before a cell of the table is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdgsec.experiments.bench.comparability import own_domains_of
from fdgsec.experiments.bench.protocols import Tuning
from fdgsec.experiments.bench.tables import Cell
from fdgsec.experiments.run_config import RunConfig, parse_assignments

KEPT = ("per_domain", "round", "steps")
"""What a tuning run keeps of a run's scores: what was measured on the clients' own domains."""
Column = tuple[str, str]
"""An arm and the unseen domain."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of the tuning, at learning rate `rate`."""

    cell: Cell
    config: RunConfig
    rate: float


def source_scores(accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """A run's scores without those on domains that no client has."""
    return {name: accuracy[name] for name in KEPT if name in accuracy}


def sets_rate(assignments: Sequence[str]) -> bool:
    """Whether the user sets the learning rate, so that there is nothing to choose."""
    stated = parse_assignments(assignments).get("method", {})
    return isinstance(stated, Mapping) and "learning_rate" in stated.get("plan", {})


def chosen_rates(trials: Sequence[Trial], done: Mapping[str, Mapping[str, Any]]) -> dict[Column, dict[str, Any]]:
    """For each column with all of its trials `done`: the chosen rate, and the accuracy on the sources at every rate."""
    columns: dict[Column, list[Trial]] = {}
    for trial in trials:
        columns.setdefault((trial.cell.arm, trial.cell.domain), []).append(trial)
    found = {}
    for column, tried in columns.items():
        if all(trial.cell.key in done for trial in tried):
            scores = {trial.rate: own_domains_of(done[trial.cell.key]) or 0.0 for trial in tried}
            best = min(scores, key=lambda rate: (-scores[rate], rate))
            found[column] = {"rate": best, "own_domains": {f"{rate:g}": score for rate, score in scores.items()}}
    return found


def choices_document(tuning: Tuning, chosen: Mapping[Column, Mapping[str, Any]]) -> dict[str, Any]:
    """The choices as plain data, as written beside the table."""
    return {
        "schema": 1, "rule": "highest accuracy on validation images of the clients' own domains; of equal ones the "
        "lowest rate", "rates": list(tuning.rates), "seed": tuning.seed,
        "chosen": [{"arm": arm, "unseen": domain, **choice} for (arm, domain), choice in chosen.items()],
    }  # fmt: skip
