"""`check_method`: the contract of a method that engines rely on, over a few rounds on shapes."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import permutations, product

import torch
from torch import Tensor

from fdgsec.experiments.run_config import made
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    StyleBank,
    StyleStatistics,
    kind_named,
)
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, Method, State
from fdgsec.federation.record_preparation import mixed_records
from fdgsec.federation.release_declarations import ROUND_LOOP, Release
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.testing.contracts import UNTOUCHED, check_frozen, expect, nothing_kept, same
from fdgsec.testing.small_federation import (
    CLIENTS,
    Outcome,
    Passed,
    federated,
    large_client,
    small_clients,
    start_of,
)

DECLARED = "what is sent is what is declared"
"""The promise that releases name every artifact."""
RETURNS = "what comes back of one's own is said (trains_on_own_releases)"
"""The promise on which a private model rests where styles are sent unprotected."""
LONG = 20
"""Rounds of a run in which each image must be prepared by itself, at its beginning and halfway."""
APART = "records are prepared one by one where training goes through the trainer alone (trains_through_trainer)"
"""The promise on which every guarantee of DP-SGD for a record rests."""


def check_method(given: object) -> None:
    """Check a method, given as an object, as its class or by name. Raises BrokenPromiseError, naming the promise.

    It trains on clients of about twenty images: four clients for two rounds, once plainly and once with every artifact
    encoded and decoded, and five clients for three rounds, of whom two take part in each."""
    general: Method = made("methods", given, {}, where="method")
    expect(isinstance(general, Method), "a method is a Method", f"{type(general).__name__} does not extend it")
    check_frozen(general)
    method, members = general.fitting(CLIENTS), small_clients(CLIENTS)
    before = [_contents(client) for client in members]
    _check_own_return(method, members)
    _check_records_apart(method, members)
    with nothing_kept(method):
        plain = federated(method, members, recode=False)
        _check_untouched(members, before)
        recoded = federated(method, members, recode=True)
        if plain.same_bytes != recoded.same_bytes:
            again = federated(method, members, recode=False)
            expect(plain.same_bytes == again.same_bytes, "the same seed gives the same bytes", "two runs differ")
            expect(False, "artifacts come back from their bytes", "a run through bytes is another run")
    fitted = general.fitting(5)
    with nothing_kept(fitted):
        partial = federated(fitted, small_clients(5), recode=False, rounds=3, participation=0.4)
    for outcome in (plain, partial):
        _check_finite(outcome)
        _check_declared(method, outcome.passed)
        _check_origins(outcome)
    _check_all_sent(method, plain.passed)
    acting = {message.sender for message in partial.transcript.messages()}
    idle = sorted(holder for holder, state in partial.states.items() if state and holder not in acting)
    expect(not idle, "only participants hold state", f"{', '.join(idle)} took no part, and have state")


def _check_own_return(method: Method, members: Sequence[Client]) -> None:
    """Check that a client trains to the same model whatever it shared: every one shares what another one has, in turn,
    which moves it far, in this round and in those after it, where the server or its state may bring it back."""
    if method.shares == "never" or method.trains_on_own_releases or not method.trains_through_trainer:
        return
    usual = {client.name: _trainings(method, members, client, shares_of=client) for client in members}
    for client, other in permutations(members, 2):
        instead = _trainings(method, members, client, shares_of=other)
        for number, (first, second) in enumerate(zip(usual[client.name], instead, strict=True)):
            said = f"{client.name} trains to another model in round {number} where it shares something else"
            expect(first == second, RETURNS, said)


def _trainings(
    method: Method, members: Sequence[Client], client: Client, *, shares_of: Client
) -> Sequence[Mapping[str, str]]:
    """The hashes of what `client` sends after training, round by round, where it shares what `shares_of` has.

    All rounds begin with the same model. There are three where clients share in every round, else one."""
    rounds, model, server = 3 if method.shares == "every" else 1, start_of(method), dict[str, Tensor]()
    states: dict[str, State] = {member.name: {} for member in members}
    found = []
    for number in range(rounds):
        clock = Clock(round=number, rounds=rounds, participants=tuple(states))
        sent = dict[str, Inbox]()
        for member in members:
            rng = stream(0, "world", "own return", member.name)
            sent[member.name], states[member.name] = method.share(
                member, model=model, state=states[member.name], clock=clock, rng=rng
            )
        sent[client.name] = sent[shares_of.name]
        secret = simulated_stream(0, "own return", number)
        inboxes, kept = method.combine(sent, server=server, clock=clock, rng=secret)
        server = dict(kept)
        update, states[client.name] = method.fit(
            client, model=model, inbox=inboxes.get(client.name, {}), state=states[client.name], clock=clock,
            rng=stream(0, "world", "own return", "fit", number),
        )  # fmt: skip
        found.append(_hashes(update.artifacts))
    return found


def _check_records_apart(method: Method, members: Sequence[Client]) -> None:
    """Check that what a client trains on of an image is the same whatever its other images are."""
    if not method.trains_through_trainer:
        return
    model, names = start_of(method, norm="group"), tuple(client.name for client in members)
    clock, late = (Clock(round=number, rounds=LONG, participants=names) for number in (0, LONG // 2))
    shared: dict[str, Inbox] = {}
    for client in members if method.shares != "never" else ():
        rng = stream(0, "world", "records apart", client.name)
        shared[client.name], _ = method.share(client, model=model, state={}, clock=clock, rng=rng)
    inboxes: Mapping[str, Inbox] = {}
    if shared:
        inboxes, _ = method.combine(shared, server={}, clock=clock, rng=simulated_stream(0, "records apart"))
    for client, when in [*product(members, (clock, late)), (large_client(), clock)]:
        reason = mixed_records(method, client, model=model, inbox=inboxes.get(client.name, {}), clock=when)
        expect(not reason, APART, f"{reason} ({client.name}, round {when.round})")


def _hashes(artifacts: Mapping[str, Artifact]) -> Mapping[str, str]:
    return {slot: artifact.sha256 for slot, artifact in artifacts.items()}


def _check_finite(outcome: Outcome) -> None:
    bad = [name for name, value in outcome.model.items() if not bool(torch.isfinite(value).all())]
    expect(not bad, "the model stays finite", f"{', '.join(bad)} are not")


def _contents(client: Client) -> list[Tensor]:
    """Copies of the images, labels and domains that a client trains and validates on."""
    parts = [client.data] if client.validation is None else [client.data, client.validation]
    return [value.clone() for part in parts for value in (part.pixels(), part.labels, part.domains)]


def _check_untouched(members: Sequence[Client], contents: Sequence[list[Tensor]]) -> None:
    changed = [
        f"the images or labels of {client.name}"
        for client, before in zip(members, contents, strict=True)
        if not same(before, _contents(client))
    ]
    expect(not changed, UNTOUCHED, f"changed: {', '.join(changed)}")


def _check_declared(method: Method, passed: Sequence[Passed]) -> None:
    """Check that every artifact sent is declared, by stage, slot and kind."""
    own = _own(method)
    for sent in passed:
        what = f"{sent.artifact.kind} in slot {sent.slot!r} of stage {sent.stage!r}"
        known = kind_named(sent.artifact.kind) is type(sent.artifact.stored()[0])
        expect(known, "every artifact is of a known kind", f"{what}; bring it as an entry point of fdgsec.artifacts")
        said = f"{sent.client} sent or got {what} in round {sent.round}, which is not in releases"
        expect(any(_is(sent, one) for one in own), DECLARED, said)


def _check_all_sent(method: Method, passed: Sequence[Passed]) -> None:
    """Check that every artifact declared is sent."""
    for one in _own(method):
        said = f"{one.kind.kind} in slot {one.slot!r} of stage {one.stage!r} is in releases, and was not sent"
        expect(any(_is(sent, one) for sent in passed), DECLARED, said)


def _own(method: Method) -> list[Release]:
    return [one for one in method.releases if one not in ROUND_LOOP]


def _is(sent: Passed, release: Release) -> bool:
    artifact = sent.artifact
    return sent.stage == release.stage and fnmatchcase(sent.slot, release.slot) and artifact.kind == release.kind.kind


def _check_origins(outcome: Outcome) -> None:
    """Check that client state names the images of per-image rows, and that bank rows name their owners."""
    promise = "rows carry their origin"
    shared = [sent for sent in outcome.passed if sent.stage == "share" and isinstance(sent.artifact, ImageStyles)]
    last = {sent.client: sent.artifact for sent in shared}
    for client, artifact in last.items():
        rows, count = outcome.states[client].get(SHARED_ROWS), len(artifact.tensors()["mean"])
        said = f"{client} sent {count} rows, and its state has no {SHARED_ROWS!r} of as many"
        expect(rows is not None and rows.shape == (count,) and rows.dtype == torch.int64, promise, said)
    own = {
        (sent.round, sent.client, sent.slot): rows
        for sent in outcome.passed
        if sent.stage == "share" and (rows := _rows(sent.artifact)) is not None
    }
    for sent in outcome.passed:
        rows = _rows(sent.artifact)
        if rows is None or not isinstance(sent.artifact, StyleBank | Amplitudes):
            continue
        for row, owner in zip(rows, sent.artifact.owner.tolist(), strict=True):
            senders = {
                client
                for (number, client, _), sent_rows in own.items()
                if number == sent.round and _holds(sent_rows, row)
            }
            said = f"{sent.client} got a row of client:{owner} that {', '.join(sorted(senders))} sent"
            expect(not senders or f"client:{owner}" in senders, promise, said)


def _rows(artifact: Artifact) -> Tensor | None:
    """The styles (R, 2C) or flattened spectra (R, numbers) that an artifact holds; None if it holds neither."""
    if isinstance(artifact, StyleStatistics | ImageStyles | StyleBank):
        return torch.cat([artifact.mean, artifact.std], dim=-1).reshape(-1, 2 * artifact.mean.shape[-1])
    return artifact.values.flatten(1) if isinstance(artifact, Amplitudes) else None


def _holds(rows: Tensor, row: Tensor) -> bool:
    return rows.shape[1:] == row.shape and bool((rows == row).all(1).any())
