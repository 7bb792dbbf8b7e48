"""Run a federation's rounds: for a trained model that is kept, or for the artifacts that an attack observes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fdgsec.experiments.run_config import Keep, RunConfig
from fdgsec.experiments.setup.guarantees import guarantee_documents
from fdgsec.federation.checkpoints import Checkpoint, Checkpoints
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.processes import ProcessEngine, forked_workers
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Engine, Method, State
from fdgsec.federation.round_loop import Failure, LoopState, RoundLoop, RoundReport
from fdgsec.federation.wire import Guard, Message, Transcript, Upload, Wire, keeps_artifacts
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress, Progressive, warn
from fdgsec.runtime.secret_streams import SecretStream, simulated_key
from fdgsec.runtime.threads import limited_threads


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRequest:
    """A federation to run by `config`: its method and clients, the initial model, and the defenses.

    With `checkpoints`, every round is kept, and a run that was interrupted goes on."""

    method: Method
    members: Sequence[Client]
    model: GlobalModel | None
    config: RunConfig
    defense_stack: DefenseStack = UNDEFENDED
    progress: Progressive = field(default_factory=NoProgress)
    checkpoints: Checkpoints | None = None

    @property
    def initial(self) -> GlobalModel:
        """The initial model. Raises ValueError if the request has none."""
        if self.model is None:
            raise ValueError("the request exchanges only artifacts; it has no model.")
        return self.model


@dataclass(frozen=True, kw_only=True, eq=False)
class FederationRun:
    """A finished run: everything that crossed the wire, the model that is kept, and what the defenses guarantee.

    `states` is the client state if clients run in this process, else empty; `federation` is the status of a remote
    engine: clients, stages, failures. `kept_round` is -1 without training."""

    transcript: Transcript
    states: Mapping[str, State] = field(default_factory=dict)
    model: GlobalModel | None = None
    curve: Sequence[Mapping[str, float]] = ()
    kept_round: int = -1
    guarantees: Sequence[Mapping[str, object]] = ()
    federation: Mapping[str, Any] | None = None

    @property
    def final(self) -> GlobalModel:
        """The kept model. Raises ValueError if the run has no model."""
        if self.model is None:
            raise ValueError("the run exchanged only artifacts; it has no model.")
        return self.model


Federation = Callable[[RunRequest], FederationRun]
"""Runs a federation: in this process (`federate`), or on a remote engine."""


@dataclass(eq=False)
class _Keeper:
    """Keeps the model with the best source-validation accuracy, or the last one if that is not measured."""

    progress: Progressive
    model: GlobalModel | None = None
    round: int = -1
    best: float = -1.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, report: RoundReport, model: GlobalModel) -> None:
        losses = [metrics["loss"] for metrics in report.metrics.values() if "loss" in metrics]
        point = {"round": float(report.round)}
        if losses:  # private training reports no losses
            point["loss"] = sum(losses) / len(losses)
        steps = [metrics["steps"] for metrics in report.metrics.values() if "steps" in metrics]
        if steps and len(steps) == len(report.metrics):  # of a sum, the mean by the clients' weights
            point |= {"steps": sum(steps) * report.clients / len(steps), "clients": float(report.clients)}
        accuracy = report.server.get("validation_accuracy")
        if accuracy is not None:
            point["validation_accuracy"] = float(accuracy)
        self.curve.append(point)
        if accuracy is None or float(accuracy) > self.best:
            self.best = -1.0 if accuracy is None else float(accuracy)
            self.model, self.round = model, report.round
        self.progress.update("rounds", report.round + 1, report.rounds)

    def facts(self) -> dict[str, object]:
        """What a checkpoint says of the kept model."""
        return {"round": self.round, "best": self.best, "curve": self.curve}

    def resume(self, found: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.model, self.round = found.kept, int(found.facts["round"])
        self.best, self.curve = float(found.facts["best"]), list(found.facts["curve"])


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The settings of the round loop: seed, rounds, participation, and the payloads that the transcript keeps.

    `name` distinguishes the random streams of a simulated run from those of the run itself (""). `key` is that of the
    server's own draws; None: the simulated one of the seed. `reproducible` says that clients draw their noise from the
    seed all the same. Guarantees are stated at `delta`; None states none."""

    seed: int
    rounds: int = 0
    participation: float = 1.0
    keep: Keep = "artifacts"
    name: str = ""
    key: bytes | None = field(default=None, repr=False)
    reproducible: bool = False
    delta: float | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "RoundSettings":
        """The settings of a run itself."""
        return cls(
            seed=config.seed, rounds=config.rounds, participation=config.participation, keep=config.keep,
            delta=config.delta,
        )  # fmt: skip

    @property
    def server_key(self) -> bytes:
        """The key of the server's own draws."""
        return simulated_key(self.seed) if self.key is None else self.key

    def secret(self, upload: Upload, number: int) -> SecretStream:
        """The random stream of policy `number` for one upload."""
        run = (self.name,) if self.name else ()
        names = (upload.round, upload.stage, upload.sender, upload.receiver, number)
        return SecretStream(self.server_key, "policy", *run, *names)

    def keeps(self, message: Message) -> bool:
        """Whether the transcript keeps a payload: artifacts always, models of the last round or of all on request."""
        if self.keep == "artifacts":
            return keeps_artifacts(message)
        return self.keep == "models=all" or message.round == self.rounds - 1 or keeps_artifacts(message)


@dataclass(frozen=True, kw_only=True, eq=False)
class _KeptRounds:
    """Keeps every round of a run whose clients are in this process, their states in `states`."""

    checkpoints: Checkpoints
    states: MemoryStates
    wire: Wire
    keeper: _Keeper
    failures: list[Failure]

    def resumed(self, settings: RoundSettings, model: GlobalModel) -> LoopState | None:
        """Take what the newest checkpoint says, and give where the loop goes on; None at the beginning.

        Raises UsageError for a server whose draws come from a key of its own."""
        if settings.key is not None:
            raise UsageError(
                "a server that draws from a secret key keeps no rounds: without the key it would release a round's sum "
                "with other noise a second time, and with it could add the same noise to another sum; start the run "
                "anew."
            )
        self.checkpoints.begin()
        found = self.checkpoints.latest(model.blueprint)
        if found is None:
            return None
        self.states.states.update(found.states)
        self.states.versions.update(found.versions)
        self.wire.transcript.rows.extend(found.transcript.rows)
        self.wire.transcript.payloads.update(found.transcript.payloads)
        self.wire.ledger.entries.extend(found.ledger.entries)
        self.wire.ledger.restated.extend(found.ledger.restated)
        self.failures.extend(found.failures)
        self.keeper.resume(found)
        warn(f"going on after round {found.loop.round} of {settings.rounds}, kept in {self.checkpoints.folder}")
        return found.loop

    def __call__(self, loop: LoopState) -> None:
        """Keep a round."""
        self.checkpoints.save(
            Checkpoint(
                loop=loop, transcript=self.wire.transcript, ledger=self.wire.ledger, states=self.states.states,
                versions=self.states.versions, failures=self.failures, kept=self.keeper.model,
                facts=self.keeper.facts(),
            )
        )  # fmt: skip


def run_rounds(
    method: Method,
    engine: Engine,
    model: GlobalModel | None,
    settings: RoundSettings,
    *,
    defense_stack: DefenseStack = UNDEFENDED,
    guards: Sequence[Guard] = (),
    states: MemoryStates | None = None,
    quorum: float = 1.0,
    checked: bool = False,
    on_failure: Callable[[Failure], None] | None = None,
    progress: Progressive | None = None,
    checkpoints: Checkpoints | None = None,
) -> FederationRun:
    """Run the rounds of `method` on `engine`, from `model`; the server applies policies and filters of `defense_stack`.

    Its guards come after `guards`. `states` are those of the engine's clients, where they are in this process. Where at
    least the share `quorum` of the clients asked answer a step validly, the others are left out, and `on_failure` is
    called. With `checked` every reply is checked before it is used, as with a quorum below 1. Rounds are kept in
    `checkpoints`, from which an interrupted run goes on. Raises UsageError where a defense needs every client, and for
    checkpoints of a server with a key of its own."""
    defense_stack.check_quorum(quorum)
    wire = Wire(
        secret=settings.secret,
        keep=settings.keeps,
        guards=(*guards, *defense_stack.guards),
        policies=defense_stack.policies,
        filters=defense_stack.filters,
    )
    keeper, failures, kept, start = _Keeper(progress=progress or NoProgress()), list[Failure](), None, None
    if checkpoints is not None and states is not None and settings.rounds and model is not None:
        kept = _KeptRounds(checkpoints=checkpoints, states=states, wire=wire, keeper=keeper, failures=failures)
        start = kept.resumed(settings, model)
    if settings.rounds:
        keeper.progress.update("rounds", 0 if start is None else start.round, settings.rounds)
    RoundLoop(
        method=method, engine=engine, wire=wire, key=settings.server_key, rounds=settings.rounds,
        participation=settings.participation, on_round=keeper, quorum=quorum, checked=checked, on_failure=on_failure,
        on_state=kept, failures=failures,
    ).run(model, start=start)  # fmt: skip
    guarantees: Sequence[Mapping[str, object]] = ()
    if settings.delta is not None:
        guarantees = guarantee_documents(
            wire.ledger, defense_stack, method, delta=settings.delta,
            simulated=settings.key is None or settings.reproducible, stated=checked,
        )  # fmt: skip
    return FederationRun(
        transcript=wire.transcript, states={} if states is None else states.states, model=keeper.model or model,
        curve=keeper.curve, kept_round=keeper.round, guarantees=guarantees,
    )  # fmt: skip


def federate(request: RunRequest, *, quorum: float = 1.0, workers: int = 1) -> FederationRun:
    """Run the rounds in this process, on the threads of the settings.

    With a `quorum` below 1 clients that fail are left out, and named on stderr. More than one of the `workers` are
    processes that share out the clients of a step; the run is the same to the bit."""
    states, kept = MemoryStates(), request.checkpoints
    if kept is not None:
        kept = replace(kept, key=f"{kept.key} {quorum:g}", settings={**kept.settings, "quorum": quorum})
    with limited_threads(request.config.threads), _engine(request, states, quorum < 1, workers) as engine:
        return run_rounds(
            request.method, engine, request.model, RoundSettings.of(request.config),
            defense_stack=request.defense_stack, states=states, quorum=quorum, on_failure=_warn_of_failure,
            progress=request.progress, checkpoints=kept,
        )  # fmt: skip


@contextmanager
def _engine(request: RunRequest, states: MemoryStates, tolerant: bool, workers: int) -> Iterator[Engine]:
    """The engine of a run in this process, with worker processes where several are asked for."""
    seed, members, stack = request.config.seed, request.members, request.defense_stack
    if workers == 1:
        yield LocalEngine(
            members=members, method=request.method, seed=seed, states=states, defense_stack=stack, tolerant=tolerant
        )
        return
    blueprint = None if request.model is None else request.model.blueprint
    with forked_workers(
        members, request.method, blueprint=blueprint, seed=seed, defense_stack=stack, workers=workers,
        threads=request.config.threads,
    ) as pool:  # fmt: skip
        yield ProcessEngine(members=members, pool=pool, states=states, tolerant=tolerant)


def _warn_of_failure(failure: Failure) -> None:
    """Print a warning about a failed client to stderr."""
    warn(f"round {failure.round}: {failure.client} failed in {failure.step}: {failure.reason}")


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
    key: bytes | None = None,
    delta: float | None = None,
    every_round: bool = False,
) -> FederationRun:
    """Simulate an exchange of artifacts among `members` in this process, with training only where `rounds` are given.

    The transcript also keeps the models of the last round, or of `every_round`. `model` is what methods need that share
    under the current model (StableFDG), and what training starts from. For `name`, `key` and `delta` see
    `RoundSettings`."""
    states = MemoryStates()
    renamed = replace(defense_stack, key=simulated_key(seed), name=name)
    engine = LocalEngine(members=members, method=method, seed=seed, states=states, defense_stack=renamed)
    models: Keep = "models=all" if every_round else "models=last"
    settings = RoundSettings(
        seed=seed, rounds=rounds, keep=models if rounds else "artifacts", name=name, key=key, delta=delta,
    )  # fmt: skip
    return run_rounds(method, engine, model, settings, defense_stack=defense_stack, guards=guards, states=states)
