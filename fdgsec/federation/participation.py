"""Who is still in a round, who failed in it, and how many are enough to go on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fdgsec.federation.method import Clock, Step
from fdgsec.runtime.errors import FdgsecError, UsageError


class ClientFailedError(FdgsecError):
    """A client did not finish a step, or too few did (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A step that a client did not do, or not validly, and why."""

    client: str
    round: int
    step: Step
    reason: str

    def __str__(self) -> str:
        return f"{self.client} failed in {self.step}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class RoundParticipation:
    """How many clients a round began with, who failed in it, and (the participants of `clock`) who is still in it."""

    clock: Clock
    asked: int
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, clock: Clock) -> "RoundParticipation":
        """All participants of `clock`, at the beginning."""
        return cls(clock=clock, asked=len(clock.participants))

    @property
    def present(self) -> tuple[str, ...]:
        """The names of those who are still in the round."""
        return self.clock.participants

    def without(
        self, fresh: Sequence[Failure], *, quorum: float, check: Callable[[int], None] | None = None
    ) -> "RoundParticipation":
        """Go on without the clients that failed just now.

        Raises ClientFailedError, with every reason of the round: at quorum 1 always, below it where fewer are left than
        that share of who was asked, or than `check` (a method's, of a number of clients) takes that took all of them."""
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
