"""Domains of which the adversary holds most images itself: which questions have no clients of them, and why."""

from collections.abc import Mapping

from fdgsec.experiments.report.words import listed
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator
from fdgsec.threats.attack import Question

DRAWN = (
    "add_one_record", "resampled_clients", "added_images", "halves", "sessions", "rounds", "sums", "single_step",
    "model_rounds", "prototypes", "head_gradients",
)  # fmt: skip
"""Questions whose clients hold no image of the adversary."""


def left_out(found: Mapping[Question, Cases], simulator: Simulator) -> Mapping[str, str]:
    """By domain of which the adversary holds most images itself, why questions have no clients of it."""
    reasons = dict[str, str]()
    for domain in sorted({*simulator.sources} - {*simulator.open_domains}):
        name = simulator.domain_name(domain)
        lacking = [
            q.kind
            for q, cases in found.items()
            if q.kind in DRAWN and name not in {str(case.slice.get("domain", case.domain)) for case, _ in cases}
        ]
        if lacking:
            reasons[name] = (
                f"the adversary holds most images of {name} itself: no clients of it are drawn for "
                f"{listed(list(dict.fromkeys(lacking)))}"
            )
    return reasons
