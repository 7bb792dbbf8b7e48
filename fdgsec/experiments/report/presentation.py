"""The presentation of each type of answer: figures for the report, and lines and images for guesses.csv.

The table `PRESENTATIONS` has an entry for each type that fdgsec.threats.judging.rules has a rule for. A type defined
elsewhere may declare its own as a class attribute: `presentation: ClassVar[Presentation] = Presentation(...)`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fdgsec.experiments.report.figures import membership_figures, reconstruction_grids
from fdgsec.experiments.report.schema import Figure
from fdgsec.threats.answers import (
    Answer,
    Exposure,
    GeneratedSets,
    Harmed,
    InferredSize,
    Labels,
    MemberList,
    Membership,
    Palettes,
    Prediction,
    Presence,
    Proportions,
    PublishedMedian,
    Ranking,
    Reconstructions,
    Recovered,
    SetMembership,
)
from fdgsec.threats.attack import Answers, Case, Truth

A = TypeVar("A", bound=Answer)

BEST = 5
"""Number of candidates that are listed for each row of a ranking."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of the indices in answers: candidates of the case, classes and domains.

    `clients` are those of the vectors of a file, `partners` those of their second releases; empty for other sources."""

    candidates: Sequence[str]
    classes: Sequence[str]
    domains: Sequence[str]
    clients: Sequence[str] = ()
    partners: Sequence[str] = ()

    def of(self, subject: str) -> Sequence[str]:
        """The names of "labels" or of "domains"."""
        return self.classes if subject == "labels" else self.domains


Line = tuple[object, object, object, object]
"""Row, place, guess and score."""


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How answers of one type are shown; what is None is not shown that way.

    `draw` makes figures of all answers of an attack, `tell` the lines of one answer in the table of guesses, and
    `pictures` gives the images (R, 3, h, w) in [0, 1] of one answer that are written as a sheet."""

    draw: Callable[[Answers, Sequence[Case], Sequence[Truth]], list[Figure]] | None = None
    tell: Callable[[Answer, Names], Iterable[Line]] | None = None
    pictures: Callable[[Answer], Tensor] | None = None


@runtime_checkable
class DeclaresPresentation(Protocol):
    """A type of answer that brings its own presentation."""

    presentation: ClassVar[Presentation]


def presentation_of(kind: type[Answer]) -> Presentation:
    """The presentation of a type of answer: the one that it declares, else that of the table, else an empty one."""
    if isinstance(kind, DeclaresPresentation):
        return kind.presentation
    return next((PRESENTATIONS[known] for known in kind.__mro__ if known in PRESENTATIONS), Presentation())


def figures_of(answers: Answers, cases: Sequence[Case], truths: Sequence[Truth]) -> list[Figure]:
    """Draw figures of one attack's answers; an empty list if tables suffice."""
    draws = dict.fromkeys(presentation_of(type(answer)).draw for answer in answers)
    return [figure for draw in draws if draw is not None for figure in draw(answers, cases, truths)]


def _told(kind: type[A], tell: Callable[[A, Names], Iterable[Line]]) -> Callable[[Answer, Names], Iterable[Line]]:
    """Wrap a function of one type of answer for the table, whose entries get only that type."""

    def lines(answer: Answer, names: Names) -> Iterable[Line]:
        assert isinstance(answer, kind)
        return tell(answer, names)

    return lines


def _ranking_lines(answer: Ranking, names: Names) -> Iterator[Line]:
    if answer.of == "partner" and names.partners:
        nearest = int(answer.distances[0].argmin())
        yield "", 1, names.partners[nearest], f"{float(answer.distances[0, nearest]):.6g}"
    if answer.of != "rows":
        return
    for row, distances in enumerate(answer.distances):
        nearest = distances.argsort(stable=True)[:BEST]
        for place, candidate in enumerate(nearest.tolist(), 1):
            yield row, place, names.candidates[candidate], f"{float(distances[candidate]):.6g}"


def _label_lines(answer: Labels, names: Names) -> Iterator[Line]:
    for row, number in enumerate(answer.predicted.tolist()):
        yield row, 1, names.of(answer.of)[number], ""


def _member_lines(answer: MemberList, names: Names) -> Iterator[Line]:
    for number in answer.believed.nonzero().flatten().tolist():
        yield "", "", names.candidates[number], "member"


def _median_lines(answer: PublishedMedian, names: Names) -> Iterator[Line]:
    """The members of each cluster with their number, whose numbers the style holds as a share of those that vary, and
    each number with whose it is."""
    clients: list[str] = list(names.clients) or [f"client:{number + 1}" for number in range(len(answer.labels))]
    for label in range(int(answer.labels.max()) + 1):
        members = [clients[number] for number in (answer.labels == label).nonzero().flatten().tolist()]
        yield f"cluster {label + 1}", "", " ".join(members), len(members)
    for copied, owners in ((answer.of_clusters, ()), (answer.of_clients, clients)):
        for place, share in enumerate(copied[:, answer.varies].double().mean(1).nan_to_num().tolist()):
            if share:
                yield "copied from", "", owners[place] if owners else f"cluster {place + 1}", f"{share:.6g}"
    half, digits = len(answer.style) // 2, 9 if answer.style.dtype == torch.float32 else 17
    for column, value in enumerate(answer.style.tolist()):
        own = [clients[number] for number in answer.of_clients[:, column].nonzero().flatten().tolist()]
        means = [f"cluster {label + 1}" for label in answer.of_clusters[:, column].nonzero().flatten().tolist()]
        said = "constant" if not bool(answer.varies[column]) else " ".join([*own, *means])
        yield f"{'mean' if column < half else 'std'} {column % half + 1}", "", said, f"{value:.{digits}g}"


def _descending(values: Tensor, names: Sequence[str]) -> Iterator[Line]:
    for place, number in enumerate(values.argsort(descending=True, stable=True).tolist(), 1):
        yield "", place, names[number], f"{float(values[number]):.6g}"


def _reconstructed(answer: Answer) -> Tensor:
    assert isinstance(answer, Reconstructions)
    return answer.images


PRESENTATIONS: Mapping[type[Answer], Presentation] = {
    Ranking: Presentation(tell=_told(Ranking, _ranking_lines)),
    Membership: Presentation(
        draw=membership_figures,
        tell=_told(Membership, lambda answer, names: _descending(answer.scores, names.candidates)),
    ),
    MemberList: Presentation(tell=_told(MemberList, _member_lines)),
    Labels: Presentation(tell=_told(Labels, _label_lines)),
    Proportions: Presentation(
        tell=_told(Proportions, lambda answer, names: _descending(answer.estimate, names.of(answer.of)))
    ),
    Presence: Presentation(tell=_told(Presence, lambda answer, names: _descending(answer.scores, names.of(answer.of)))),
    Prediction: Presentation(
        tell=_told(Prediction, lambda answer, _names: [("", "", answer.name, f"{answer.value:.6g}")])
    ),
    PublishedMedian: Presentation(tell=_told(PublishedMedian, _median_lines)),
    Reconstructions: Presentation(draw=reconstruction_grids, pictures=_reconstructed),
    Recovered: Presentation(),
    SetMembership: Presentation(),
    GeneratedSets: Presentation(),
    Exposure: Presentation(),
    InferredSize: Presentation(),
    Palettes: Presentation(),
    Harmed: Presentation(),
}
