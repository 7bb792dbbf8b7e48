"""A local method on top of a federated base: `--method ccst --with mixstyle` (CCST section 4.3, "Orthogonality").

The base method shares, trains, reviews and aggregates as usual. The local method gives the training objective and the
change of network that it needs. Where it shares artifacts of its own (FedDG's spectra), they are sent together with
those of the base, in slots that start with "local.", and so do its entries in the memory of clients and server."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Literal, Self, TypeVar, cast

import torch

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Aggregation, Client, Clock, Inbox, Method, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.server_needs import aggregation_of
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import SecretStream

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
PREFIX = "local."
BELOW = (
    "training_set", "kept_entries", "start", "fit", "results", "exhibits", "review", "aggregate", "aggregation",
    "weigh",
)  # fmt: skip
"""Steps of the base method only: a method that changes one of them cannot be a local method."""


@dataclass(frozen=True, kw_only=True)
class _OnTop:
    """The `local` option of the base method: the local method with its own artifacts and memory.

    `asked` lists the clients whose objective was requested, to detect a base that trains without it."""

    method: Method
    inbox: Inbox
    state: State
    asked: list[str] = field(default_factory=list)

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Change the network as the local method does."""
        return self.method.remodel(network, rng)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Make the objective of the local method."""
        del inbox, state  # those of the base method; the local method has its own
        self.asked.append(client.name)
        return self.method.objective(client, model=model, inbox=self.inbox, state=self.state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class Stacked(Method):
    """The method `base` with the objective of `local`; the training options are those of `base`.

    Raises UsageError for a pair that cannot be combined: a base that trains an objective of its own, a local method
    without one or with steps of the base method, and exchanges at different times."""

    base: Method
    local: Method

    def __post_init__(self) -> None:
        below, above = type(self.base).__name__, type(self.local).__name__
        has_place = is_dataclass(self.base) and getattr(self.base, "local", self) is None
        own_objective = _changed(self.base, "objective") and not getattr(self.base, "keeps_local", False)
        if not has_place or own_objective:
            raise UsageError(
                f"{above} cannot go on top of {below}, which trains an objective of its own; methods like fedavg, ccst "
                f"and fedbn leave it open."
            )
        steps = ", ".join(step for step in BELOW if _changed(self.local, step))
        if steps or not _changed(self.local, "objective"):
            why = f"changes {steps}" if steps else "has no objective of its own"
            raise UsageError(
                f"{above} is no local method, for it {why}; --with takes methods that change only what a client "
                f"minimizes, such as mixstyle."
            )
        if {self.base.shares, self.local.shares} == {"once", "every"}:
            raise UsageError(
                f"{below} exchanges {self.base.shares} and {above} {self.local.shares}, so that one cannot go on top "
                f"of the other."
            )
        for name in _unused(self.local):
            raise UsageError(f"{above} goes on top of {below}, which trains: set method.{name}, not with.{name}.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Share as often as the method that shares more often."""
        return self.local.shares if self.base.shares == "never" else self.base.shares

    @property
    def asks_for_shares(self) -> bool:
        """Tell whether either method that shares asks for shares."""
        return any(each.asks_for_shares for each in (self.base, self.local) if each.shares != "never")

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """Review as the base method."""
        return self.base.reviews

    @property
    def releases(self) -> Sequence[Release]:
        """What both release; the one on top, which only lends its objective, nothing that is trained."""
        own = [one for one in self.local.releases if one.stage in ("share", "combine")]
        return (*self.base.releases, *(replace(one, slot=PREFIX + one.slot) for one in own))

    @property
    def released_kinds(self) -> frozenset[str]:
        """Those of the method below, which is the target."""
        return self.base.released_kinds

    @property
    def needs_training(self) -> bool:
        """As the method below."""
        return self.base.needs_training

    @property
    def counts_alike(self) -> bool:
        """As the base method."""
        return self.base.counts_alike

    @property
    def client_plan(self) -> TrainingPlan | None:
        """As the base method."""
        return self.base.client_plan

    @property
    def keeps_moments(self) -> bool:
        """As the base method."""
        return self.base.keeps_moments

    def check(self, clients: int) -> None:
        """Raise UsageError for options that `clients` clients cannot meet, and for a base without local methods."""
        self._based_on(_OnTop(method=self.local, inbox={}, state={})).check(clients)
        self.local.check(clients)

    def fitting(self, clients: int) -> Self:
        """Fit both methods to the number of clients."""
        return replace(self, base=self.base.fitting(clients), local=self.local.fitting(clients))

    def releasing_all(self) -> Self | None:
        """Give the variant in which both release all, as far as they can; None where neither can."""
        base, local = self.base.releasing_all(), self.local.releasing_all()
        if base is None and local is None:
            return None
        return replace(self, base=base or self.base, local=local or self.local)

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Make the network of the base method, then apply the change of the local method."""
        return self.local.remodel(self.base.remodel(network, rng), rng)

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """As the base method."""
        return self.base.kept_entries(network)

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Share the artifacts of both."""
        sent: Inbox = {}
        extra: Inbox = {}
        memory, kept = _below(state), _above(state)
        if self.base.shares != "never":
            sent, memory = self.base.share(client, model=model, state=memory, clock=clock, rng=rng)
        if self.local.shares != "never":
            extra, kept = self.local.share(client, model=model, state=kept, clock=clock, rng=child(rng, "local"))
        return _joined(sent, extra), _joined(memory, kept)

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Combine the artifacts of each method, by receiver."""
        handed: Mapping[str, Inbox] = {}
        extra: Mapping[str, Inbox] = {}
        memory, kept = _below(server), _above(server)
        if self.base.shares != "never":
            part = {name: _below(inbox) for name, inbox in shared.items()}
            handed, memory = self.base.combine(part, server=memory, clock=clock, rng=rng)
        if self.local.shares != "never":
            part = {name: _above(inbox) for name, inbox in shared.items()}
            extra, kept = self.local.combine(part, server=kept, clock=clock, rng=rng.child("local"))
        receivers = dict.fromkeys([*handed, *extra])
        return {name: _joined(handed.get(name, {}), extra.get(name, {})) for name in receivers}, _joined(memory, kept)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Make the objective of the local method, with what the base method adds to it."""
        base = self._based_on(_OnTop(method=self.local, inbox=_above(inbox), state=_above(state)))
        return base.objective(client, model=model, inbox=_below(inbox), state=_below(state), clock=clock, rng=rng)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Run the local training of the base method on the objective of the local method.

        Raises UsageError where the base method trained without requesting it."""
        memory, kept = _below(state), _above(state)
        on_top = _OnTop(method=self.local, inbox=_above(inbox), state=kept)
        base = self._based_on(on_top)
        update, after = base.fit(client, model=model, inbox=_below(inbox), state=memory, clock=clock, rng=rng)
        if not on_top.asked:
            raise UsageError(
                f"{type(self.base).__name__} trained without the objective of {type(self.local).__name__} on top of "
                f"it; leave --with out."
            )
        return update, state if after is memory else _joined(after, kept)  # the same object: nothing to store again

    def _based_on(self, on_top: _OnTop) -> Method:
        return cast(Method, replace(cast("DataclassInstance", self.base), local=on_top))

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: SecretStream
    ) -> Mapping[str, Inbox]:
        """Exhibit as the base method."""
        return self.base.exhibits(updates, model=model, server=_below(server), rng=rng)

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """Review as the base method."""
        return self.base.review(client, model=model, inbox=inbox, state=_below(state), rng=rng)

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Aggregate as the base method."""
        made, memory = self.base.aggregate(updates, scores=scores, model=model, server=_below(server))
        return made, _joined(memory, _above(server))

    def aggregation(self, *, model: GlobalModel, server: State) -> Aggregation | None:
        """Aggregate as the base method."""
        below = aggregation_of(self.base, model=model, server=_below(server))
        return None if below is None else _JoinedAggregation(below=below, above=_above(server))

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Weigh as the base method."""
        return _joined(self.base.weigh(scores, server=_below(server), clock=clock), _above(server))


@dataclass(frozen=True, kw_only=True, eq=False)
class _JoinedAggregation:
    """The aggregation of the base method, with the server's memory of the local method put back beside its own."""

    below: Aggregation
    above: State

    def add(self, update: Update) -> None:
        """Add one update."""
        self.below.add(update)

    def result(self) -> tuple[GlobalModel, State]:
        """The base method's model, and both memories."""
        made, memory = self.below.result()
        return made, _joined(memory, self.above)


def _below(entries: Mapping[str, T]) -> Mapping[str, T]:
    """Select the slots, or entries of memory, of the base method."""
    return {name: value for name, value in entries.items() if not name.startswith(PREFIX)}


def _above(entries: Mapping[str, T]) -> Mapping[str, T]:
    """Select those of the local method, under its own names."""
    return {name.removeprefix(PREFIX): value for name, value in entries.items() if name.startswith(PREFIX)}


def _joined(below: Mapping[str, T], above: Mapping[str, T]) -> Mapping[str, T]:
    return {**below, **{PREFIX + name: value for name, value in above.items()}}


def _changed(method: Method, step: str) -> bool:
    """Tell whether the method's class overrides `step` of the class that all methods with local training extend."""
    return getattr(type(method), step, None) is not getattr(_root(method), step, None)


def _unused(local: Method) -> list[str]:
    """Name the options of `local` that were set although the class all methods extend has them: those of training."""
    root = _root(local)
    common: dict[str, Field[object]] = {spec.name: spec for spec in fields(root)} if is_dataclass(root) else {}
    return [name for name, spec in common.items() if getattr(local, name) != _default(spec)]


def _root(method: Method) -> type[Method]:
    """The class next to `Method` that a method extends: FedAvg of all bundled ones."""
    return [cls for cls in type(method).__mro__ if issubclass(cls, Method)][-2]


def _default(spec: "Field[object]") -> object:
    return spec.default if spec.default_factory is MISSING else spec.default_factory()
