"""The clients that are still in a round, their failures, and the quorum."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fdgsec.federation.method import Clock, Step
from fdgsec.runtime.errors import FdgsecError, UsageError


class ClientFailedError(FdgsecError):
    """A client failed in a step, or too few clients are left (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A step in which a client failed or sent an invalid reply, and the reason."""

    client: str
    round: int
    step: Step
    reason: str

    def __str__(self) -> str:
        return f"{self.client} failed in {self.step}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class RoundParticipation:
    """The initial number of clients of a round, the failures, and (the participants of `clock`) the remaining ones."""

    clock: Clock
    asked: int
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, clock: Clock) -> "RoundParticipation":
        """Start with all participants of `clock`."""
        return cls(clock=clock, asked=len(clock.participants))

    @property
    def present(self) -> tuple[str, ...]:
        """List the names of the remaining clients."""
        return self.clock.participants

    def without(
        self, fresh: Sequence[Failure], *, quorum: float, check: Callable[[int], None] | None = None
    ) -> "RoundParticipation":
        """Remove the clients that just failed.

        Raises ClientFailedError, with every reason of the round: at quorum 1 always; below it where fewer than that
        share remain, or where the method's `check` accepts the initial number of clients but not the remaining one."""
        if quorum == 1:
            raise ClientFailedError("; ".join(map(str, fresh)))
        lost = {failure.client for failure in fresh}
        left = tuple(name for name in self.present if name not in lost)
        failures = (*self.failures, *fresh)
        least = max(math.ceil(quorum * self.asked - 1e-9), 1)  # 0.3 of 10 clients are 3, not 4
        why = f"and quorum {quorum:g} needs {least}" if len(left) < least else None
        if why is None and check is not None and _refusing(check, self.asked) is None:
            why = _refusing(check, len(left))
        if why is not None:
            told = "; ".join(map(str, failures))
            raise ClientFailedError(
                f"round {self.clock.round}: {len(left)} of {self.asked} clients answered, {why}; {told}"
            )
        return RoundParticipation(clock=replace(self.clock, participants=left), asked=self.asked, failures=failures)


def _refusing(check: Callable[[int], None], clients: int) -> str | None:
    try:
        check(clients)
    except UsageError as error:
        return f"but {error}"
    return None
