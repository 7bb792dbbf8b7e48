"""The stack of defenses that a client applies to what it sends.

It runs in each client's step, on the client's machine in every engine. A defense may therefore use the client's images,
and an engine never gets an undefended artifact. Each release carries its privacy cost, for the run's ledger
(fdgsec.privacy.ledger)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import (
    Defense,
    HasPolicy,
    Inspects,
    KeepsSharesApart,
    Outgoing,
    PartlyUndone,
    PlansGuarantee,
    PrivateTrainer,
    Sender,
    StatisticSource,
    TrainsPrivately,
    Uses,
    mechanism_on,
)
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import NUMBERS, Client, Clock, Method, Reply, State, Step, StepRequest
from fdgsec.federation.server_needs import NeedsEveryone
from fdgsec.federation.wire import Filter, Guard, Policy
from fdgsec.privacy.guarantees import RecordMixing, check_composable
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import name_of
from fdgsec.runtime.secret_streams import SecretGenerator, SecretStream, simulated_key


@dataclass(frozen=True, kw_only=True, eq=False)
class DefenseStack:
    """A client's defenses, in order. Their noise comes from `key`; `name` separates runs with one key.

    `look` makes the record statistic for a client's images and the model that it received. `usual` is the receivers'
    check where no defense inspects messages. `malicious_clients` replace, by name, what they send
    after their defenses."""

    defenses: Sequence[Defense] = ()
    key: bytes = field(default=simulated_key(0), repr=False)
    name: str = "run"
    statistic_source: StatisticSource | None = None
    usual: Defense | None = None
    malicious_clients: Mapping[str, MaliciousClient] = field(default_factory=dict)

    def check(self, method: Method) -> None:
        """Raise UsageError where a defense does not support `method`, two are mechanisms on the same messages, or
        guarantees do not compose."""
        for defense in self.defenses:
            defense.check(method)
        for one, other in combinations(self.defenses, 2):
            _check_mechanisms(one, other)
        check_composable([defense.promise for defense in self.defenses if isinstance(defense, PlansGuarantee)])

    def check_quorum(self, quorum: float) -> None:
        """Raise UsageError where a guarantee counts on the noise of every client, but a client may be missing."""
        for defense in self.defenses if quorum < 1 else ():
            if isinstance(defense, NeedsEveryone) and defense.needs_everyone:
                raise UsageError(
                    f"{type(defense).__name__} needs every client's noise in the sum; leave --quorum at 1."
                )

    @property
    def mixes_records(self) -> bool:
        """Whether a defense mixes one record into several rows of a release."""
        promises = [defense.promise for defense in self.defenses if isinstance(defense, PlansGuarantee)]
        return any(isinstance(promise, RecordMixing) for promise in promises)

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

    @property
    def returns_shares(self) -> bool:
        """Whether what a client shares may come back to it in what others shared: summed, centered, or bounded."""
        apart = [isinstance(one, KeepsSharesApart) and one.keeps_shares_apart for one in self.filters]
        return bool(self.policies) or not all(apart)

    def undone(self, artifact: Artifact) -> Artifact:
        """Undo the public part of the defenses, the last one first."""
        for defense in reversed(self.defenses):
            if isinstance(defense, PartlyUndone):
                artifact = defense.undone(artifact)
        return artifact

    def training_rng(self, client: Client, clock: Clock) -> SecretGenerator:
        """The generator of a client's objective in private training, whose draws for a record may depend on others."""
        return self._noise(client.name, clock, "objective", "").generator()

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
        if step == "share" and _hides_size(costs):  # a policy weights what clients share by their sizes
            weight = 1.0
        return Reply(artifacts=artifacts, weight=weight, metrics=metrics, uses=costs)

    def defended(self, outgoing: Outgoing) -> Artifact:
        """Apply every defense to one artifact, whatever its cost."""
        return self._defended(outgoing)[0]

    def _defended(self, outgoing: Outgoing) -> tuple[Artifact, Uses]:
        artifact, sender = outgoing.artifact, outgoing.sender
        uses: Uses = None
        acted, hidden = False, False
        for number, defense in enumerate(self.defenses):
            mechanism = not {outgoing.stage, f"{outgoing.stage}/{outgoing.name}"}.isdisjoint(mechanism_on(defense))
            seen = sender if mechanism and not acted else sender.without_count if hidden else sender.without_data
            given = replace(outgoing, artifact=artifact, sender=seen)
            rng = self._noise(sender.name, sender.clock, outgoing.stage, outgoing.name, number)
            protected = defense.on_message(given, rng)
            if protected is None:
                continue
            if mechanism and acted:  # one record may be in every number of what the earlier defense made
                raise UsageError(
                    f"{name_of('defenses', defense)} bounds what one record changes in {outgoing.name!r}, and another "
                    "defense changed that before; put it first."
                )
            if protected.uses is not None and not mechanism:
                raise UsageError(
                    f"{name_of('defenses', defense)} states a cost, and is post-processing in the {outgoing.stage} "
                    "stage; a mechanism names its stages in mechanism_on."
                )
            artifact, acted = protected.artifact, True
            hidden = hidden or _hides_size({outgoing.name: protected.uses})
            uses = protected.uses if mechanism else uses  # post-processing costs nothing more
        return artifact, uses

    def _noise(self, client: str, clock: Clock, stage: str, slot: str, number: int = 0) -> SecretStream:
        return SecretStream(self.key, "defense", self.name, clock.round, stage, slot, client, number)

    def _receiving(self) -> tuple[Defense, ...]:
        """Give the defenses, and the usual one where none of them inspects messages."""
        if self.usual is None or any(isinstance(defense, Inspects) for defense in self.defenses):
            return tuple(self.defenses)
        return (self.usual, *self.defenses)

    def _trainers(self) -> list[TrainsPrivately]:
        return [defense for defense in self.defenses if isinstance(defense, TrainsPrivately)]


def _check_mechanisms(one: Defense, other: Defense) -> None:
    """Raise UsageError where both are mechanisms on the records behind the same messages."""
    for place, elsewhere in product(mechanism_on(one), mechanism_on(other)):
        if f"{place}/".startswith(f"{elsewhere}/") or f"{elsewhere}/".startswith(f"{place}/"):
            raise UsageError(
                f"{name_of('defenses', one)} and {name_of('defenses', other)} are both mechanisms on what clients send "
                f"({max(place, elsewhere, key=len)}): the second would discard the noise of the first, and the stated "
                "epsilon would be wrong. Leave one out."
            )


def _hides_size(costs: Mapping[str, Uses]) -> bool:
    """Tell whether a guarantee is about neighbors with different numbers of images."""
    uses = [use for cost in costs.values() for use in cost or ()]
    return any(use.unit == "client" or "add-remove" in use.sensitivity for use in uses)
