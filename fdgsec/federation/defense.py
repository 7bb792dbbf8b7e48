"""The interfaces of a defense: what every one has, what some add, and what one is told.

fdgsec.federation.defense_stack applies them, in order, to what a client sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method, State
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.wire import Message, Policy
from fdgsec.nn.training.training_loop import Trainer, epochs
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.guarantees import PlannedGuarantee, RecordMixing
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

Uses = tuple[Use, ...] | None
"""The privacy cost of a release to its records: () for no additional cost, where it is public or made of what was paid
for; None for no guarantee at all."""


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

    `trained` is the cost of this step's private trainer so far; None without one. A `sealed` sender has no data; where
    it `hides_count`, not even their number."""

    client: Client
    method: Method
    clock: Clock
    model: GlobalModel | None
    state: State
    statistic_source: StatisticSource | None
    trained: Uses = None
    sealed: bool = False
    hides_count: bool = False

    @property
    def name(self) -> str:
        """Name as "client:3"."""
        return self.client.name

    @cached_property
    def without_data(self) -> "Sender":
        """The sender as post-processing sees it: as many images, all black, and of its state the origin of rows.

        Its `records` are refused: a defense that reads them would discard what was done to the artifact before."""
        validation = None if self.client.validation is None else blank(self.client.validation)
        client = replace(self.client, data=blank(self.client.data), validation=validation, trainer=epochs)
        state = {name: value for name, value in self.state.items() if name.endswith(SHARED_ROWS)}
        return replace(self, client=client, state=state, sealed=True)

    @cached_property
    def without_count(self) -> "Sender":
        """The sender as post-processing sees it where a guarantee hides how many images it has: with none, and of its
        rows only how many there are."""
        sealed, nothing = self.without_data, torch.zeros(0, dtype=torch.int64)
        validation = None if sealed.client.validation is None else sealed.client.validation.subset(nothing)
        client = replace(sealed.client, data=sealed.client.data.subset(nothing), validation=validation)
        rows = {name: torch.arange(len(value)) for name, value in sealed.state.items()}  # places reach up to the number
        return replace(sealed, client=client, state=rows, trained=None, hides_count=True)

    @cached_property
    def record_statistic(self) -> RecordStatistic:
        """Give the statistic of this step's releases. Raises UsageError where this run has none."""
        if self.sealed:
            raise UsageError(
                "a defense computes its release anew from the client's records, and would discard what another one did "
                "before it; put it first, and let it name its stages in mechanism_on."
            )
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

    `metrics` are the names of an update's metrics, where the artifact is its weight and metrics."""

    round: int
    stage: str
    name: str
    artifact: Artifact
    sender: Sender
    metrics: frozenset[str] = frozenset()


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

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Give the replacement of `outgoing.artifact`; None where the defense does not apply to it."""
        ...


@runtime_checkable
class Mechanism(Protocol):
    """A defense that is a mechanism on records: what it releases, and pays for, is a function of the client's data.

    Every other defense is post-processing: it is handed the artifact and a sender without data, and costs nothing."""

    @property
    def mechanism_on(self) -> frozenset[str]:
        """Name the stages ("share", "update", "review") or slots ("update/numbers") in which it is a mechanism."""
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

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        """Make the replacement of fdgsec.nn.training.training_loop.epochs, its noise drawn from `rng`."""
        ...


@runtime_checkable
class HasPolicy(Protocol):
    """A defense that processes the uploads of all clients together."""

    def policy(self) -> Policy:
        """Give its policy."""
        ...


@runtime_checkable
class KeepsSharesApart(Protocol):
    """A filter that says whether what a client shares stays a function of that client's data alone.

    Of one that says nothing it is taken that it does not."""

    @property
    def keeps_shares_apart(self) -> bool:
        """False where the style of one client may come to depend on that of another."""
        ...


@runtime_checkable
class NamesKinds(Protocol):
    """A defense that changes artifacts of some kinds alone, and names their classes: without any it has no effect."""

    @property
    def changes(self) -> frozenset[str]:
        """Name the kinds that it changes, as "StyleStatistics"."""
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


def blank(images: DomainDataset) -> DomainDataset:
    """As many black images of no known class, domain or name."""
    nothing = torch.zeros(len(images), dtype=torch.int64)
    return replace(
        images, store=torch.zeros(1, 3, *images.image_size, dtype=torch.uint8), rows=nothing, labels=nothing,
        domains=nothing, ids=tuple(f"image:{number}" for number in range(len(images))), attributes={}, split_names=(),
    )  # fmt: skip


def mechanism_on(defense: Defense) -> frozenset[str]:
    """The stages and slots in which a defense is a mechanism on records; none for post-processing.

    One that trains in a client's place is a mechanism on updates, whether it says so or not."""
    trains = frozenset({"update"}) if isinstance(defense, TrainsPrivately) else frozenset()
    return trains | (defense.mechanism_on if isinstance(defense, Mechanism) else frozenset())
