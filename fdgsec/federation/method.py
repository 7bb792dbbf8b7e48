"""What a federated method is: its steps, who takes them, and what they are asked and answer.

One round is: share -> combine -> broadcast -> fit -> (review) -> aggregate; fdgsec.federation.round_loop walks it. Steps are pure
functions of a method; what a client must remember is its `state`, a dict of tensors that the engine stores; what the
server must remember is `server`, the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.loop import Trainer, epochs
from fdgsec.nn.training.plan import TrainingPlan
from fdgsec.privacy.accounting import Use
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


@runtime_checkable
class SharesDistributions(Protocol):
    """What is public of a method whose clients send the distribution of their styles under the current model.

    Styles are those of the maps at the end of `stage`, with sigma by `unbiased` and `eps`; `spread` is what is sent of
    their scatter: variances, or (as released) sqrt(variance + eps) over n - 1."""

    @property
    def stage(self) -> str:
        """Where the styles are taken."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether sigma divides by HW - 1."""
        ...

    @property
    def eps(self) -> float:
        """What stands inside the root."""
        ...

    @property
    def spread(self) -> Literal["variance", "std"]:
        """How the scatter is sent."""
        ...


@runtime_checkable
class TrainsByPlan(Protocol):
    """What is public of a method whose clients train by one plan; moments may outlive the rounds."""

    @property
    def plan(self) -> TrainingPlan:
        """How a client trains."""
        ...

    @property
    def keep_optimizer(self) -> bool:
        """Whether a client's optimizer goes on from its moments of earlier rounds."""
        ...


@runtime_checkable
class TrainsThroughTrainer(Protocol):
    """What is public of a method whose clients' models may depend on images through `Client.trainer` alone."""

    @property
    def trains_through_trainer(self) -> bool:
        """Whether they do: every class says so for itself, and none inherits it."""
        ...

    @property
    def trains_on_own_releases(self) -> bool:
        """Whether what a client shared comes back into its own training: then its model is no safer than that release."""
        ...


class Method(Protocol):
    """A federated method in running order; each step is pure, options are frozen fields, nothing is kept on self."""

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """When clients share artifacts beside the model: never, once before round 0, or every round."""
        ...

    @property
    def asks_for_shares(self) -> bool:
        """Whether clients send something up where they share; otherwise something comes down alone, and nobody is asked."""
        ...

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """Whether clients judge models before aggregation (FedDAG), after it (FedDG-GA), or not at all."""
        ...

    def check(self, clients: int) -> None:
        """Raise UsageError for options that `clients` clients cannot meet."""
        ...

    def fitting(self, clients: int) -> Self:
        """The same method, with options that count clients lowered until `clients` of them can meet `check`."""
        ...

    def releasing_all(self) -> Self | None:
        """The variant in which a client releases a row for each of its images, or None where rows are not per image."""
        ...

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Give the network that this method trains in place of the plain `network`; parts it adds are drawn from `rng`."""
        ...

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Make what the client sends beside the model; `model` is what it received, None where `shares` is "once"."""
        ...

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Mapping[str, Inbox], State]:
        """Turn what clients shared into what each receiver gets."""
        ...

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train locally."""
        ...

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: torch.Generator
    ) -> Mapping[str, Inbox]:
        """Choose what each reviewer receives: peers' models (review before) or the new global model (after)."""
        ...

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """Judge what was received on the client's own data."""
        ...

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Make the next global model."""
        ...

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Learn from a review that came after aggregation."""
        ...


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
