"""What attacks are, and what they are asked: questions, cases, the truth about them, and positive controls.

An attack gets cases (a view of a transcript and the question about it) and knowledge, and gives answers. The truth goes
from the challenger to the judge and never through here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.metrics.measurement import Goal, Measurement
from fdgsec.runtime.errors import TooFewImagesError, UnseenError, UsageError
from fdgsec.threats.adversary import KNOWLEDGE, NO_IMAGES, Knowledge, View
from fdgsec.threats.answers import Answer, Harm

QuestionKind = Literal[
    "released", "as_if_released", "add_one_record", "resampled_clients", "added_images", "sums",
    "model_rounds", "prototypes", "head_gradients", "halves", "sessions", "rounds", "mixtures", "cohorts", "trained",
    "single_step", "hostile", "breakdown", "guarded_runs", "guarded_exchanges", "given",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Question:
    """Observed runs of the target that an attack asks for; the challenger executes and caches them.

    released: the run itself, per client, with a gallery of `gallery` candidate images that contains every released one.
    as_if_released: what clients with non-auxiliary images would have released, one row per image.
    add_one_record: per domain `count` pairs of runs with n and n + 1 records.
    resampled_clients: per domain `count` clients of `records` images each, with members and non-members as candidates
    (`gallery` of them, all members included; 0: as many of each, at most 150), of which `held` is the share shown.
    added_images: per domain `count` resampled clients of `records` images, seen once with these and once with `added`
    more of their domain, and without `dropped` of the first ones; candidates are `gallery` images, all new and dropped
    ones among them and the others like any. Where some are dropped, one case asks which, and another for the new ones.
    sums: `count` exchanges of `clients` resampled clients of `records` images each, of each domain in turn, of which
    the server sees the sum alone (secure aggregation); candidates are as many members and others of each domain as of
    the others, `gallery` in all.
    model_rounds: per domain `count` resampled clients, as resampled_clients, each seen in the run's first `rounds`
    rounds, one view for each, in which the run's model of that round comes first: what they share is computed by it.
    prototypes: per domain `count` resampled clients, as resampled_clients, that train for one round from the run's
    initial model, seen with the models; candidates come with their classes, which their pictures show.
    head_gradients: per domain `count` resampled clients, as resampled_clients, seen with the run's initial model, in
    which they compute what they share; candidates come with their classes. Scheme "pictures": the judge has their
    pictures.
    halves: `count` clients whose data are split into two disjoint halves, each released once.
    sessions: the same, but all of a client's data are released both times: a second exchange of the same members.
    rounds: per domain `count` clients of `records` images, each seen in `rounds` exchanges under its name; candidates
    are as many others, or `gallery` in all where that is more.
    mixtures: per domain `count` clients of `records` images with skewed class shares (scheme "domains": domain shares).
    cohorts: `count` federations of `clients` clients drawn from a pool of twice as many, of `records` images each; the
    adversary sees what the federation published, and is shown other images of every client in the pool.
    trained: the trained run, per client, or for `clients` of them (0: all): `count` of its training images among as
    many held-out ones, with labels.
    single_step: per domain `count` clients of `records` images that take one step of plain SGD on all of them, at the
    target's learning rate, from the run's initial model (scheme "last": from the last one that its server sent);
    candidates are `gallery` images of the domain.
    hostile: for each of `count` seeds the run with honest clients, and once more for each of `malicious_clients` in
    place of the adversary's client; at most `rounds` of training on at most `records` images of each client (0: all).
    breakdown: `count` exchanges of `clients` clients of `records` images; `hostile` lists how many of them forge alike.
    guarded_runs: behind each of `guards` and for `count` seeds, a run of `clients` clients of `records` images, and one
    for each of `malicious_clients` in place of the first `hostile` clients; `selecting` further seeds choose the worst.
    guarded_exchanges: the same without training.
    given: the vectors of a file, one pooled style per client, without a run (ReadsVectors). Scheme "pairs": two
    releases per client, the second ones under new names (the same vectors again where the file holds one release);
    "together": one case that shows all clients' vectors; "candidates": one case per client, with candidates whose
    statistics are given in place of images."""

    kind: QuestionKind
    count: int = 0
    records: int = 0
    gallery: int = 0
    per_class: int = 0
    clients: int = 0
    rounds: int = 0
    added: int = 0
    dropped: int = 0
    held: float = 1.0
    scheme: str = ""
    malicious_clients: tuple[MaliciousClient, ...] = ()
    hostile: tuple[int, ...] = ()
    guards: tuple[str, ...] = ()
    selecting: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question: what was seen (`views`, one per run), about whom (`victim`), among which `candidates`.

    `records` is the number of images behind the release, and `domain` their domain ("mixed" where there are several),
    each None where the adversary does not know it; the release is the sum of those of `clients` clients with equally
    many images. `added` of the images behind the last view are not behind the first, and `dropped` of those behind the
    first not behind the last; `asks` says which of both are looked for. `slice` is the population of
    the case, as {"domain": "photo", "n_per_client": 40}: controls, judge and report sort cases by it, and no answer may
    depend on it. Candidates have pixels, but no domains or informative names, and labels in "prototypes" and
    "head_gradients" alone, where pictures show their classes; their order is random. `groups` (candidates,) is the
    number of the candidate client that each belongs to, where clients are asked about."""

    question: QuestionKind
    views: tuple[View, ...]
    victim: str
    slice: Mapping[str, str | int]
    records: int | None = None
    domain: str | None = None
    clients: int = 1
    added: int = 0
    dropped: int = 0
    asks: Literal["added", "dropped"] = "added"
    candidates: DomainDataset | None = None
    groups: Tensor | None = None

    def released(self, run: int = 0) -> tuple[Tensor, Tensor]:
        """The victim's style rows (R, C) in float64, as seen in run `run`. Raises UnseenError where none were seen."""
        styles = self.views[run].styles(self.victim)
        if styles is None:
            raise UnseenError(f"the adversary saw no style of {self.victim}.")
        return styles[0].to(torch.float64), styles[1].to(torch.float64)

    def release(self, run: int = 0) -> Artifact:
        """What the victim itself sent last in run `run`, except models. Raises UnseenError where nothing was seen."""
        artifact = self.views[run].artifact(self.victim)
        if artifact is None:
            raise UnseenError(f"the adversary saw no artifact of {self.victim}.")
        return artifact


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What only the judge knows about a case; fields that do not apply are None.

    `members` (candidates,) bool; `rows` (R,) the index among the candidates of the image behind each released row;
    `images` (R, 3, H, W) uint8, `labels` and `domains` (R,) of the released rows (`images` of a pooled release: some of
    those behind it); `statistic` (R, 2C) the linear statistic of the records; `partner` the number of the case (within
    its slice) that comes from the same client, and `alike` those of all clients of its domain, in order (None: of all
    clients); `proportions` (classes,) and `domain_shares` (domains,) the shares of the client's images; `cluster_sizes`
    (candidates,) the number of images that a member was averaged with, 0 for others; `harm` the effect of a forgery."""

    members: Tensor | None = None
    rows: Tensor | None = None
    images: Tensor | None = None
    labels: Tensor | None = None
    domains: Tensor | None = None
    statistic: Tensor | None = None
    partner: int | None = None
    alike: Sequence[int] | None = None
    proportions: Tensor | None = None
    domain_shares: Tensor | None = None
    cluster_sizes: Tensor | None = None
    harm: Harm | None = None


@dataclass(frozen=True, kw_only=True)
class PositiveControl:
    """A positive control: cases with planted information, their truth, and the value that the attack must reach.

    `measurement` must be at least `at_least` in every row that has no slice entry of `without`, and the goals of `also`
    must be reached too. `attack` answers in place of the attack itself: the same without options under which less is to
    be expected (fewer images).
    """

    cases: Sequence[Case]
    truths: Sequence[Truth]
    knowledge: Knowledge
    measurement: str
    at_least: float
    without: Mapping[str, str | int] = field(default_factory=dict)
    also: Sequence[Goal] = ()
    attack: "Attack | None" = None

    def answers(self, attack: "Attack", rng: torch.Generator) -> "Answers":
        """Answer the planted cases as `attack` does."""
        return (self.attack or attack).run(self.cases, self.knowledge, rng)


@dataclass(frozen=True, kw_only=True)
class VariantControl:
    """A positive control of each variant of an attack for some of its rows, which alone depend on it.

    An attack that works may have variants that cannot show one thing: their rows about it are then no evidence, while
    all others stand. `variants` are values of the slice entry `key` ({"loss": "mse"}). On the planted cases each must
    reach the `goal`; where one does not, its rows of the `measurements` that have the slice `goal.where` are no
    evidence, for the reason `failed`. Without cases no variant passes, and `lacking` says why there are none.
    `attack` answers."""

    goal: Goal
    key: str
    variants: Sequence[str]
    measurements: frozenset[str]
    failed: str
    attack: "Attack"
    knowledge: Knowledge
    cases: Sequence[Case] = ()
    truths: Sequence[Truth] = ()
    lacking: str = ""

    def speaks_for(self, row: Measurement) -> bool:
        """Whether a row is no evidence unless its variant passes."""
        about = replace(self.goal, measurement=row.name).fits(row)
        return about and row.name in self.measurements and row.slice.get(self.key) in self.variants

    def answers(self, rng: torch.Generator) -> "Answers":
        """Answers to the planted cases, of those kinds alone that the goal is about."""
        found = self.attack.run(self.cases, self.knowledge, rng) if self.cases else ()
        return [answer for answer in found if self.goal.where.items() <= dict(answer.slice).items()]


Answers = Sequence[Answer]


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What an attack may know before it runs: public settings of its target, never data, and what its adversary knows.

    `pooled` is whether a client's style is a mean over its images, and `weighted` whether it is one with weights that
    are not known (FISC's clusters); `rounds` is the number of training rounds;
    `public_images` is the number of images that `Knowledge.public_images` gives; `named` is whether uploads reach the
    server under their senders' names, with no policy in between; `candidate_statistics` is whether the statistics of
    candidate images are given in place of images. `summable` is whether the method works where its server sees sums
    over clients alone, and `summed` whether it does. `grouped_rows` is whether a defense replaces rows of single images
    by means over groups of them. `kept_rounds` is the number of rounds, from the first one on, whose models the run
    keeps."""

    artifact_kinds: frozenset[str]
    clients: int
    images_per_client: int
    classes: int
    profile: Literal["quick", "full"]
    knows: frozenset[str] = frozenset(KNOWLEDGE)
    pooled: bool = True
    weighted: bool = False
    rounds: int = 0
    public_images: int = 1
    named: bool = True
    candidate_statistics: bool = False
    summable: bool = False
    summed: bool = False
    grouped_rows: bool = False
    kept_rounds: int = 0

    def check_pooled(self) -> None:
        """Raise UsageError where a client's style is no mean over its images (FISC's is a mean over clusters)."""
        if self.artifact_kinds & {"StyleStatistics", "Amplitudes"} and not self.pooled:
            raise UsageError("reads styles that are means over a client's images; those of this target are not")

    def check_two_clients(self) -> None:
        """Raise UsageError for vectors of fewer than two clients."""
        if self.clients < 2:
            raise UsageError(f"needs the vectors of two clients or more; there are {self.clients}")

    def check_images(self) -> None:
        """Raise what `Knowledge.public_images` will raise."""
        if not self.knows & {"auxiliary", "own data"}:
            raise UsageError("needs auxiliary or own data to learn from; the adversary knows neither")
        if not self.public_images:
            raise TooFewImagesError(NO_IMAGES)


class Attack(Protocol):
    """A passive attack: it reads what its adversary sees. Options are frozen fields; nothing is kept between calls."""

    name: ClassVar[str]
    reads: ClassVar[frozenset[str]]
    """Artifact kinds it can read; one of them must be released."""
    needs: ClassVar[frozenset[str]]
    """Entries of KNOWLEDGE that it cannot do without."""

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Name the observed runs that the attack needs.

        Raises UsageError, naming what is missing, where the adversary knows too little for this target."""
        ...

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer the cases from views and knowledge alone."""
        ...

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with every artifact exchanged for another of the same slice: the negative control."""
        ...

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Make cases with planted information that the attack must find: the positive control."""
        ...


@runtime_checkable
class SharesTraining(Protocol):
    """An attack whose negative control is shown what `run` has trained, or optimized row by row.

    What is trained knows no row of a victim, so that the exchanged rows are as far from the truth as with a training of
    their own."""

    def run_with_control(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, control_rng: torch.Generator
    ) -> tuple[Answers, Answers]:
        """Answer as `run` does by `rng`, and as `negative_control` does by `control_rng`."""
        ...


@runtime_checkable
class ControlsVariants(Protocol):
    """An attack with variants of which some may be unable to show what others show: it says by which control."""

    def variant_control(self, knowledge: Knowledge, rng: torch.Generator) -> VariantControl | None:
        """Plant what only some variants may show; None where nobody can measure it, so that there are no such rows."""
        ...


@runtime_checkable
class ReadsModels(Protocol):
    """An attack that reads the payloads of models, which a transcript keeps only on request."""

    keeps: ClassVar[Literal["models=last", "models=all"]]


@runtime_checkable
class ReadsMore(Protocol):
    """An attack that also looks at artifacts that need not be there: `reads` names those of which one must be."""

    also_reads: ClassVar[frozenset[str]]


@runtime_checkable
class ReadsVectors(Protocol):
    """An attack that also reads clients' vectors as they are given: without a run, images or an encoder."""

    def plan_of_vectors(self, facts: TargetFacts) -> Sequence[Question]:
        """Name the questions of kind "given" that the attack asks about clients' pooled styles.

        Raises UsageError, naming what is missing."""
        ...


@runtime_checkable
class AccountsForDefenses(Protocol):
    """An attack that takes the effect of some defenses into account, by name; by default an attack does of none.

    Where it finds no leak behind another one, its rows read "attack not adapted" and are no evidence of protection."""

    accounts_for: ClassVar[frozenset[str]]


@runtime_checkable
class Incomplete(Protocol):
    """An attack some of whose variants may be impossible for lack of weights or data: it says which, and why."""

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """One unavailable row per variant that could not run."""
        ...
