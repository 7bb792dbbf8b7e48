"""What a report's attacks leave unread of what their adversary saw: other rounds or stages, and other kinds."""

from collections.abc import Callable, Mapping, Sequence

from fdgsec.experiments.report.schema import AttackResult
from fdgsec.federation.malicious_client_protocol import Forges
from fdgsec.federation.wire import Transcript
from fdgsec.metrics.measurement import Measurement
from fdgsec.threats.adversary import Adversary
from fdgsec.threats.attack import Attack, ReadsMore


def kinds_read(attack: Attack) -> frozenset[str]:
    """The kinds of artifacts that an attack learns something from; none for one that forges its own."""
    if isinstance(attack, Forges):
        return frozenset()
    return attack.reads | (attack.also_reads if isinstance(attack, ReadsMore) else frozenset())


def partly_read(attack: Attack, exchanges: Mapping[str, int]) -> Callable[[Measurement, int], str]:
    """Say of a row of `attack` how many of the run's exchanges it leaves unread; "" for none.

    A row states the rounds that it read in its slice, or read as many exchanges as its cases show: an attack looks at
    what was seen last of a run. `exchanges` counts, by kind, those whose messages differ
    (Transcript.different_exchanges); equal ones tell nothing more."""
    sent = max((exchanges.get(kind, 0) for kind in kinds_read(attack)), default=0)

    def unread(row: Measurement, shown: int) -> str:
        read = int(row.slice.get("rounds", shown))
        return f"reads {read} of {sent} releases that differ" if read < sent else ""

    return unread


def unread_kinds(
    transcript: Transcript, adversary: Adversary, attacks: Sequence[Attack], results: Sequence[AttackResult]
) -> list[str]:
    """The kinds of artifacts that others sent before the adversary's eyes and that no finished attack read."""
    seen = {row.kind for row in transcript.rows if adversary.reads(row)}
    done = {result.name for result in results if result.status == "done"}
    return sorted(seen.difference(*(kinds_read(attack) for attack in attacks if attack.name in done)))
