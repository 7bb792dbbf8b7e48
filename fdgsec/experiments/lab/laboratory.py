"""Executes the observed runs that attacks ask for, and keeps the truth away from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fdgsec.experiments.lab.malicious import breakdown, hostile
from fdgsec.experiments.lab.released import add_one_record, as_if_released, released
from fdgsec.experiments.lab.resampled import cohorts, halves, mixtures, resampled_clients, rounds
from fdgsec.experiments.lab.simulator import Cases, Instruments
from fdgsec.experiments.lab.single_step import single_step
from fdgsec.experiments.lab.trained import trained
from fdgsec.threats.attack import Request, RequestKind

KINDS: Mapping[RequestKind, Callable[[Instruments, Request], Cases]] = {
    "released": released,
    "as_if_released": as_if_released,
    "add_one_record": add_one_record,
    "resampled_clients": resampled_clients,
    "halves": halves,
    "sessions": halves,
    "rounds": rounds,
    "mixtures": mixtures,
    "cohorts": cohorts,
    "trained": trained,
    "single_step": single_step,
    "hostile": hostile,
    "breakdown": breakdown,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Laboratory(Instruments):
    """Instruments that remember the requests that they have executed."""

    memo: dict[Request, Cases] = field(default_factory=dict)

    def cases(self, request: Request) -> Cases:
        """Execute `request` (once) and give its cases with their truths, in a fixed order."""
        if request not in self.memo:
            pairs = KINDS[request.kind](self, request)
            self.memo[request] = [(self.told(case), truth) for case, truth in pairs]
        return self.memo[request]

    def known_images(self) -> frozenset[str]:
        """Also the candidates that the adversary has been shown, under the names that they came with."""
        shown = {
            name
            for pairs in self.memo.values()
            for case, _ in pairs
            if case.candidates is not None
            for name in case.candidates.ids
        }
        return super().known_images() | shown
