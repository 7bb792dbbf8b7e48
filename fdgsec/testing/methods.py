"""`check_method`: the contract of a method that engines rely on, over two rounds on shapes."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fdgsec.experiments.config import made
from fdgsec.federation.artifacts import ImageStyles, StyleBank, kind_named
from fdgsec.federation.method import SHARED_ROWS, Client, Method
from fdgsec.federation.releases import ROUND_LOOP, Release
from fdgsec.testing.promises import check_frozen, expect, nothing_kept
from fdgsec.testing.small_federation import CLIENTS, Outcome, Passed, federated, four_clients


def check_method(given: object) -> None:
    """Check a method, given as an object, as its class or by name. Raises BrokenPromiseError, naming the promise.

    It trains for two rounds on four clients of about twenty images: once plainly, once with every artifact encoded and
    decoded, and once with half of the clients per round."""
    method: Method = made("methods", given, {}, where="method")
    expect(isinstance(method, Method), "a method is a Method", f"{type(method).__name__} does not extend it")
    check_frozen(method)
    method, members = method.fitting(CLIENTS), four_clients()
    images = [client.data.pixels().clone() for client in members]
    with nothing_kept(method):
        plain = federated(method, members, recode=False)
        _check_untouched(plain, members, images)
        recoded = federated(method, members, recode=True)
        if plain.same_bytes != recoded.same_bytes:
            again = federated(method, members, recode=False)
            expect(plain.same_bytes == again.same_bytes, "the same seed gives the same bytes", "two runs differ")
            expect(False, "artifacts come back from their bytes", "a run through bytes is another run")
        half = federated(method, members, recode=False, participation=0.5)
    _check_finite(plain)
    _check_declared(method, plain.passed)
    _check_origins(plain)
    acting = {message.sender for message in half.transcript.messages()}
    idle = sorted(holder for holder, state in half.states.items() if state and holder not in acting)
    expect(not idle, "only participants hold state", f"{', '.join(idle)} took no part, and have state")


def _check_finite(outcome: Outcome) -> None:
    bad = [name for name, value in outcome.model.items() if not bool(torch.isfinite(value).all())]
    expect(not bad, "the model stays finite", f"{', '.join(bad)} are not")


def _check_untouched(outcome: Outcome, members: Sequence[Client], images: Sequence[Tensor]) -> None:
    changed = [*outcome.changed]
    changed += [
        f"the images of {client.name}"
        for client, before in zip(members, images, strict=True)
        if not torch.equal(client.data.pixels(), before)
    ]
    expect(not changed, "steps leave what they are handed as it was", f"changed: {', '.join(changed)}")


def _check_declared(method: Method, passed: Sequence[Passed]) -> None:
    """Check that artifacts sent and artifacts declared are the same, by stage, slot and kind."""
    promise = "what is sent is what is declared"
    own = [one for one in method.releases if one not in ROUND_LOOP]
    for sent in passed:
        what = f"{sent.artifact.kind} in slot {sent.slot!r} of stage {sent.stage!r}"
        known = kind_named(sent.artifact.kind) is type(sent.artifact)
        expect(known, "every artifact is of a known kind", f"{what}; bring it as an entry point of fdgsec.artifacts")
        expect(
            any(_is(sent, one) for one in own), promise, f"{sent.client} sent or got {what}, which is not in releases"
        )
    for one in own:
        said = f"{one.kind.kind} in slot {one.slot!r} of stage {one.stage!r} is in releases, and was not sent"
        expect(any(_is(sent, one) for sent in passed), promise, said)


def _is(sent: Passed, release: Release) -> bool:
    artifact = sent.artifact
    return sent.stage == release.stage and fnmatchcase(sent.slot, release.slot) and type(artifact) is release.kind


def _check_origins(outcome: Outcome) -> None:
    """Check that client state names the images of per-image rows, and that bank rows name their owners."""
    promise = "rows carry their origin"
    shared = [sent for sent in outcome.passed if sent.stage == "share" and isinstance(sent.artifact, ImageStyles)]
    last = {sent.client: sent.artifact for sent in shared}
    for client, artifact in last.items():
        rows, count = outcome.states[client].get(SHARED_ROWS), len(artifact.tensors()["mean"])
        said = f"{client} sent {count} rows, and its state has no {SHARED_ROWS!r} of as many"
        expect(rows is not None and rows.shape == (count,) and rows.dtype == torch.int64, promise, said)
    own = {(sent.round, sent.client): _rows(sent.artifact) for sent in shared if isinstance(sent.artifact, ImageStyles)}
    for sent in outcome.passed:
        if not isinstance(sent.artifact, StyleBank):
            continue
        for row, owner in zip(_rows(sent.artifact), sent.artifact.owner.tolist(), strict=True):
            senders = {client for (number, client), rows in own.items() if number == sent.round and _holds(rows, row)}
            said = f"{sent.client} got a row of client:{owner} that {', '.join(sorted(senders))} sent"
            expect(not senders or f"client:{owner}" in senders, promise, said)


def _rows(artifact: ImageStyles | StyleBank) -> Tensor:
    return torch.cat([artifact.mean, artifact.std], dim=1)


def _holds(rows: Tensor, row: Tensor) -> bool:
    return rows.shape[1:] == row.shape and bool((rows == row).all(1).any())
