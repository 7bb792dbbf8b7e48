"""What a federated method is: its steps, who takes them, and what they are asked and answer.

One round is: share -> combine -> broadcast -> fit -> (review) -> aggregate; fdgsec.federation.round_loop walks it. Steps are pure
functions of a method; what a client must remember is its `state`, a dict of tensors that the engine stores; what the
server must remember is `server`, the same."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.releases import TRAINED_MODEL, Release
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.loop import CrossEntropy, Objective, Trainer, epochs
from fdgsec.nn.training.plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

SHARED_ROWS = "shared_rows"
"""The entry of a client's state that says which of its images it released, (J,) int64 in row order: the judge's truth."""
CLUSTER_SIZES = "cluster_sizes"
"""The entry of a client's state that says how many images are in the cluster of each of its own, (n,) int64, where a
release averages clusters: the judge's truth."""

NUMBERS = "numbers"
"""The slot of an update that holds its weight and metrics: they tell the server something too."""

State = Mapping[str, Tensor]
Inbox = Mapping[str, Artifact]


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    """One participant: its name ("client:0"), training images, and validation images split off before augmentation.

    `trainer` is the loop that methods train it by; a defense may put another in its place."""

    name: str
    data: DomainDataset
    validation: DomainDataset | None = None
    trainer: Trainer = epochs

    @property
    def number(self) -> int:
        """The 3 of "client:3"."""
        return int(self.name.partition(":")[2])

    def training_by(self, trainer: Trainer) -> "Client":
        """The same client under another training loop."""
        return replace(self, trainer=trainer)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Which round of how many, and who takes part."""

    round: int
    rounds: int
    participants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How to build the network that a state fits into, and on which device; states themselves stay on the CPU.

    `remodel` is the method's change to the plain classifier (StableFDG's attention, FedSR's random features)."""

    backbone: str
    classes: int
    norm: Literal["batch", "group"] = "batch"
    device: str = "cpu"
    remodel: Callable[[Classifier, torch.Generator], Classifier] | None = None

    def network(self, rng: torch.Generator, *, drawn: bool = True) -> Classifier:
        """Build the network on the CPU, its parameters drawn from `rng`.

        `drawn=False` leaves the plain classifier's parameters undefined, for who loads a whole state next."""
        plain = build_classifier(self.backbone, self.classes, norm=self.norm, rng=rng if drawn else None)
        return plain if self.remodel is None else self.remodel(plain, rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalModel:
    """The model that the federation trains: a blueprint and a state."""

    blueprint: Blueprint
    state: ModelState

    def module(self) -> Classifier:
        """Build the network and load the state."""
        network = self.blueprint.network(stream(0, "world", "blueprint"), drawn=False)
        network.load_state_dict(dict(self.state.state))
        return network.to(self.blueprint.device)

    def with_state(self, state: Mapping[str, Tensor]) -> "GlobalModel":
        """The same blueprint with another state."""
        return GlobalModel(blueprint=self.blueprint, state=ModelState(state=dict(state)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """What a client sends after training: artifacts by name (among them "model"), its weight, and local metrics."""

    artifacts: Mapping[str, Artifact]
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerNeeds:
    """How closely a method's server has to look at what clients upload, and (after "because") why no less will do.

    "sum": means over clients are enough, weighted by what each upload counts. "unnamed": single uploads, but not whose they
    are, and everybody is answered alike. "named": who sent what. `metrics` names the numbers of updates that it reads beside
    their weight."""

    uploads: Literal["sum", "unnamed", "named"]
    because: str
    metrics: frozenset[str] = frozenset()


NAMED = ServerNeeds(uploads="named", because="nothing says that its server can do with less")
"""What a server is taken to need where nothing is said."""


class Method(ABC):
    """A federated method in running order; each step is pure, options are frozen fields, nothing is kept on self.

    A subclass is a frozen dataclass. It must say how clients train (`fit`) and how the server makes the next model
    (`aggregate`); everything else has a default. Most methods extend `fdgsec.methods.fedavg.FedAvg`, which has both."""

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """When clients share artifacts beside the model: never, once before round 0, or every round."""
        return "never"

    @property
    def asks_for_shares(self) -> bool:
        """Whether clients send something up where they share; otherwise something comes down alone, and nobody is asked."""
        return True

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """Whether clients judge models before aggregation (FedDAG), after it (FedDG-GA), or not at all."""
        return "none"

    @property
    def releases(self) -> Sequence[Release]:
        """What the run sends beside the round loop's own messages, with these options; conformance tests compare."""
        return (TRAINED_MODEL,)

    @property
    def needs_training(self) -> bool:
        """Whether nothing of a client's own leaves it before it trains."""
        return not any(release.stage == "share" for release in self.releases)

    @property
    def released_kinds(self) -> frozenset[str]:
        """The kinds of artifact by which the method is attacked: those of the exchange before training, else all.

        Scores are reviews; those of other stages are weights and metrics, and no target."""
        told = [one for one in self.releases if self.needs_training or one.stage in ("share", "combine")]
        return frozenset(one.kind.kind for one in told if one.kind is not Scores or one.stage == "review")

    @property
    def shares_means(self) -> bool:
        """Whether what clients share holds means over their images, or rows of the same statistic."""
        return self.needs_training or self.shared_mean is not None

    @property
    def shared_mean(self) -> Release | None:
        """What clients share of which the statistic is known, None where there is no such thing."""
        return next((one for one in self.releases if one.stage == "share" and one.statistic is not None), None)

    @property
    def server_needs(self) -> ServerNeeds:
        """What the server cannot do without; a class that changes a step of the server must say it anew (`needs_of`)."""
        return NAMED

    @property
    def counts_alike(self) -> bool:
        """Whether all clients count alike in the mean of models, whatever weight they claim."""
        return False

    @property
    def client_plan(self) -> TrainingPlan | None:
        """How clients train, None where no single plan says it."""
        return None

    @property
    def keeps_moments(self) -> bool:
        """Whether a client's optimizer goes on from its moments of earlier rounds."""
        return False

    @property
    def trains_through_trainer(self) -> bool:
        """Whether clients' models depend on images through `Client.trainer` alone; every class says so for itself."""
        return False

    @property
    def trains_on_own_releases(self) -> bool:
        """Whether what a client shared comes back into its own training: then its model is no safer than that release."""
        return False

    def check(self, clients: int) -> None:
        """Raise UsageError for options that `clients` clients cannot meet."""
        if clients < 1:
            raise UsageError("a federation needs at least one client; got none.")

    def fitting(self, clients: int) -> Self:
        """The same method, with options that count clients lowered until `clients` of them can meet `check`."""
        return self

    def releasing_all(self) -> Self | None:
        """The variant in which a client releases a row for each of its images, or None where rows are not per image."""
        return None

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Give the network that this method trains in place of the plain `network`; parts it adds are drawn from `rng`."""
        return network

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """The names of the model's entries that never leave a client."""
        return frozenset()

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Make what the client sends beside the model; `model` is what it received, None where `shares` is "once"."""
        return {}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Mapping[str, Inbox], State]:
        """Turn what clients shared into what each receiver gets."""
        return {}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """What a client minimizes."""
        return CrossEntropy()

    @abstractmethod
    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train locally."""

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: torch.Generator
    ) -> Mapping[str, Inbox]:
        """Choose what each reviewer receives: peers' models (review before) or the new global model (after)."""
        return {}

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """Judge what was received on the client's own data."""
        raise NotImplementedError(f"{type(self).__name__} asks for reviews and has none; override review.")

    @abstractmethod
    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Make the next global model."""

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Learn from a review that came after aggregation."""
        return server


Step = Literal["share", "fit", "review"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRequest:
    """What the server asks of one client in one step."""

    clock: Clock
    model: GlobalModel | None
    inbox: Inbox


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """What one client answers: artifacts by name, for `fit` its weight and metrics, for `share` its size as the weight.

    `uses` says what each slot cost the client's records where it is defended (fdgsec.privacy.ledger)."""

    artifacts: Inbox
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...] | None] = field(default_factory=dict)

    def numbers(self) -> Scores:
        """Its weight, then its metrics in the order of their names, as one artifact."""
        told = [self.weight, *(self.metrics[name] for name in sorted(self.metrics))]
        return Scores(values=torch.tensor(told, dtype=torch.float64))

    def told(self, numbers: Artifact) -> tuple[float, dict[str, float]]:
        """Read weight and metrics back from what became of `numbers()` on its way: a defense may keep all metrics."""
        weight, *values = numbers.tensors()["values"].tolist()
        return weight, dict(zip(sorted(self.metrics), values, strict=True)) if values else {}


class Engine(Protocol):
    """Runs steps on clients, wherever they are."""

    def clients(self) -> Sequence[str]:
        """The names of the reachable clients."""
        ...

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Have each named client do `step`; give replies and, for those that failed, the reason."""
        ...
