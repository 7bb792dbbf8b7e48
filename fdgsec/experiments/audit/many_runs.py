"""Audits by many runs with and without a canary, for one canary or several."""

from collections.abc import Sequence

from fdgsec.experiments.audit.neighboring_clients import Worlds
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.privacy.epsilon_bounds import AuditResult, Curve, audit_runs, strongest
from fdgsec.privacy.ledger import Guarantee


def audit_canaries(
    canaries: Sequence[Worlds],
    defense_stack: DefenseStack,
    guarantee: Guarantee,
    *,
    runs: int,
    confidence: float,
    name: str,
    curve: Curve = "gaussian",
) -> AuditResult:
    """Audit a claim with each of some canaries, by `runs` runs with it and as many without, and give the largest bound.

    Each bound has an equal share of the error probability, so that all of them hold jointly with `confidence`."""
    assert guarantee.epsilon is not None
    each = 1 - (1 - confidence) / len(canaries)
    found = []
    for number, worlds in enumerate(canaries):
        own = f"{name}/{number}" if number else name
        pilots = worlds.pilots(defense_stack, name=f"{own}/pilot")
        absent, present = (
            worlds.every_score(defense_stack, pilots, present=side, runs=runs, name=own) for side in (False, True)
        )
        found.append(
            audit_runs(
                absent, present, claimed_epsilon=guarantee.epsilon, delta=guarantee.delta, unit=guarantee.unit,
                curve=curve, confidence=each,
            )
        )  # fmt: skip
    return strongest(found, confidence=confidence)
