"""What attacks may answer: one record for each kind of question. fdgsec.threats.judging.rules says how each is judged.

A passive attack answers about records, clients or images. One that sends forged messages (poisoning) answers about
harm: the outcome of a run with the forgery beside that of the same run, of the same seed, without it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An attack's answer about one case (`case` indexes the cases); `slice` adds to the case's own."""

    kind: ClassVar[str] = "answer"
    case: int
    slice: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """What the answer is about, where its type leaves that open; each subject is judged separately."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Ranking(Answer):
    """For each released row a distance to each candidate, (R, G): the smallest is the best guess.

    `truth` overrides what is ranked: "rows" (images), "partner" (clients), or "domains". `descriptive` answers are
    measured, but are no evidence of a leak."""

    kind: ClassVar[str] = "ranking"
    distances: Tensor
    of: Literal["rows", "partner"] = "rows"
    descriptive: bool = False

    @property
    def subject(self) -> str:
        """What is ranked."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class Membership(Answer):
    """For each candidate a score, (G,): larger means member."""

    kind: ClassVar[str] = "membership"
    scores: Tensor


@dataclass(frozen=True, kw_only=True)
class SetMembership(Answer):
    """For each candidate a score under each model that may be the victim's, (models, G): to judge sets of `size`.

    All images of a set are members, or none is. The score of a set is the mean over its images, under the model where
    that is largest; larger means members."""

    kind: ClassVar[str] = "set membership"
    scores: Tensor
    size: int


@dataclass(frozen=True, kw_only=True)
class MemberList(Answer):
    """The candidates that the adversary believes to be the members, all of them and no others, (G,) bool."""

    kind: ClassVar[str] = "member list"
    believed: Tensor


@dataclass(frozen=True, kw_only=True)
class Labels(Answer):
    """For each released row a predicted class or domain, (R,) int64, with the number of classes."""

    kind: ClassVar[str] = "labels"
    predicted: Tensor
    of: Literal["labels", "domains"]
    classes: int

    @property
    def subject(self) -> str:
        """What is predicted."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class Proportions(Answer):
    """The estimated shares of classes or domains among a client's images, and the guess without the release.

    Both are (K,) and sum to 1."""

    kind: ClassVar[str] = "proportions"
    estimate: Tensor
    without: Tensor
    of: Literal["labels", "domains"] = "labels"

    @property
    def subject(self) -> str:
        """What the shares are of."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class Presence(Answer):
    """For each class or domain a score, (K,): larger means that the client holds some of it."""

    kind: ClassVar[str] = "presence"
    scores: Tensor
    of: Literal["labels", "domains"] = "labels"

    @property
    def subject(self) -> str:
        """What is held."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class Recovered(Answer):
    """For each record the recovered statistic, (R, D), and what the adversary would guess without the release, (D,)."""

    kind: ClassVar[str] = "recovered"
    statistic: Tensor
    without: Tensor


@dataclass(frozen=True, kw_only=True)
class Reconstructions(Answer):
    """For each released row an image (R, 3, h, w) in [0, 1], and the answers of the controls B0-B4, of the same shape.

    Names: B0 mean image, B1 random public image, B2 nearest public image in style, B3 the generator given the style of
    another image of the same domain, B4 the generator given noise. Where the images are not `ordered`, it is unknown
    which row is of which image, and the judge matches them, the controls likewise. `descriptive` answers are measured,
    but are no evidence of a leak."""

    kind: ClassVar[str] = "reconstructions"
    images: Tensor
    controls: Mapping[str, Tensor]
    ordered: bool = True
    descriptive: bool = False


@dataclass(frozen=True, kw_only=True)
class GeneratedSets(Answer):
    """Images (N, 3, h, w) in [0, 1] that are judged as a set, never one by one; `name` is what generated them."""

    kind: ClassVar[str] = "generated sets"
    images: Tensor
    name: str


@dataclass(frozen=True, kw_only=True)
class Prediction(Answer):
    """A number that theory or the attack's own bookkeeping predicts: descriptive, never evidence."""

    kind: ClassVar[str] = "prediction"
    name: str
    value: float
    unit: str = ""

    @property
    def subject(self) -> str:
        """The name of the number."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class PublishedMedian(Answer):
    """The median `style` (D,) of the means of clusters of N clients, with `labels` (N,), and whose numbers it holds.

    `of_clients` (N, D) and `of_clusters` (K, D) say where a number equals a client's own, or its cluster's mean, bit by
    bit; `varies` (D,) where not all clients have the same number. Descriptive: nothing is inferred."""

    kind: ClassVar[str] = "published median"
    labels: Tensor
    style: Tensor
    of_clients: Tensor
    of_clusters: Tensor
    varies: Tensor


@dataclass(frozen=True, kw_only=True)
class Exposure(Answer):
    """Which candidates the adversary believes to have a published row, (G,) bool; the client holds `images` images."""

    kind: ClassVar[str] = "exposure"
    published: Tensor
    images: int


@dataclass(frozen=True, kw_only=True)
class InferredSize(Answer):
    """How many images a client holds, and what the adversary would guess without that client's release."""

    kind: ClassVar[str] = "inferred size"
    images: float
    without: float


@dataclass(frozen=True, kw_only=True)
class Palettes(Answer):
    """For each released row the image's colors, (R, 3, Q) in [0, 1], and the guess without a release, (3, Q).

    A palette is three quantile functions: the value of red, green and blue at Q evenly spaced shares of the pixels."""

    kind: ClassVar[str] = "palettes"
    palettes: Tensor
    without: Tensor


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run.

    `ended` is why it did not finish, empty where it did; `refused`, whether it ended with an error that names the
    forger first; `finite`, whether all numbers of the last model and of what clients received are finite, where it did
    finish. `accuracy` is that of the last model, a share, by the images that it is measured on; empty where nothing was
    trained or the run did not finish. `numbers` are shares by name: "forger_weight" of the aggregated models,
    "picked_share" of the draws from a pool, "picked_in_cluster" of the draws from the same clusters."""

    ended: str = ""
    refused: bool = False
    finite: bool = True
    accuracy: Mapping[str, float] = field(default_factory=dict)
    transcript_sha256: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Harm:
    """Two runs of one seed, `honest` without the forgery and `hostile` with it.

    `displacement` is |hostile - honest| / |honest| of what honest clients received last, by kind (L2 over all of them
    together), and of the last model; what is missing or not finite has none. `blind` is the accuracy of always
    predicting the most frequent class, by the same names as the accuracies."""

    honest: Outcome
    hostile: Outcome
    displacement: Mapping[str, float] = field(default_factory=dict)
    blind: Mapping[str, float] = field(default_factory=dict)

    @property
    def none(self) -> bool:
        """Whether the two runs are identical to the byte, in what was sent and in what came of it."""
        return self.honest == self.hostile and not any(self.displacement.values())

    @property
    def harmless(self) -> bool:
        """Whether nobody else was affected, whatever was sent."""
        same = not self.hostile.ended and self.honest.accuracy == self.hostile.accuracy
        return same and not any(self.displacement.values())


@dataclass(frozen=True, kw_only=True)
class Harmed(Answer):
    """The claim that a forgery harms a trained federation, or (`exchange`) the styles that one exchange produces.

    There is nothing to infer: the truth about the two runs is measured."""

    kind: ClassVar[str] = "harmed"
    of: Literal["run", "exchange"] = "run"
