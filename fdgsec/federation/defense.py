"""What a defense is, and the shield in which a client wears several: they act where its messages leave it.

The shield works inside `federation.handle`, which every engine runs where the client's data are: a defense may look at the
client's images, and nothing undefended is handed to an engine. What each release cost goes with it, for the run's ledger
(fdgsec.privacy.ledger)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.malicious_client import MaliciousClient
from fdgsec.federation.method import NUMBERS, Client, Clock, GlobalModel, Method, Reply, State, Step, StepRequest
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.server_view import NeedsEveryone
from fdgsec.federation.wire import Filter, Guard, Message, Policy
from fdgsec.nn.training.loop import Trainer
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.guarantees import Mixing, PlannedGuarantee, check_composable
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

Uses = tuple[Use, ...] | None
"""What a release cost the records behind it: nothing more than was paid before (), or no guarantee at all (None)."""


class RecordStatistic(Protocol):
    """How a method's releases are read: the statistic t(x) of images under the model that a client received."""

    @property
    def released_statistic(self) -> ReleasedStatistic:
        """Of which t a release is the mean, and how."""
        ...

    def records(self, images: DomainDataset) -> Tensor:
        """Give t(x) of every image, (n, D) float64."""
        ...


StatisticSource = Callable[[DomainDataset, GlobalModel | None], RecordStatistic]
"""Gives a client's lens, from its images and the model that it received."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sender:
    """A client as its own defenses see it: its name, images, state after the step, the model that it received.

    `trained` is what the private trainer of this step has cost so far; None where none trained."""

    client: Client
    method: Method
    clock: Clock
    model: GlobalModel | None
    state: State
    statistic_source: StatisticSource | None
    trained: Uses = None

    @property
    def name(self) -> str:
        """As "client:3"."""
        return self.client.name

    @cached_property
    def record_statistic(self) -> RecordStatistic:
        """How this step's releases are read. Raises UsageError where this run gave its clients no lens."""
        if self.statistic_source is None:
            raise UsageError("a defense that clips records needs to know of which statistic releases are means.")
        return self.statistic_source(self.client.data, self.model)

    @cached_property
    def records(self) -> Tensor:
        """t(x) of each of the client's training images, (n, D) float64."""
        return self.record_statistic.records(self.client.data)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outgoing:
    """One artifact that is about to leave `sender` in a stage ("share", "update", "review") under a slot's name.

    `metrics` are the names of the numbers behind the weight, where they are an update's numbers; `paid` is what defenses
    before this one have paid for it, None where none covers it yet."""

    round: int
    stage: str
    name: str
    artifact: Artifact
    sender: Sender
    metrics: frozenset[str] = frozenset()
    paid: Uses = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Protected:
    """What leaves instead, and what that costs."""

    artifact: Artifact
    uses: Uses = None


class PrivateTrainer(Trainer, Protocol):
    """A training loop that says what it has cost the records it was given."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """What all calls so far have cost."""
        ...


@runtime_checkable
class Defense(Protocol):
    """Acts on what a client sends; a frozen dataclass of options, one file in defenses/."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What its guarantee rests on, in words."""
        ...

    def check(self, method: Method) -> None:
        """Raise UsageError for a method with which it does not work, saying why and what does."""
        ...

    def on_message(self, outgoing: Outgoing, rng: torch.Generator) -> Protected | None:
        """Give what leaves instead of `outgoing.artifact`; None: this is none of its business."""
        ...


@runtime_checkable
class PlansGuarantee(Protocol):
    """The half of a defense that says beforehand what it will pay, in which unit and between which neighbors."""

    @property
    def promise(self) -> PlannedGuarantee | Mixing | None:
        """None where its options leave it without noise; or that it mixes records, for which others then cannot pay."""
        ...


@runtime_checkable
class TrainsPrivately(Protocol):
    """The half of a defense that acts on training."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: torch.Generator) -> PrivateTrainer:
        """Give the loop that trains in place of fdgsec.nn.training.loop.epochs, its noise drawn from `rng`."""
        ...


@runtime_checkable
class HasPolicy(Protocol):
    """The half of a defense that acts on the wire, on all clients' uploads together."""

    def policy(self) -> Policy:
        """Give what acts there."""
        ...


@runtime_checkable
class Inspects(Protocol):
    """The half of a defense that receivers wear: it looks at every message before it is used."""

    def inspect(self, message: Message) -> None:
        """Raise ArtifactError for a message that its receiver should refuse."""
        ...


@runtime_checkable
class PartlyUndone(Protocol):
    """A defense of which whoever knows its public options can undo a part, as any adversary would."""

    def undone(self, artifact: Artifact) -> Artifact:
        """Give `artifact` without that part."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class DefenseStack:
    """A client's defenses, in order. `secret` roots their noise; `name` keeps runs of one seed apart.

    `look` gives the lens for the images that a client holds and the model that it received. `usual` is what receivers
    check where no defense inspects messages. `intruders` are clients, by name, that forge what they send: behind their
    defenses, which do not bind them."""

    defenses: Sequence[Defense] = ()
    seed: int = 0
    name: str = "run"
    statistic_source: StatisticSource | None = None
    usual: Defense | None = None
    malicious_clients: Mapping[str, MaliciousClient] = field(default_factory=dict)

    def check(self, method: Method) -> None:
        """Raise UsageError where a defense does not work with `method`, two would train, or promises do not compose."""
        for defense in self.defenses:
            defense.check(method)
        if len(self._trainers()) > 1:
            raise UsageError("one defense can train in a client's place, not two.")
        check_composable([defense.promise for defense in self.defenses if isinstance(defense, PlansGuarantee)])

    def check_quorum(self, quorum: float) -> None:
        """Raise UsageError where a client may be missing whose share of the noise a guarantee counts on."""
        for defense in self.defenses if quorum < 1 else ():
            if isinstance(defense, NeedsEveryone) and defense.needs_everyone:
                raise UsageError(
                    f"{type(defense).__name__} needs every client's noise in the sum; leave --quorum at 1."
                )

    @property
    def policies(self) -> tuple[Policy, ...]:
        """What defenses do on the wire, in order."""
        return tuple(defense.policy() for defense in self.defenses if isinstance(defense, HasPolicy))

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What defenses check of every message, else what is checked by default."""
        return tuple(defense.inspect for defense in self._receiving() if isinstance(defense, Inspects))

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What defenses do with what the server received: noise for a sum before anything that would change the sum."""
        acting = [defense for defense in self._receiving() if isinstance(defense, Filter)]
        return tuple(sorted(acting, key=lambda defense: isinstance(defense, Inspects)))

    def undone(self, artifact: Artifact) -> Artifact:
        """Undo what is public of the defenses, the last one first."""
        for defense in reversed(self.defenses):
            if isinstance(defense, PartlyUndone):
                artifact = defense.undone(artifact)
        return artifact

    def with_trainer(self, client: Client, method: Method, clock: Clock) -> tuple[Client, PrivateTrainer | None]:
        """The client with the trainer that a defense puts in place of the plain one."""
        for defense in self._trainers():
            trainer = defense.trainer(client, method, clock, self._noise(client.name, clock, "training", ""))
            return client.training_by(trainer), trainer
        return client, None

    def sender(
        self, client: Client, method: Method, request: StepRequest, state: State, trainer: PrivateTrainer | None
    ) -> Sender:
        """The client as its defenses see it after a step. Raises UsageError where releases of this run cannot be read."""
        return Sender(
            client=client, method=method, clock=request.clock, model=request.model, state=state,
            statistic_source=self.statistic_source, trained=None if trainer is None else trainer.uses,
        )  # fmt: skip

    def sent(self, step: Step, reply: Reply, sender: Sender) -> Reply:
        """Let every defense act on each artifact of a reply, and on its weight and metrics."""
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
            weight, metrics = reply.told(artifacts.pop(NUMBERS))
        return Reply(artifacts=artifacts, weight=weight, metrics=metrics, uses=costs)

    def defended(self, outgoing: Outgoing) -> Artifact:
        """Give what becomes of one artifact, whatever that costs."""
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
            if uses is None:  # what acts on a covered artifact is post-processing
                uses = protected.uses
        return artifact, uses

    def _noise(self, client: str, clock: Clock, stage: str, slot: str, number: int = 0) -> torch.Generator:
        return stream(self.seed, "secret", "defense", self.name, clock.round, stage, slot, client, number)

    def _receiving(self) -> tuple[Defense, ...]:
        """The defenses, and the usual one where none of them inspects messages."""
        if self.usual is None or any(isinstance(defense, Inspects) for defense in self.defenses):
            return tuple(self.defenses)
        return (self.usual, *self.defenses)

    def _trainers(self) -> list[TrainsPrivately]:
        return [defense for defense in self.defenses if isinstance(defense, TrainsPrivately)]
