"""One federation run twice with one seed: with all clients honest, and with some that forge what they send.

All differences are caused by the forgery: data, initial model, batches and defense noise follow from the seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ModelState, Scores, StyleBank, StyleStatistics
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.malicious_client_protocol import ForgeryError, MaliciousClient
from fdgsec.federation.method import Client, Method, State
from fdgsec.federation.peer_review import KEPT
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.wire import SERVER, Guard, Message, Wire
from fdgsec.metrics.roc import majority_share
from fdgsec.nn.training.training_loop import predictions
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from fdgsec.threats.answers import Harm, Outcome
from fdgsec.threats.malicious_engine import MaliciousEngine

DRAWS = 10_000
"""Draws from a pool by which the share of a few rows is estimated."""
LAST_MODEL = "global model"
"""The name of the last model's displacement; others have the name of their artifact's kind."""


class Draws(Protocol):
    """A pool of style rows, ready to draw from."""

    def rows(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw `count` numbers of rows, (count,) int64."""
        ...


@runtime_checkable
class ArrangesPools(Protocol):
    """A method whose clients draw rows from the bank that they receive, in a public way (FedCCRL, FedAlign)."""

    def build_pool(self, bank: StyleBank, rng: torch.Generator) -> Draws:
        """Make a bank ready to draw from."""
        ...


@runtime_checkable
class Clustered(Protocol):
    """A pool that is divided into clusters, each drawn from separately (FedAlign, Algorithm 2)."""

    labels: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The federation: its method, `members` and defenses, and by name the images that the last model is measured on."""

    method: Method
    members: Sequence[Client]
    defense_stack: DefenseStack
    guards: Sequence[Guard] = ()
    measured: Mapping[str, DomainDataset] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run's outcome, its last model, what each client received last, by (kind, receiver), and the uploaded styles."""

    outcome: Outcome
    model: GlobalModel | None = None
    received: Mapping[tuple[str, str], Artifact] = field(default_factory=dict)
    uploads: Mapping[str, StyleStatistics] = field(default_factory=dict)


def honest_run(setting: Setting, *, seed: int, rounds: int, model: GlobalModel | None, forger: str) -> Run:
    """Run the federation without a forgery, recording the weight of `forger`. Raises what the run raises."""
    return _run(setting, seed=seed, rounds=rounds, model=model, forger=forger)


def hostile_run(
    setting: Setting,
    *,
    seed: int,
    rounds: int,
    model: GlobalModel | None,
    malicious_clients: Mapping[str, MaliciousClient],
) -> Run:
    """Run the same with `malicious_clients` in the place of clients; an error that ends it is its outcome.

    Of a run that did not finish only the reason is kept."""
    hostile = replace(setting, defense_stack=replace(setting.defense_stack, malicious_clients=malicious_clients))
    forger = next(iter(malicious_clients))
    try:
        return _run(hostile, seed=seed, rounds=rounds, model=model, forger=forger)
    except ForgeryError:
        raise
    except Exception as error:  # noqa: BLE001 (a forgery may break anything: that, and how, is what is measured)
        said = " ".join(str(error).split())
        first = re.search(r"client:\d+", said)
        blamed = isinstance(error, ArtifactError) and first is not None and first.group() in malicious_clients
        ended = said if isinstance(error, ArtifactError) else f"{type(error).__name__}: {said}"
        return Run(outcome=Outcome(ended=ended, refused=blamed))


def _run(setting: Setting, *, seed: int, rounds: int, model: GlobalModel | None, forger: str) -> Run:
    defense_stack = replace(setting.defense_stack, key=simulated_key(seed), name="paired")
    wire = Wire(
        secret=lambda upload, number: simulated_stream(
            seed, "policy", upload.round, upload.stage, upload.sender, number
        ),
        guards=(*setting.guards, *defense_stack.guards), policies=defense_stack.policies,
        filters=defense_stack.filters, keep=_is_compared,
    )  # fmt: skip
    malicious_clients = defense_stack.malicious_clients
    engine = MaliciousEngine(
        engine=LocalEngine(
            members=setting.members, method=setting.method, seed=seed,
            defense_stack=replace(defense_stack, malicious_clients={}),
        ),
        malicious_clients=malicious_clients,
    )  # fmt: skip
    memory: dict[str, State] = {}

    def note(report: RoundReport, _model: GlobalModel) -> None:
        memory["server"] = report.server

    loop = RoundLoop(
        method=setting.method, engine=engine, wire=wire, key=simulated_key(seed), rounds=rounds, on_round=note
    )
    ran = loop.run(model)
    last = ran if rounds else None
    messages = list(wire.transcript.messages())
    received = {(m.artifact.kind, m.receiver): m.artifact for m in messages if m.sender == SERVER}
    uploads = {m.sender: m.artifact for m in messages if isinstance(m.artifact, StyleStatistics)}
    weight = _weight(setting.method, messages, memory.get("server", {}), forger)
    outcome = Outcome(
        finite=all(_finite(artifact) for artifact in [*received.values(), *([last.state] if last else [])]),
        accuracy={} if last is None else {name: accuracy(last, images) for name, images in setting.measured.items()},
        transcript_sha256=wire.transcript.sha256, numbers={} if weight is None else {"forger_weight": weight},
    )  # fmt: skip
    return Run(outcome=outcome, model=last, received=received, uploads=uploads)


def _is_compared(message: Message) -> bool:
    """Whether a payload is compared: what clients receive except models, and the styles and scores that they send."""
    if message.sender == SERVER:
        return message.artifact.kind != ModelState.kind
    return isinstance(message.artifact, StyleStatistics | Scores)


def accuracy(model: GlobalModel, images: DomainDataset) -> float:
    """The share of `images` that a model classifies correctly; NaN outputs count as predictions of the first class."""
    return float((predictions(model.module(), images.pixels()) == images.labels).double().mean())


def _weight(method: Method, messages: Sequence[Message], server: State, forger: str) -> float | None:
    """The weight of `forger` in the last aggregation: as the server noted it, else from the updates' weights.

    None where the method weights updates in another way."""
    noted = server.get(f"{KEPT}weight/{forger}")
    if noted is not None:
        return float(noted)
    sent = [m for m in messages if m.stage == "update" and isinstance(m.artifact, Scores)]
    last = {m.sender: float(m.artifact.tensors()["values"][0]) for m in sent if m.round == sent[-1].round}
    if forger not in last or bool(getattr(method, "own_weights", False)):
        return None
    if method.counts_alike:
        return 1 / len(last)
    total = sum(last.values())
    return last[forger] / total if total > 0 else None


def harm_of_forgery(
    honest: Run, hostile: Run, *, setting: Setting, forgers: Sequence[str], rng: torch.Generator
) -> Harm:
    """Compare two runs: how far the forgery moved what others received, and how often pools pick what it changed."""
    if hostile.outcome.ended:
        return Harm(honest=honest.outcome, hostile=hostile.outcome)
    pairs: dict[str, list[tuple[Artifact, Artifact]]] = {}
    for (kind, receiver), artifact in honest.received.items():
        other = hostile.received.get((kind, receiver))
        if receiver not in forgers and other is not None:
            pairs.setdefault(kind, []).append((artifact, other))
    if honest.model is not None and hostile.model is not None:
        pairs[LAST_MODEL] = [(honest.model.state, hostile.model.state)]
    moved = {kind: displacement(found) for kind, found in pairs.items()}
    picks = _picks(setting.method, pairs.get(StyleBank.kind, []), rng)
    return Harm(
        honest=_with_numbers(honest.outcome, picks[0]), hostile=_with_numbers(hostile.outcome, picks[1]),
        displacement={kind: value for kind, value in moved.items() if value is not None},
        blind={name: majority_share(images.labels) for name, images in setting.measured.items()},
    )  # fmt: skip


def _with_numbers(outcome: Outcome, numbers: Mapping[str, float]) -> Outcome:
    return replace(outcome, numbers={**outcome.numbers, **numbers})


def displacement(pairs: Sequence[tuple[Artifact, Artifact]]) -> float | None:
    """|second - first| / |first|, L2 over the floats of all pairs together.

    None where shapes differ or a number is not finite."""
    apart, length = 0.0, 0.0
    for first, second in pairs:
        before, after = first.tensors(), second.tensors()
        for name, value in before.items():
            if not value.is_floating_point():
                continue
            if name not in after or after[name].shape != value.shape:
                return None
            apart += float((after[name].double() - value.double()).square().sum())
            length += float(value.double().square().sum())
    moved = (apart / length) ** 0.5 if length else 0.0
    return moved if torch.isfinite(torch.tensor(moved)) else None


def _picks(
    method: Method, banks: Sequence[tuple[Artifact, Artifact]], rng: torch.Generator
) -> tuple[dict[str, float], dict[str, float]]:
    """How often an honest client draws the rows that were forged, from the honest bank and from the hostile one."""
    if not banks or not isinstance(method, ArrangesPools):
        return {}, {}
    (honest, hostile), *_ = banks
    assert isinstance(honest, StyleBank)
    assert isinstance(hostile, StyleBank)
    if honest.std.shape != hostile.std.shape:
        return {}, {}
    differs = (honest.mean != hostile.mean).any(1) | (honest.std != hostile.std).any(1)
    rows = differs.nonzero().flatten()
    if not len(rows):
        return {}, {}
    return picked(method, honest, rows, child(rng, "picks")), picked(method, hostile, rows, child(rng, "picks"))


def picked(method: ArrangesPools, bank: StyleBank, rows: Tensor, rng: torch.Generator) -> dict[str, float]:
    """The share of `rows` among draws from a pool and, where it has clusters, among draws from their clusters.

    The pool is the bank as received, without the receiver's own rows, which FedAlign adds."""
    pool = method.build_pool(bank, rng)
    drawn = pool.rows(DRAWS, rng)
    mine = torch.isin(drawn, rows)
    shares = {"picked_share": float(mine.double().mean())}
    if isinstance(pool, Clustered):
        near = torch.isin(pool.labels[drawn], pool.labels[rows])
        shares["picked_in_cluster"] = float(mine[near].double().mean()) if bool(near.any()) else 0.0
    return shares


def _finite(artifact: Artifact) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in artifact.tensors().values() if value.is_floating_point())
