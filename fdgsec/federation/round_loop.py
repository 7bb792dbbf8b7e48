"""The round loop for every method and every engine; every artifact passes through the wire.

docs/design.md walks eight methods through it on paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import (
    NUMBERS,
    Aggregation,
    Clock,
    Engine,
    Inbox,
    Method,
    Reply,
    State,
    Step,
    StepRequest,
    Update,
)
from fdgsec.federation.participation import ClientFailedError, Failure, RoundParticipation
from fdgsec.federation.replies_in_turn import answers_of, contents_of, received_update, sent_artifacts
from fdgsec.federation.reply_checks import SCORES, differing_replies, objection, select_scores
from fdgsec.federation.server_needs import aggregation_of
from fdgsec.federation.wire import CLIENTS, SERVER, Message, Upload, Wire
from fdgsec.runtime.errors import ArtifactError, UsageError, message_line
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream

__all__ = ["ClientFailedError", "Failure", "RoundLoop", "RoundReport"]

STAGES: Mapping[Step, str] = {"share": "share", "fit": "update", "review": "review"}
"""Names of the replies to a step in the transcript."""


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """Summary of one round, for progress lines and curves: `metrics` by sender, which may stand for all `clients`."""

    round: int
    rounds: int
    metrics: Mapping[str, Mapping[str, float]]
    server: State
    clients: int


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopState:
    """What the loop carries from one round to the next, `round`.

    `names` are the clients that are still in the run, `inboxes` what they received where sharing happens once. Random
    streams are named by the round, so that nothing of them is carried."""

    round: int
    names: tuple[str, ...]
    model: GlobalModel | None
    server: State = field(default_factory=dict)
    inboxes: Mapping[str, Inbox] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundLoop:
    """The server's side of the round loop, independent of the engine.

    `quorum` is the share of a round's participants that must do every step validly. At 1 the first failure ends the
    run. Below it a client that fails is left out of the rest of the round, and of the run where it never shared
    what is shared once; the round continues with the others. Replies are then checked
    (fdgsec.federation.reply_checks) before any part of them is recorded; with `checked` this is also done at 1. The
    server's own draws come from `key`. `failures` keeps every failure, and `on_failure` is called at once. `on_state`
    gets what the next round starts from, after every round that trains."""

    method: Method
    engine: Engine
    wire: Wire
    key: bytes = field(repr=False)
    rounds: int
    participation: float = 1.0
    on_round: Callable[[RoundReport, GlobalModel], None] | None = None
    quorum: float = 1.0
    checked: bool = False
    on_failure: Callable[[Failure], None] | None = None
    on_state: Callable[[LoopState], None] | None = None
    failures: list[Failure] = field(default_factory=list)

    def run(self, model: GlobalModel | None, *, start: LoopState | None = None) -> GlobalModel | None:
        """Run `rounds` rounds and give the final model; rounds = 0 exchanges artifacts and trains nothing.

        With `start`, go on from there. Raises UsageError for options that the clients cannot meet, ClientFailedError
        where too few clients are left."""
        if self.rounds < 0 or not 0 < self.participation <= 1:
            raise UsageError(
                f"rounds must be at least 0 and participation in (0, 1]; got {self.rounds} and {self.participation}."
            )
        if not 0 < self.quorum <= 1:
            raise UsageError(f"quorum is the share of clients that must answer, in (0, 1]; got {self.quorum}.")
        names = tuple(self.engine.clients())
        self.method.check(len(names))
        if self.rounds and model is None:
            raise UsageError("training needs a model; none was given.")
        state = start or LoopState(round=0, names=names, model=model)
        while state.round < max(self.rounds, 1):
            state = self._round(state)
            if self.rounds and self.on_state is not None:
                self.on_state(state)
        return state.model

    def _round(self, state: LoopState) -> LoopState:
        """Run the next round."""
        number, names, model, server, inboxes = state.round, state.names, state.model, state.server, state.inboxes
        if self.method.shares == "once" and number == 0:
            everyone = RoundParticipation.of(Clock(round=0, rounds=self.rounds, participants=names))
            inboxes, server, everyone = self._exchange(everyone, {}, server)
            names = everyone.present  # a client that sent nothing has received nothing to train with
        clock = Clock(round=number, rounds=self.rounds, participants=self._participants([*names], number))
        received = self._models(clock, model) if self.rounds or self.method.shares == "every" else {}
        attendance = RoundParticipation.of(clock)
        if self.method.shares == "every":
            inboxes, server, attendance = self._exchange(attendance, received, server)
        if self.rounds and model is not None:
            model, server = self._train(attendance, model, received, inboxes, server)
        kept = inboxes if self.method.shares == "once" else {}
        return LoopState(round=number + 1, names=names, model=model, server=server, inboxes=kept)

    def _participants(self, names: list[str], number: int) -> tuple[str, ...]:
        count = max(int(self.participation * len(names) + 1e-9), 1)  # 0.29 of 100 clients are 29, not 28
        order = SecretStream(self.key, "participants", number).permutation(len(names))
        return tuple(names[place] for place in sorted(order[:count].tolist()))

    def _done(
        self,
        step: Step,
        requests: Mapping[str, StepRequest],
        attendance: RoundParticipation,
        *,
        model: GlobalModel | None = None,
    ) -> tuple[Mapping[str, Upload], RoundParticipation]:
        """Run a step on clients, deliver the valid replies to the server, and leave out clients without one.

        Replies are processed in the order of the participants, in whatever order they came. The privacy cost of a
        refused reply is in the ledger like any other, because it was released."""
        replies, failed = self.engine.ask(step, requests)
        reasons = {**dict.fromkeys(requests.keys() - replies.keys(), "no reply came"), **failed}
        came = {name: replies[name] for name in attendance.present if name in requests and name not in reasons}
        if self.quorum < 1 or self.checked:
            reasons |= self._refusals(step, requests, came, attendance.clock)
        ordered = dict.fromkeys([*requests, *reasons])
        attendance = self._without(attendance, step, {name: reasons[name] for name in ordered if name in reasons})
        valid = {name: reply for name, reply in came.items() if name not in reasons}
        uploads = self._collected(attendance.clock, STAGES[step], valid, model=model)
        for name in [name for name in came if name not in valid]:  # after filters, which count who is in a sum
            self._enter(name, attendance.clock, STAGES[step], came[name])
        return uploads, attendance

    def _refusals(
        self, step: Step, requests: Mapping[str, StepRequest], replies: Mapping[str, Reply], clock: Clock
    ) -> dict[str, str]:
        """Give the reasons to refuse replies: invalid alone, refused by a guard, or unlike those of the others."""
        kept = frozenset[str]()
        model = next((request.model for request in requests.values()), None)
        if step == "fit" and model is not None:
            kept = self.method.kept_entries(model.blueprint.network(stream(0, "world", "blueprint"), drawn=False))
        refused: dict[str, str] = {}
        for name, reply in replies.items():
            try:
                said = objection(step, requests[name], reply, kept=kept)
                said = said or self._guarded(STAGES[step], name, reply, clock)
            except Exception as error:  # noqa: BLE001 (a reply that no check counted on is its client's failure too)
                said = message_line(f"it cannot be checked: {type(error).__name__}: {error}")
            if said is not None:
                refused[name] = said
        return {
            **refused,
            **differing_replies(requests, {name: one for name, one in replies.items() if name not in refused}),
        }

    def _guarded(self, stage: str, name: str, reply: Reply, clock: Clock) -> str | None:
        """Give a guard's reason to refuse a client's upload, where only this client is left out of the round for it.

        After a policy no upload belongs to a single client any more."""
        if self.quorum == 1 or self.wire.policies:
            return None
        try:
            for artifact in sent_artifacts(stage, reply).values():
                for guard in self.wire.guards:
                    guard(Message(round=clock.round, stage=stage, sender=name, receiver=SERVER, artifact=artifact))
        except ArtifactError as error:
            return str(error)
        return None

    def _without(self, attendance: RoundParticipation, step: Step, reasons: Mapping[str, str]) -> RoundParticipation:
        """Record failures, and continue without these clients. Raises ClientFailedError where too few are left."""
        if not reasons:
            return attendance
        number = attendance.clock.round
        fresh = [Failure(client=name, round=number, step=step, reason=said) for name, said in reasons.items()]
        self.failures.extend(fresh)
        if self.on_failure is not None:
            for failure in fresh:
                self.on_failure(failure)
        # Where sharing happens once, a method counts who shared; later failures do not change that number.
        check = None if self.method.shares == "once" and step != "share" else self.method.check
        return attendance.without(fresh, quorum=self.quorum, check=check)

    def _enter(self, name: str, clock: Clock, stage: str, reply: Reply) -> None:
        """Enter a client's releases and their cost in the ledger."""
        kinds = {slot: artifact.kind for slot, artifact in reply.artifacts.items()}
        if stage == "update":
            kinds[NUMBERS] = Scores.kind
        self.wire.ledger.write(name, round=clock.round, stage=stage, kinds=kinds, uses=reply.uses)

    def _collected(
        self, clock: Clock, stage: str, replies: Mapping[str, Reply], *, model: GlobalModel | None = None
    ) -> Mapping[str, Upload]:
        """Deliver all replies of a stage to the server, and give what it holds by sender.

        Policies and filters may have changed these uploads. Replies that hold models belong to `model`. The ledger has
        each client's releases and their cost, because policies come later. An update's weight (a client's size) and
        metrics are sent as numbers."""
        uploads = []
        for name, reply in replies.items():
            self._enter(name, clock, stage, reply)
            uploads.append(
                Upload(
                    round=clock.round, stage=stage, sender=name, artifacts=sent_artifacts(stage, reply),
                    weight=reply.weight, metrics=tuple(sorted(reply.metrics)),
                )
            )  # fmt: skip
        return {upload.sender: upload for upload in self.wire.collect(uploads, model=model, rounds=clock.rounds)}

    def _addressed(self, clock: Clock, inboxes: Mapping[str, Inbox]) -> Mapping[str, Inbox]:
        """Address answers to everybody where a policy removed the names of the senders.

        Raises UsageError where the answers differ: they could not be assigned."""
        if not self.wire.policies or set(inboxes) <= set(clock.participants):
            return inboxes
        one, *others = inboxes.values()
        if any(contents_of(inbox) != contents_of(one) for inbox in others):
            raise UsageError("senders without names cannot be answered one by one; leave the policy out.")
        return dict.fromkeys(clock.participants, one)

    def _deliver(self, clock: Clock, stage: str, inboxes: Mapping[str, Inbox]) -> Mapping[str, Inbox]:
        addressed = self._addressed(clock, inboxes)
        self.wire.send_all(
            [
                Message(round=clock.round, stage=stage, sender=SERVER, receiver=receiver, artifact=artifact)
                for receiver, inbox in addressed.items()
                for artifact in inbox.values()
            ]
        )
        return addressed

    def _models(self, clock: Clock, model: GlobalModel | None) -> Mapping[str, GlobalModel]:
        """Send the global model to each participant, for all its steps of this round."""
        if model is None:
            return {}
        sent = self._deliver(clock, "model", {name: {"model": model.state} for name in clock.participants})
        held: dict[int, GlobalModel] = {}  # what is the same for many receivers is one object, checked once
        for inbox in sent.values():
            state = inbox["model"]
            held.setdefault(id(state), model if state is model.state else model.with_state(state.tensors()))
        return {name: held[id(inbox["model"])] for name, inbox in sent.items()}

    def _exchange(
        self, attendance: RoundParticipation, received: Mapping[str, GlobalModel], server: State
    ) -> tuple[Mapping[str, Inbox], State, RoundParticipation]:
        clock = attendance.clock
        shared: Mapping[str, Inbox] = {name: {} for name in clock.participants}
        if self.method.asks_for_shares:
            requests = {
                name: StepRequest(clock=clock, model=received.get(name), inbox={}) for name in clock.participants
            }
            uploads, attendance = self._done("share", requests, attendance)
            shared = {name: upload.artifacts for name, upload in uploads.items()}
        rng = SecretStream(self.key, "combine", clock.round)
        combined, server = self.method.combine(shared, server=server, clock=attendance.clock, rng=rng)
        return self._deliver(attendance.clock, "combine", combined), server, attendance

    def _train(
        self,
        attendance: RoundParticipation,
        model: GlobalModel,
        received: Mapping[str, GlobalModel],
        inboxes: Mapping[str, Inbox],
        server: State,
    ) -> tuple[GlobalModel, State]:
        clock = attendance.clock
        requests = {
            name: StepRequest(clock=clock, model=received[name], inbox=inboxes.get(name, {}))
            for name in clock.participants
        }
        held = model  # the model that reviewers have; they get a newer one only as an exhibit
        aggregation = self._aggregation(model, server)
        if aggregation is not None:
            updates = self._added(aggregation, requests, attendance)
            model, server = aggregation.result()
        else:
            updates, attendance, scores = self._updates(requests, attendance, model, server)
            model, server = self.method.aggregate(updates, scores=scores, model=model, server=server)
        if self.method.reviews == "after":
            reviews, _, attendance = self._review(attendance, updates, model, server, held=held)
            server = self.method.weigh(reviews, server=server, clock=attendance.clock)
        if self.on_round is not None:
            metrics = {name: update.metrics for name, update in updates.items()}
            report = RoundReport(
                round=clock.round, rounds=self.rounds, metrics=metrics, server=server,
                clients=len(attendance.present) if CLIENTS in metrics else len(metrics),
            )  # fmt: skip
            self.on_round(report, model)
        return model, server

    def _aggregation(self, model: GlobalModel, server: State) -> Aggregation | None:
        """How updates are aggregated one by one, so that none is held; None where something needs all at once.

        Policies and filters process all of a round's uploads, comparing replies takes all of them, and a review before
        aggregation shows them to peers; the rest is up to the method."""
        together = self.quorum < 1 or self.checked or self.wire.policies or self.wire.filters
        if together or self.method.reviews == "before":
            return None
        return aggregation_of(self.method, model=model, server=server)

    def _added(
        self, aggregation: Aggregation, requests: Mapping[str, StepRequest], attendance: RoundParticipation
    ) -> Mapping[str, Update]:
        """Deliver each update, add it, and give what is left of them: weights and metrics."""
        known: dict[str, Update] = {}
        for name, answer in answers_of(self.engine, "fit", requests):
            if not isinstance(answer, Reply):
                self._without(attendance, "fit", {name: answer})  # raises: every client is needed
                continue
            uploads = self._collected(attendance.clock, STAGES["fit"], {name: answer})
            update = received_update(uploads[name], self.method)
            try:
                aggregation.add(update)
            except ArtifactError as error:
                self._without(attendance, "fit", {name: str(error)})
                continue
            known[name] = replace(update, artifacts={})
        missing = [name for name in requests if name not in known]
        self._without(attendance, "fit", dict.fromkeys(missing, "no reply came"))
        return known

    def _updates(
        self,
        requests: Mapping[str, StepRequest],
        attendance: RoundParticipation,
        model: GlobalModel,
        server: State,
    ) -> tuple[Mapping[str, Update], RoundParticipation, Mapping[str, Scores]]:
        """Deliver all updates, with the scores of a review where the method has one before aggregation."""
        uploads, attendance = self._done("fit", requests, attendance, model=model)
        updates: Mapping[str, Update] = {name: received_update(upload, self.method) for name, upload in uploads.items()}
        scores: Mapping[str, Scores] = {}
        if self.method.reviews == "before":
            updates, scores = self._judged(attendance, updates, model, server)
        return updates, attendance, scores

    def _judged(
        self, attendance: RoundParticipation, updates: Mapping[str, Update], model: GlobalModel, server: State
    ) -> tuple[Mapping[str, Update], Mapping[str, Scores]]:
        """Have clients review each other's models; one that fails is left out, with its own update and its scores.

        Reviewers answer one score for each exhibit, in the order of the slots' names. Raises ClientFailedError where
        the exhibits would have been different without the failed clients: the scores then do not apply."""
        number = attendance.clock.round
        scores, shown, after = self._review(attendance, updates, model, server, held=model)
        if after.present == attendance.present:
            return updates, scores
        kept = {name: update for name, update in updates.items() if name in after.present}
        rng = SecretStream(self.key, "exhibits", number)
        again = self.method.exhibits(kept, model=model, server=server, rng=rng)
        try:
            return kept, select_scores(scores, shown=shown, again=again)
        except ValueError as error:
            told = "; ".join(map(str, after.failures))
            raise ClientFailedError(f"round {number} cannot be aggregated, for {error}; {told}") from error

    def _review(
        self,
        among: RoundParticipation,
        updates: Mapping[str, Update],
        model: GlobalModel,
        server: State,
        *,
        held: GlobalModel,
    ) -> tuple[Mapping[str, Scores], Mapping[str, Inbox], RoundParticipation]:
        rng = SecretStream(self.key, "exhibits", among.clock.round)
        exhibits = self.method.exhibits(updates, model=model, server=server, rng=rng)
        shown = self._deliver(among.clock, "exhibit", exhibits)
        requests = {name: StepRequest(clock=among.clock, model=held, inbox=inbox) for name, inbox in shown.items()}
        uploads, among = self._done("review", requests, among)
        scores: dict[str, Scores] = {}
        for name, upload in uploads.items():
            received = upload.artifacts[SCORES]
            if not isinstance(received, Scores):
                raise ClientFailedError(f"{name} answered a review with {received.kind}; Scores were expected.")
            scores[name] = received
        return scores, shown, among
