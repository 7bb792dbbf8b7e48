"""Run a federation's rounds: for a trained model that is kept, or for the artifacts that an attack observes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.config import RunConfig
from fdgsec.experiments.setup.guarantees import guarantee_documents
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.method import Client, Engine, GlobalModel, Method, State
from fdgsec.federation.round_loop import Failure, RoundLoop, RoundReport
from fdgsec.federation.wire import Guard, Message, Transcript, Upload, Wire, keeps_artifacts
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.progress import Progressive, warn
from fdgsec.runtime.random_streams import stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A finished run: the model kept, where it came from, everything that crossed the wire, and what the run promises.

    `states` is what clients remember where they are of this process, else empty; `federation` is how an engine elsewhere
    says it went: clients, stages, failures."""

    model: GlobalModel | None
    transcript: Transcript
    curve: Sequence[Mapping[str, float]]
    kept_round: int
    states: Mapping[str, State] = field(default_factory=dict)
    guarantees: Sequence[Mapping[str, object]] = ()
    federation: Mapping[str, Any] | None = None

    @property
    def final(self) -> GlobalModel:
        """The kept model. Raises ValueError where the run began with none."""
        if self.model is None:
            raise ValueError("the run exchanged artifacts alone; it has no model.")
        return self.model


class Federation(Protocol):
    """Something that can run a federation: this process, or an engine that reaches the clients elsewhere."""

    def __call__(
        self,
        method: Method,
        members: Sequence[Client],
        model: GlobalModel | None,
        config: RunConfig,
        progress: Progressive,
        *,
        defense_stack: DefenseStack = UNDEFENDED,
    ) -> Trained:
        """Run `config.rounds` rounds among `members`, each behind `shield`, from `model`."""
        ...


@dataclass(eq=False)
class _Keeper:
    """Watches rounds, and keeps the model of the best source-validation accuracy, the last where nobody measures it."""

    progress: Progressive
    model: GlobalModel | None = None
    round: int = -1
    best: float = -1.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, report: RoundReport, model: GlobalModel) -> None:
        losses = [metrics["loss"] for metrics in report.metrics.values() if "loss" in metrics]
        point = {"round": float(report.round)}
        if losses:  # private training keeps its losses to itself
            point["loss"] = sum(losses) / len(losses)
        accuracy = report.server.get("validation_accuracy")
        if accuracy is not None:
            point["validation_accuracy"] = float(accuracy)
        self.curve.append(point)
        if accuracy is None or float(accuracy) > self.best:
            self.best = -1.0 if accuracy is None else float(accuracy)
            self.model, self.round = model, report.round
        self.progress.update("rounds", report.round + 1, report.rounds)


def conduct(
    method: Method,
    engine: Engine,
    model: GlobalModel | None,
    config: RunConfig,
    progress: Progressive,
    *,
    defense_stack: DefenseStack = UNDEFENDED,
    states: Mapping[str, State] | None = None,
    quorum: float = 1.0,
    checked: bool = False,
    on_failure: Callable[[Failure], None] | None = None,
) -> Trained:
    """Run `config.rounds` rounds on `engine`; the server's guards, policies and filters are those of `shield`.

    `states` is where the engine's clients keep what they remember, if that is at hand. Where at least the share `quorum` of
    the clients asked answer a step validly, the others are left out, and `on_failure` is told. `checked` has every reply
    checked before it is used, as with a quorum below 1. Raises UsageError where a defense needs every client."""
    defense_stack.check_quorum(quorum)
    wire = Wire(
        secret=lambda upload, number: _secret(config.seed, upload, number),
        keep=lambda message: _kept(message, config),
        guards=defense_stack.guards,
        policies=defense_stack.policies,
        filters=defense_stack.filters,
    )
    keeper = _Keeper(progress=progress)
    RoundLoop(
        method=method, engine=engine, wire=wire, seed=config.seed, rounds=config.rounds,
        participation=config.participation, on_round=keeper, quorum=quorum, checked=checked,
        on_failure=on_failure,
    ).run(model)  # fmt: skip
    return Trained(
        model=keeper.model or model, transcript=wire.transcript, states=states or {}, curve=keeper.curve,
        kept_round=keeper.round, guarantees=guarantee_documents(wire.ledger, defense_stack, method, delta=config.delta),
    )  # fmt: skip


def federate(
    method: Method,
    members: Sequence[Client],
    model: GlobalModel | None,
    config: RunConfig,
    progress: Progressive,
    *,
    defense_stack: DefenseStack = UNDEFENDED,
    quorum: float = 1.0,
) -> Trained:
    """Run the rounds in this process; with a `quorum` below 1 clients that fail are left out, and named on stderr."""
    states = MemoryStates()
    engine = LocalEngine(
        members=members,
        method=method,
        seed=config.seed,
        states=states,
        defense_stack=defense_stack,
        tolerant=quorum < 1,
    )
    return conduct(
        method, engine, model, config, progress, defense_stack=defense_stack, states=states.states, quorum=quorum, on_failure=named,
    )  # fmt: skip


def named(failure: Failure) -> None:
    """Say on stderr which client failed when, and why."""
    warn(f"round {failure.round}: {failure.client} failed in {failure.step}: {failure.reason}")


def _secret(seed: int, upload: Upload, number: int) -> torch.Generator:
    return stream(seed, "secret", "policy", upload.round, upload.stage, upload.sender, upload.receiver, number)


def _kept(message: Message, config: RunConfig) -> bool:
    """Whether the transcript keeps a payload: artifacts always, models of the last round or of all where they are asked for."""
    if config.keep == "artifacts":
        return keeps_artifacts(message)
    return config.keep == "models=all" or message.round == config.rounds - 1 or keeps_artifacts(message)


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """One run: what crossed the wire, and (for the judge) what each client remembers and which images it holds."""

    transcript: Transcript
    states: Mapping[str, State]
    clients: Mapping[str, DomainDataset]
    ledger: Ledger = field(default_factory=Ledger)


def observe(
    method: Method,
    members: Sequence[Client],
    *,
    seed: int,
    name: str,
    model: GlobalModel | None = None,
    defense_stack: DefenseStack = UNDEFENDED,
    guards: Sequence[Guard] = (),
    rounds: int = 0,
    coins: int | None = None,
) -> Observed:
    """Exchange artifacts among `members`, without training unless `rounds` are given, and write down everything.

    Models of the last round are written down where they were trained here. `model` is what methods need that share under
    the current model (StableFDG), and what training starts from. `coins` are the server's own draws, where they are not
    those of `seed`."""
    states = MemoryStates()
    wire = Wire(
        secret=lambda message, number: stream(
            seed, "secret", "policy", name, message.round, message.stage, message.sender, message.receiver, number
        ),
        guards=(*guards, *defense_stack.guards),
        policies=defense_stack.policies,
        filters=defense_stack.filters,
        keep=lambda message: keeps_artifacts(message) or (rounds > 0 and message.round == rounds - 1),
    )
    worn = replace(defense_stack, seed=seed, name=name)
    engine = LocalEngine(members=members, method=method, seed=seed, states=states, defense_stack=worn)
    drawn = seed if coins is None else coins
    RoundLoop(method=method, engine=engine, wire=wire, seed=drawn, rounds=rounds).run(model)
    return Observed(
        transcript=wire.transcript,
        states=states.states,
        clients={client.name: client.data for client in members},
        ledger=wire.ledger,
    )
