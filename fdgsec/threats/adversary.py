"""Adversaries: what they see of a transcript, and what else they know."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    InterpolationStyle,
    ModelState,
    Scores,
    StyleBank,
    StyleDistribution,
    StyleStatistics,
)
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic
from fdgsec.federation.wire import SERVER, Message, Row, Transcript, number_of
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import TooFewImagesError, UsageError

A = TypeVar("A", bound=Artifact)
Link = tuple[int, str, str, str]
"""Round, stage, sender and receiver of messages."""

NO_IMAGES = "the adversary has no images to learn from: the dataset is too small; use more images of each class"
KNOWLEDGE = ("encoder", "transform", "class names", "client sizes", "victim domains", "auxiliary", "unseen", "own data")
"""What an adversary may know: the public encoder; the image transform; class names; how many images a client holds;
which domain a client's images are of; labeled auxiliary images of the victims' domains; images of the unseen domain;
its own training images."""


AVERAGED = (StyleStatistics, StyleDistribution, ImageStyles, Amplitudes)
"""Uploads that are averaged where one stage has several of a kind."""
MOST_DETAILED = (ImageStyles, Amplitudes)
"""Kinds that are read before others of the same sender, because their rows may be single images."""


def averaged(artifacts: Sequence[A]) -> A:
    """The mean of artifacts of one kind and equal shapes, entry by entry; integers are those of the first."""
    first = artifacts[0]
    if len(artifacts) == 1:
        return first
    tensors = {
        name: torch.stack([one.tensors()[name].double() for one in artifacts]).mean(0).to(value.dtype)
        for name, value in first.tensors().items()
        if value.is_floating_point()
    }
    return replace(first, **tensors)


def _form(artifact: Artifact) -> tuple[object, ...]:
    return (artifact.kind, *((name, tuple(value.shape)) for name, value in artifact.tensors().items()))


def _link(message: Message) -> Link:
    return message.round, message.stage, message.sender, message.receiver


MakesObjective = Callable[[torch.Generator], Objective]
"""Makes a training objective that draws from a generator."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The messages that one adversary could see, in order."""

    messages: tuple[Message, ...]

    def styles(self, victim: str) -> tuple[Tensor, Tensor] | None:
        """Find the style rows (R, C) of `victim` that it released last: its own upload, else its rows of a bank.

        Rows of single images come before other styles. Several uploads of one kind in the same stage are averaged
        (`_averaged`). None if neither was seen."""
        number = number_of(victim)
        rows = self._detailed(victim, (ImageStyles,))
        if isinstance(rows, ImageStyles):
            return rows.mean, rows.std
        for message in merge(self._of(victim), self._banks, key=lambda message: self._places[id(message)]):
            artifact = self._averaged(message)
            if message.sender == victim and isinstance(artifact, StyleStatistics | InterpolationStyle):
                return artifact.mean.unsqueeze(0), artifact.std.unsqueeze(0)
            listed = artifact.styles_of(number) if isinstance(artifact, StyleBank) else None
            if listed is not None:
                return listed
        return None

    def artifact(self, victim: str) -> Artifact | None:
        """Find what `victim` itself sent last beside models and numbers, else its rows of a bank of spectra.

        Of several kinds, one of MOST_DETAILED. Several uploads of one kind in the same stage are averaged
        (`_averaged`). None if nothing was seen."""
        detailed = self._detailed(victim, MOST_DETAILED)
        if detailed is not None:
            return detailed
        for message in self._of(victim):
            if not isinstance(message.artifact, ModelState | Scores):
                return self._averaged(message)
        for message in self._banks:
            bank = message.artifact
            if isinstance(bank, Amplitudes) and bool((mine := bank.owner == number_of(victim)).any()):
                return Amplitudes(values=bank.values[mine], owner=bank.owner[mine])
        return None

    def reading(self, victim: str, kinds: Collection[str]) -> "View":
        """Leave styles and spectra of other `kinds` out, where `victim` sent some of one of them."""
        kept = tuple(
            message
            for message in self.messages
            if not (isinstance(message.artifact, AVERAGED) and message.artifact.kind not in kinds)
        )
        mine = [isinstance(m.artifact, AVERAGED) for m in kept if m.sender == victim]
        return replace(self, messages=kept) if any(mine) and len(kept) < len(self.messages) else self

    def sent(self, victim: str, kind: type[A]) -> A | None:
        """Find the last artifact of exactly `kind` that `victim` itself sent: a ModelState is no GeneratorState."""
        mine = (m.artifact for m in self._of(victim))
        return next((artifact for artifact in mine if type(artifact) is kind), None)

    def given(self, receiver: str) -> ModelState | None:
        """Find the model that the server sent to `receiver` last."""
        mine = (m.artifact for m in self._of(SERVER) if m.receiver == receiver)
        return next((artifact for artifact in mine if type(artifact) is ModelState), None)

    def latest(self, kind: type[A]) -> A | None:
        """Find the artifact of `kind` that was seen last, whoever sent it."""
        return next((m.artifact for m in self._latest_first if isinstance(m.artifact, kind)), None)

    def _detailed(self, victim: str, kinds: Sequence[type[Artifact]]) -> Artifact | None:
        """The last upload of `victim` of the first of `kinds` that it sent."""
        mine = self._of(victim)
        found = (next((each for each in mine if isinstance(each.artifact, kind)), None) for kind in kinds)
        return next((self._averaged(each) for each in found if each is not None), None)

    def _averaged(self, message: Message) -> Artifact:
        """The mean of all that its sender sent in its stage of its round under the same kind and shapes.

        What a method sends in several slots of one kind is the same statistic (release_check.py), and a defense draws
        noise for each slot: the mean has the least of it."""
        if not isinstance(message.artifact, AVERAGED):
            return message.artifact
        alike = self._by_link[_link(message)]
        return averaged([one for one in alike if _form(one) == _form(message.artifact)])

    @cached_property
    def _latest_first(self) -> Sequence[Message]:
        return sorted(self.messages, key=lambda message: -message.round)  # stable: within a round, in their order

    @cached_property
    def _by_link(self) -> Mapping[Link, Sequence[Artifact]]:
        found: dict[Link, list[Artifact]] = {}
        for message in self.messages:
            found.setdefault(_link(message), []).append(message.artifact)
        return found

    @cached_property
    def _banks(self) -> Sequence[Message]:
        """The messages with rows of several clients, the latest round first."""
        return [message for message in self._latest_first if isinstance(message.artifact, StyleBank | Amplitudes)]

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {id(message): place for place, message in enumerate(self._latest_first)}

    @cached_property
    def _by_sender(self) -> Mapping[str, Sequence[Message]]:
        found: dict[str, list[Message]] = {}
        for message in self._latest_first:
            found.setdefault(message.sender, []).append(message)
        return found

    def _of(self, sender: str) -> Sequence[Message]:
        """The messages of one sender, the latest round first: with many clients, those of all would take long."""
        return self._by_sender.get(sender, ())


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """Who attacks: the parties it is, the links it taps, and what it knows beside the transcript."""

    name: str
    parties: tuple[str, ...]
    taps: Literal["own", "all"]
    knows: tuple[str, ...]

    def reads(self, row: Row) -> bool:
        """Whether a message that somebody else sent comes before this adversary's eyes."""
        return row.sender not in self.parties and (self.taps == "all" or row.receiver in self.parties)

    def view(self, transcript: Transcript) -> View:
        """Keep the messages whose sender or receiver is this adversary, or all of them when it taps every link."""
        return View(
            messages=tuple(
                message
                for message in transcript.messages()
                if self.taps == "all" or message.sender in self.parties or message.receiver in self.parties
            )
        )


ADVERSARIES: Mapping[str, Adversary] = {
    "server": Adversary(
        name="server", parties=(SERVER,), taps="own",
        # an institution signs up under its name, and its updates carry their weight
        knows=("encoder", "transform", "class names", "client sizes", "victim domains", "auxiliary", "unseen"),
    ),
    "client": Adversary(
        name="client", parties=("client:0",), taps="own",
        knows=("encoder", "transform", "class names", "own data", "unseen"),
    ),
    "outsider": Adversary(
        name="outsider", parties=(), taps="all", knows=("encoder", "transform", "class names", "unseen"),
    ),
}  # fmt: skip


class Statistics(Protocol):
    """The public encoder's per-image channel statistics, computed once per image."""

    def __call__(self, dataset: DomainDataset) -> Moments:
        """Give one row of moments per image of `dataset`."""
        ...


class Simulate(Protocol):
    """The target's public method among clients "client:1", "client:2", ... that hold images that the adversary has: its
    own, or candidates."""

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """Exchange artifacts, or train for `rounds`; give what a server would see.

        Raises UsageError for other images."""
        ...


Shared = Callable[[DomainDataset, torch.Generator], Artifact]
"""Makes the artifact that a client with these images would share by the public method, before any defense."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedByLists:
    """What clients that hold lists of N images each share, before any defense, and by which `weights` (L, N), of sum 1,
    their images count in it; None where these are not known."""

    sent: Sequence[Artifact]
    weights: Tensor | None = None


ListSharing = Callable[[Tensor, torch.Generator], SharedByLists]
"""Makes what clients with lists (L, N) of the same images would share."""
Sharing = Callable[[DomainDataset], ListSharing]
"""Gives that for clients with parts of these images."""
Defended = Callable[[Artifact, DomainDataset, torch.Generator], Artifact]
"""Applies the run's defenses to the artifact of a client with these images, and undoes what is publicly invertible."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the adversary has beside its view; a field is None unless `knows` names it.

    `network` builds the target's public architecture with a given state, once there is a model. `released_statistic`
    is the per-image statistic of which the target's releases are means; it is public, as is `weighted_statistic`, of
    which they are means with unknown weights; None where they are none. `simulate` runs the target's public method
    among clients "client:1", "client:2", ... that hold its own images, or candidates, and gives what a server would
    see. `statistics_under` gives the statistics of the layers of a model from which clients' styles come, None where
    these come from no model. `plan` is the public training plan of the target's clients, None where no single plan
    describes it; `keeps_moments` is whether their optimizers keep state between rounds. `objective` makes the public
    loss that they train, with draws from a generator, None where an image's depends on other images or on more than
    the model. `sharing` makes what many clients with parts of the same images would share, before any defense; None
    where nothing is shared but the model. `defended` applies the run's defenses, whose options are public, with fresh
    randomness, and `shared` makes their input; None where no defense acts on styles. `vectors_alone` says that
    clients' vectors are given, and nothing else: no images, no method (ReadsVectors)."""

    statistics: Statistics
    encoder: str
    class_names: Sequence[str]
    domain_names: Sequence[str]
    auxiliary: DomainDataset | None
    unseen: DomainDataset | None
    own: DomainDataset | None
    released_statistic: ReleasedStatistic = field(default_factory=PooledStyles)
    weighted_statistic: ReleasedStatistic | None = None
    simulate: Simulate | None = None
    statistics_under: Callable[[ModelState], Statistics] | None = None
    network: Callable[[Mapping[str, Tensor]], Classifier] | None = None
    plan: TrainingPlan | None = None
    keeps_moments: bool = False
    objective: MakesObjective | None = None
    defended: Defended | None = None
    shared: Shared | None = None
    sharing: Sharing | None = None
    vectors_alone: bool = False

    def public_images(self) -> DomainDataset:
        """Auxiliary images where the adversary knows any, else its own.

        Raises UsageError if it knows neither, and TooFewImagesError if the dataset is too small to give it one."""
        images = self.auxiliary if self.auxiliary is not None else self.own
        if images is None:
            raise UsageError("this attack needs auxiliary images; the adversary knows none (see --adversary).")
        if not len(images):
            raise TooFewImagesError(NO_IMAGES)
        return images
