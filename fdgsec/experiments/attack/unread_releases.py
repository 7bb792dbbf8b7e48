"""What attacks read of what their adversary saw, and what they leave unread: other rounds or stages, other kinds."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from fdgsec.experiments.report.schema import AttackResult
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.malicious_client_protocol import Forges
from fdgsec.federation.wire import Transcript
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UnseenError
from fdgsec.threats.adversary import AVERAGED, Adversary
from fdgsec.threats.attack import Attack, Case, ReadsMore, Truth


def kinds_read(attack: Attack) -> frozenset[str]:
    """The kinds of artifacts that an attack learns something from; none for one that forges its own."""
    if isinstance(attack, Forges):
        return frozenset()
    return attack.reads | (attack.also_reads if isinstance(attack, ReadsMore) else frozenset())


def as_read(attack: Attack, case: Case, truth: Truth) -> Case:
    """The case with those of the victim's styles that `attack` reads, where it sent several kinds.

    Raises UnseenError where it shared rows of single images and only a bank was seen, which has other rows of it."""
    kinds = kinds_read(attack)
    read = replace(case, views=tuple(view.reading(case.victim, kinds) for view in case.views))
    listed = truth.rows if truth.rows is not None else truth.labels
    if listed is None or not kinds & {kind.kind for kind in (*AVERAGED, StyleBank)}:
        return read
    for view in read.views:
        if any(message.sender == case.victim and isinstance(message.artifact, AVERAGED) for message in view.messages):
            continue
        styles = view.styles(case.victim)
        if styles is not None and len(styles[0]) != len(listed):
            raise UnseenError(
                f"{case.victim} shared styles of {len(listed)} images, and the adversary saw {len(styles[0])} of it"
            )
    return read


def partly_read(
    attack: Attack, exchanges: Mapping[str, int], released: Collection[str] = ()
) -> Callable[[Measurement, int], str]:
    """Say of a row of `attack` how many of the run's exchanges it leaves unread; "" for none.

    A row states the rounds that it read in its slice, or read as many exchanges as its cases show: an attack looks at
    what was seen last of a run, and of several kinds of styles at one (View.styles). `exchanges` counts, by kind, those
    whose messages differ (Transcript.different_exchanges); equal ones tell nothing more. `released` are the kinds that
    the target's clients send: of several kinds of styles, a bank that alone was seen does not say which it holds."""
    counts = {kind: exchanges.get(kind, 0) for kind in kinds_read(attack)}
    names = {kind.kind for kind in AVERAGED}
    styles = sum(counts[kind] for kind in names & set(counts))
    several = sorted(names & set(released))
    if len(several) > 1 and not styles and names & set(counts):
        return lambda _row, _shown: f"reads a bank of one of {', '.join(several)}"
    sent = max(styles, *counts.values(), 0)

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
