"""The interface of a federated method: its steps, and the requests and replies between server and clients.

One round is: share -> combine -> broadcast -> fit -> (review) -> aggregate; fdgsec.federation.round_loop runs it. Each
step is a pure function of its arguments. A client's memory is its `state`, a dict of tensors that the engine stores;
the server's memory is `server`, likewise a dict of tensors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.release_declarations import TRAINED_MODEL, Release
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_loop import CrossEntropy, Objective, Trainer, epochs
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

SHARED_ROWS = "shared_rows"
"""Client-state entry: the indices of the images that it released, (J,) int64 in row order; ground truth for scoring."""
CLUSTER_SIZES = "cluster_sizes"
"""Client-state entry: for each image the size of its cluster, (n,) int64, where a release averages clusters; ground
truth for scoring."""

NUMBERS = "numbers"
"""Slot of an update for its weight and metrics, which reveal information to the server too."""

State = Mapping[str, Tensor]
Inbox = Mapping[str, Artifact]


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    """One participant: its name ("client:0"), training images, and validation images split off before augmentation.

    `trainer` is the training loop that methods use for it; a defense may replace it."""

    name: str
    data: DomainDataset
    validation: DomainDataset | None = None
    trainer: Trainer = epochs

    @property
    def number(self) -> int:
        """The 3 of "client:3"."""
        return int(self.name.partition(":")[2])

    def training_by(self, trainer: Trainer) -> "Client":
        """The same client with another training loop."""
        return replace(self, trainer=trainer)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The current round (from 0), the number of rounds, and the participants."""

    round: int
    rounds: int
    participants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """What a client sends after training: artifacts by name (among them "model"), its weight, and local metrics."""

    artifacts: Mapping[str, Artifact]
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerNeeds:
    """What a method's server must see of the clients' uploads, and (`because`) the reason.

    "sum": weighted means over clients suffice. "unnamed": it needs individual uploads but not their senders, and it
    sends the same answer to every client. "named": it needs to know who sent what. `metrics` names the metrics of
    updates that it reads in addition to their weights."""

    uploads: Literal["sum", "unnamed", "named"]
    because: str
    metrics: frozenset[str] = frozenset()


NAMED = ServerNeeds(uploads="named", because="nothing says that its server can do with less")
"""The assumption for a method that declares nothing."""


class Aggregation(Protocol):
    """Aggregates the updates of a round one by one, in the order of the participants, so that none is kept."""

    def add(self, update: Update) -> None:
        """Take the next update in. Raises ArtifactError where it does not fit the others: its client failed."""
        ...

    def result(self) -> tuple[GlobalModel, State]:
        """Give the next global model, and the server's state."""
        ...


class Method(ABC):
    """A federated method, its steps in the order they run; each step is pure, and options are frozen fields.

    A subclass is a frozen dataclass. It must define how clients train (`fit`) and how the server computes the next
    model (`aggregate`); everything else has a default. Most methods extend `fdgsec.methods.fedavg.FedAvg`, which has
    both."""

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """When clients share artifacts besides the model: never, once before round 0, or every round."""
        return "never"

    @property
    def asks_for_shares(self) -> bool:
        """Whether clients upload something in the share step; if not, only the server sends, and no client is asked."""
        return True

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """Whether clients evaluate models before aggregation (FedDAG), after it (FedDG-GA), or not at all."""
        return "none"

    @property
    def releases(self) -> Sequence[Release]:
        """The messages of a run with these options, besides those of the round loop; checked by conformance tests."""
        return (TRAINED_MODEL,)

    @property
    def needs_training(self) -> bool:
        """Whether clients send nothing of their own before they train."""
        return not any(release.stage == "share" for release in self.releases)

    @property
    def released_kinds(self) -> frozenset[str]:
        """The artifact kinds that attacks target: those exchanged before training, or all kinds if there are none.

        Of Scores only reviews count; those of other stages are weights and metrics."""
        targets = [one for one in self.releases if self.needs_training or one.stage in ("share", "combine")]
        return frozenset(one.kind.kind for one in targets if one.kind is not Scores or one.stage == "review")

    @property
    def shares_means(self) -> bool:
        """Whether clients share means over their images, or per-image rows of the same statistic."""
        return self.needs_training or self.shared_mean is not None

    @property
    def shared_mean(self) -> Release | None:
        """The first shared release whose statistic is known, or None."""
        return next((one for one in self.releases if one.stage == "share" and one.statistic is not None), None)

    @property
    def weighted_statistic(self) -> ReleasedStatistic | None:
        """The statistic of which clients share a mean with unknown weights, where any do."""
        found = (one.weighted for one in self.releases if one.stage == "share")
        return next((statistic for statistic in found if statistic is not None), None)

    @property
    def server_needs(self) -> ServerNeeds:
        """What the server must see; a class that overrides a server step must also override this (`needs_of`)."""
        return NAMED

    @property
    def counts_alike(self) -> bool:
        """Whether all clients have the same weight in the mean of models, whatever weight they claim."""
        return False

    @property
    def client_plan(self) -> TrainingPlan | None:
        """The training plan of clients, or None if there is no single plan."""
        return None

    @property
    def keeps_moments(self) -> bool:
        """Whether a client's optimizer keeps its moments across rounds."""
        return False

    @property
    def trains_through_trainer(self) -> bool:
        """Whether clients' models depend on images only through `Client.trainer`; not inherited by subclasses."""
        return False

    @property
    def trains_on_own_releases(self) -> bool:
        """Whether what a client trains on depends on its own releases, be it that they choose what it receives; its
        model then leaks at least as much as they do."""
        return False

    def check(self, clients: int) -> None:
        """Raise UsageError for options that are impossible with `clients` clients."""
        if clients < 1:
            raise UsageError("a federation needs at least one client; got none.")

    def fitting(self, clients: int) -> Self:
        """The same method with client counts in its options lowered so that `check(clients)` passes."""
        return self

    def releasing_all(self) -> Self | None:
        """The variant in which a client releases a row for each image, or None if the method has no per-image rows."""
        return None

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Return the network that this method trains in place of `network`; added parts are initialized from `rng`."""
        return network

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """The names of the model entries that never leave a client."""
        return frozenset()

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Make what the client sends before training; `model` is the received one, None if `shares` is "once"."""
        return {}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Compute what each client receives from what the clients shared."""
        return {}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The local training objective of a client."""
        return CrossEntropy()

    @abstractmethod
    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train locally."""

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: SecretStream
    ) -> Mapping[str, Inbox]:
        """Select what each reviewer evaluates: peers' models (reviews "before") or the new global model ("after")."""
        return {}

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """Evaluate the received models on the client's own data."""
        raise NotImplementedError(f"{type(self).__name__} asks for reviews and has none; override review.")

    @abstractmethod
    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Compute the next global model."""

    def aggregation(self, *, model: GlobalModel, server: State) -> Aggregation | None:
        """Aggregate updates as they come instead, to the same result; None if `aggregate` needs all of them at once.

        A class that overrides `aggregate` or `exhibits` and does not declare this anew counts as needing them
        (fdgsec.federation.server_needs)."""
        return None

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Update the server state with the scores of a review after aggregation."""
        return server


Step = Literal["share", "fit", "review"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRequest:
    """The server's request to one client in one step."""

    clock: Clock
    model: GlobalModel | None
    inbox: Inbox


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """One client's answer: artifacts by name; for `fit` its weight and metrics, for `share` its size as the weight.

    `uses` holds the privacy cost of each defended slot for the client's records (fdgsec.privacy.ledger)."""

    artifacts: Inbox
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...] | None] = field(default_factory=dict)

    def numbers(self) -> Scores:
        """Pack the weight, then the metrics in the order of their names, into one artifact."""
        values = [self.weight, *(self.metrics[name] for name in sorted(self.metrics))]
        return Scores(values=torch.tensor(values, dtype=torch.float64))

    def read_numbers(self, numbers: Artifact) -> tuple[float, dict[str, float]]:
        """Unpack weight and metrics from `numbers()` after the defenses, which may have dropped all metrics."""
        weight, *values = numbers.tensors()["values"].tolist()
        return weight, dict(zip(sorted(self.metrics), values, strict=True)) if values else {}


class Engine(Protocol):
    """Runs steps on clients, in this process or elsewhere."""

    def clients(self) -> Sequence[str]:
        """The names of the reachable clients."""
        ...

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Run `step` on each named client; return the replies and, for clients that failed, the reason."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class InboxesOfLists:
    """What clients with lists of N images each would share, and by which `weights` (L, N) their images count in it.

    These are of sum 1; None where a release is no mean with weights, or the weights are not known."""

    inboxes: Sequence[Inbox]
    weights: Tensor | None = None


InboxesOf = Callable[[Tensor], InboxesOfLists]
"""What clients with these lists of images, (L, N) positions, would share."""


@runtime_checkable
class SharesLists(Protocol):
    """A method that can say at once what many clients would share who hold parts of the same images, equally many each:
    the same as its own step for each of them, up to rounding."""

    def sharing(self, data: DomainDataset) -> InboxesOf | None:
        """The step of clients with parts of `data`; None where it is not computed at once."""
        ...


@runtime_checkable
class AnswersInTurn(Protocol):
    """An engine that can hand over each reply before the next client begins, so that they need not be held."""

    def answers(self, step: Step, requests: Mapping[str, StepRequest]) -> Iterator[tuple[str, Reply | str]]:
        """Run `step` on each named client, in the order of `clients`; yield its reply, or why it failed."""
        ...
