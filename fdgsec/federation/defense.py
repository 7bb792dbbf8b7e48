"""The interfaces of a defense, and the stack of defenses that a client applies to what it sends.

The stack runs in each client's step, on the client's machine in every engine. A defense may therefore use the client's
images, and an engine never gets an undefended artifact. Each release carries its privacy cost, for the run's ledger
(fdgsec.privacy.ledger)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import NUMBERS, Client, Clock, GlobalModel, Method, Reply, State, Step, StepRequest
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.server_needs import NeedsEveryone
from fdgsec.federation.wire import Filter, Guard, Message, Policy
from fdgsec.nn.training.training_loop import Trainer
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.guarantees import PlannedGuarantee, RecordMixing, check_composable
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

Uses = tuple[Use, ...] | None
"""The privacy cost of a release to its records: () for no additional cost, None for no guarantee at all."""


class RecordStatistic(Protocol):
    """The statistic t(x) whose mean over a client's images is released, under the model that the client received."""

    @property
    def released_statistic(self) -> ReleasedStatistic:
        """Give the statistic that is released, and how."""
        ...

    def records(self, images: DomainDataset) -> Tensor:
        """Compute t(x) of every image, (n, D) float64."""
        ...


StatisticSource = Callable[[DomainDataset, GlobalModel | None], RecordStatistic]
"""Makes a client's record statistic from its images and the model that it received."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sender:
    """A client as its own defenses see it: its name, images, state after the step, and the model that it received.

    `trained` is the cost of this step's private trainer so far; None without one."""

    client: Client
    method: Method
    clock: Clock
    model: GlobalModel | None
    state: State
    statistic_source: StatisticSource | None
    trained: Uses = None

    @property
    def name(self) -> str:
        """Name as "client:3"."""
        return self.client.name

    @cached_property
    def record_statistic(self) -> RecordStatistic:
        """Give the statistic of this step's releases. Raises UsageError where this run has none."""
        if self.statistic_source is None:
            raise UsageError("a defense that clips records needs to know of which statistic releases are means.")
        return self.statistic_source(self.client.data, self.model)

    @cached_property
    def records(self) -> Tensor:
        """Compute t(x) of each of the client's training images, (n, D) float64."""
        return self.record_statistic.records(self.client.data)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outgoing:
    """One artifact that `sender` is about to send in a stage ("share", "update", "review") under a slot's name.

    `metrics` are the names of an update's metrics, where the artifact is its weight and metrics. `paid` is the cost so
    far by the defenses before this one, None where none protects it yet."""

    round: int
    stage: str
    name: str
    artifact: Artifact
    sender: Sender
    metrics: frozenset[str] = frozenset()
    paid: Uses = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Protected:
    """The artifact that is sent instead, and its privacy cost."""

    artifact: Artifact
    uses: Uses = None


class PrivateTrainer(Trainer, Protocol):
    """A training loop that reports its privacy cost to the records."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """Give the cost of all calls so far."""
        ...


@runtime_checkable
class Defense(Protocol):
    """Processes what a client sends; a frozen dataclass of options, one file in defenses/."""

    @property
    def assumptions(self) -> Sequence[str]:
        """List the assumptions of its guarantee, in words."""
        ...

    def check(self, method: Method) -> None:
        """Raise UsageError for a method that it does not support, with the reason and the alternatives."""
        ...

    def on_message(self, outgoing: Outgoing, rng: torch.Generator) -> Protected | None:
        """Give the replacement of `outgoing.artifact`; None where the defense does not apply to it."""
        ...


@runtime_checkable
class PlansGuarantee(Protocol):
    """A defense that announces its guarantee before the run: its cost, unit and neighboring relations."""

    @property
    def promise(self) -> PlannedGuarantee | RecordMixing | None:
        """Give its guarantee; None without noise, Mixing where it mixes records that later defenses cannot count."""
        ...


@runtime_checkable
class TrainsPrivately(Protocol):
    """A defense that replaces the training loop."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: torch.Generator) -> PrivateTrainer:
        """Make the replacement of fdgsec.nn.training.training_loop.epochs, its noise drawn from `rng`."""
        ...


@runtime_checkable
class HasPolicy(Protocol):
    """A defense that processes the uploads of all clients together."""

    def policy(self) -> Policy:
        """Give its policy."""
        ...


@runtime_checkable
class Inspects(Protocol):
    """A defense of receivers: it inspects every message before it is used."""

    def inspect(self, message: Message) -> None:
        """Raise ArtifactError for a message that its receiver should refuse."""
        ...


@runtime_checkable
class PartlyUndone(Protocol):
    """A defense whose public options let any adversary undo a part of it."""

    def undone(self, artifact: Artifact) -> Artifact:
        """Give `artifact` without that part."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class DefenseStack:
    """A client's defenses, in order. `secret` seeds their noise; `name` separates runs of one seed.

    `look` makes the record statistic for a client's images and the model that it received. `usual` is the receivers'
    check where no defense inspects messages. `intruders` are malicious clients, by name, which replace what they send
    after their defenses."""

    defenses: Sequence[Defense] = ()
    seed: int = 0
    name: str = "run"
    statistic_source: StatisticSource | None = None
    usual: Defense | None = None
    malicious_clients: Mapping[str, MaliciousClient] = field(default_factory=dict)

    def check(self, method: Method) -> None:
        """Raise UsageError where a defense does not support `method`, two would train, or guarantees do not compose."""
        for defense in self.defenses:
            defense.check(method)
        if len(self._trainers()) > 1:
            raise UsageError("one defense can train in a client's place, not two.")
        check_composable([defense.promise for defense in self.defenses if isinstance(defense, PlansGuarantee)])

    def check_quorum(self, quorum: float) -> None:
        """Raise UsageError where a guarantee counts on the noise of every client, but a client may be missing."""
        for defense in self.defenses if quorum < 1 else ():
            if isinstance(defense, NeedsEveryone) and defense.needs_everyone:
                raise UsageError(
                    f"{type(defense).__name__} needs every client's noise in the sum; leave --quorum at 1."
                )

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Give the policies of the defenses, in order."""
        return tuple(defense.policy() for defense in self.defenses if isinstance(defense, HasPolicy))

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Give the message checks of the defenses, else the default check."""
        return tuple(defense.inspect for defense in self._receiving() if isinstance(defense, Inspects))

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Give the server-side filters of the defenses: noise for a sum comes before whatever would change the sum."""
        acting = [defense for defense in self._receiving() if isinstance(defense, Filter)]
        return tuple(sorted(acting, key=lambda defense: isinstance(defense, Inspects)))

    def undone(self, artifact: Artifact) -> Artifact:
        """Undo the public part of the defenses, the last one first."""
        for defense in reversed(self.defenses):
            if isinstance(defense, PartlyUndone):
                artifact = defense.undone(artifact)
        return artifact

    def with_trainer(self, client: Client, method: Method, clock: Clock) -> tuple[Client, PrivateTrainer | None]:
        """Give the client with a defense's trainer in place of the plain one, and that trainer."""
        for defense in self._trainers():
            trainer = defense.trainer(client, method, clock, self._noise(client.name, clock, "training", ""))
            return client.training_by(trainer), trainer
        return client, None

    def sender(
        self, client: Client, method: Method, request: StepRequest, state: State, trainer: PrivateTrainer | None
    ) -> Sender:
        """Describe the client after a step to its defenses. Raises UsageError where the statistic is unknown."""
        return Sender(
            client=client, method=method, clock=request.clock, model=request.model, state=state,
            statistic_source=self.statistic_source, trained=None if trainer is None else trainer.uses,
        )  # fmt: skip

    def sent(self, step: Step, reply: Reply, sender: Sender) -> Reply:
        """Apply every defense to each artifact of a reply, and to its weight and metrics."""
        if not self.defenses:
            return reply
        stage = "update" if step == "fit" else step
        slots = dict(reply.artifacts)
        if step == "fit":
            slots[NUMBERS] = reply.numbers()
        artifacts, costs = dict[str, Artifact](), dict[str, Uses]()
        for slot, artifact in slots.items():
            outgoing = Outgoing(
                round=sender.clock.round, stage=stage, name=slot, artifact=artifact, sender=sender,
                metrics=frozenset(reply.metrics) if slot == NUMBERS else frozenset(),
            )  # fmt: skip
            artifacts[slot], costs[slot] = self._defended(outgoing)
        weight, metrics = reply.weight, reply.metrics
        if NUMBERS in artifacts:
            weight, metrics = reply.read_numbers(artifacts.pop(NUMBERS))
        return Reply(artifacts=artifacts, weight=weight, metrics=metrics, uses=costs)

    def defended(self, outgoing: Outgoing) -> Artifact:
        """Apply every defense to one artifact, whatever its cost."""
        return self._defended(outgoing)[0]

    def _defended(self, outgoing: Outgoing) -> tuple[Artifact, Uses]:
        artifact = outgoing.artifact
        uses: Uses = None
        for number, defense in enumerate(self.defenses):
            given = replace(outgoing, artifact=artifact, paid=uses)
            rng = self._noise(outgoing.sender.name, outgoing.sender.clock, outgoing.stage, outgoing.name, number)
            protected = defense.on_message(given, rng)
            if protected is None:
                continue
            artifact = protected.artifact
            if uses is None:  # processing of a protected artifact costs nothing more
                uses = protected.uses
        return artifact, uses

    def _noise(self, client: str, clock: Clock, stage: str, slot: str, number: int = 0) -> torch.Generator:
        return stream(self.seed, "secret", "defense", self.name, clock.round, stage, slot, client, number)

    def _receiving(self) -> tuple[Defense, ...]:
        """Give the defenses, and the usual one where none of them inspects messages."""
        if self.usual is None or any(isinstance(defense, Inspects) for defense in self.defenses):
            return tuple(self.defenses)
        return (self.usual, *self.defenses)

    def _trainers(self) -> list[TrainsPrivately]:
        return [defense for defense in self.defenses if isinstance(defense, TrainsPrivately)]
