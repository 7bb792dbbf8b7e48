"""Why a question about clients of so many images has no case in some domain, or in none."""

from collections.abc import Mapping
from dataclasses import dataclass

from fdgsec.experiments.report.words import listed
from fdgsec.experiments.simulated_runs.simulator import Cases
from fdgsec.threats.attack import Question

RUN_OR_TRAINING = ("released", "cohorts", "trained", "hostile", "breakdown", "guarded_runs", "guarded_exchanges")
"""Questions about the run itself, about training, or about malicious clients."""
MIXED = "mixed"  # the domain of a case whose client has several


@dataclass(frozen=True, kw_only=True)
class MissingClients:
    """Why clients that a question asks for are missing; `too_large`: there are too few images for them."""

    reason: str
    too_large: bool


def missing_clients(question: Question, found: Mapping[Question, Cases]) -> MissingClients | None:
    """Why clients of as many images as a question asks for are missing, in the single domains smaller ones have."""
    if not question.records or question.kind in RUN_OR_TRAINING:
        return None
    alike = {other: _domains(cases) for other, cases in found.items() if other.kind == question.kind}
    mine = alike.get(question, set())
    missing = [] if mine == {MIXED} else sorted(set().union(*alike.values()) - mine - {"", MIXED})
    if mine and (not missing or "" in mine):
        return None
    where = f"of {listed(missing)} " if missing else ""
    clients = f"{question.clients} clients" if question.clients else "clients"
    larger = [other for other, domains in alike.items() if _images(other) >= _images(question) and domains & {*missing}]
    few = "nothing to ask" if larger else "too few images"  # as many images are there, and something else is lacking
    return MissingClients(reason=f"{few} {where}for {clients} of {question.records:,}", too_large=not larger)


def _domains(cases: Cases) -> set[str]:
    """The domains of cases; "" for one of several."""
    return {str(case.slice.get("domain", "")) for case, _ in cases}


def _images(question: Question) -> int:
    return question.records * max(1, question.clients)
