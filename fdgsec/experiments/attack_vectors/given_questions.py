"""Questions about clients' vectors as they are given: without a run, and without images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable
from fdgsec.experiments.attack_vectors.read_vectors import Sent
from fdgsec.experiments.simulated_runs.simulator import Cases, blinded
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.wire import SERVER, Message
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Case, Question, Truth

WHERE: Mapping[str, str | int] = {"clients": "given"}


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenVectors:
    """Clients' pooled vectors: the `first` releases by name, and in the same order the `second` ones (the first again,
    where there is one release).

    `table` holds candidates' statistics, if any, and `sizes` the number of images behind each vector, if known. `seed`
    draws the order in which second releases and candidates are shown."""

    first: Mapping[str, Sent]
    second: Sequence[Sent]
    table: CandidateTable | None = None
    sizes: Sequence[int] = ()
    seed: int = 0

    @property
    def clients(self) -> Sequence[str]:
        """The clients' own names, in the order of the vectors."""
        return [one.title or name for name, one in self.first.items()]

    @property
    def partners(self) -> Sequence[str]:
        """The clients' own names, in the order in which their second releases are shown."""
        return [self.clients[number] for number in self._order(len(self.first), "second releases")]

    @property
    def candidate_names(self) -> Mapping[str, str]:
        """The name of each candidate, by its blinded name."""
        if self.table is None:
            return {}
        return dict(zip(blinded(self.table.images).ids, self.table.images.ids, strict=True))

    def cases(self, question: Question) -> Cases:
        """Answer a question of kind "given" by its scheme."""
        return {"pairs": self._pairs, "together": self._together, "candidates": self._candidates}[question.scheme]()

    def _pairs(self) -> Cases:
        order = self._order(len(self.first), "second releases")
        place = {number: shown for shown, number in enumerate(order)}
        cases: Cases = []
        for number, (name, one) in enumerate(self.first.items()):
            cases.append((self._case(one, name, half="A"), Truth(partner=place[number])))
        for shown, number in enumerate(order):
            cases.append((self._case(self.second[number], f"client:{shown + 1}", half="B"), Truth()))
        return cases

    def _together(self) -> Cases:
        messages = tuple(_message(one, name) for name, one in self.first.items())
        return [(Case(question="given", views=(View(messages=messages),), victim=SERVER, slice=WHERE), Truth())]

    def _candidates(self) -> Cases:
        if self.table is None or not self.sizes:
            return []
        order = torch.tensor(self._order(len(self.table.images), "candidates"))
        shown = blinded(self.table.images.subset(order))
        cases: Cases = []
        for number, ((name, one), size) in enumerate(zip(self.first.items(), self.sizes, strict=True)):
            members = None if self.table.owner is None else self.table.members(number)[order]
            case = Case(
                question="given", views=(View(messages=(_message(one, name),)),), victim=name, records=size,
                slice={**WHERE, "gallery": len(shown)}, candidates=shown,
            )  # fmt: skip
            cases.append((case, Truth(members=members)))
        return cases

    def _case(self, one: Sent, name: str, *, half: str) -> Case:
        view = View(messages=(_message(one, name),))
        return Case(question="given", views=(view,), victim=name, slice={**WHERE, "half": half})

    def _order(self, count: int, what: str) -> list[int]:
        return torch.randperm(count, generator=stream(self.seed, "world", what)).tolist()


def _message(one: Sent, name: str) -> Message:
    return Message(round=0, stage="share", sender=name, receiver=SERVER, artifact=one.artifact)


def second_releases(sent: Mapping[str, Sent], again: Mapping[str, Sent] | None) -> Sequence[Sent]:
    """The second release of each client, in the order of `sent`. Raises UsageError where it does not fit the first."""
    if again is None:
        return list(sent.values())
    titled = {one.title or name: one for name, one in again.items()}
    if set(titled) != {one.title or name for name, one in sent.items()} or not all(
        one.pooled for one in again.values()
    ):
        raise UsageError(
            f"--again must hold one vector of each of the same clients; the first release has {len(sent)}, this one "
            f"{len(again)}."
        )
    second = [titled[one.title or name] for name, one in sent.items()]
    for one, other in zip(sent.values(), second, strict=True):
        ours, theirs = (len(side.artifact.tensors()["mean"]) for side in (one, other))
        if ours != theirs:
            raise UsageError(
                f"--again has {2 * theirs} numbers per client, the first release {2 * ours}; both must be of one "
                "encoder."
            )
    if _reordered([one.artifact for one in sent.values()], [one.artifact for one in second]):
        raise UsageError(
            "--again holds the vectors of the first release in another order; list the clients in one order."
        )
    return second


def _reordered(first: Sequence[Artifact], second: Sequence[Artifact]) -> bool:
    """Whether the second artifacts are the first ones, and not each in its own place."""
    ours, theirs = (
        [tuple(torch.cat(list(one.tensors().values())).tolist()) for one in side] for side in (first, second)
    )
    return ours != theirs and Counter(ours) == Counter(theirs)


def sizes_of(given: Sequence[int], table: CandidateTable | None, vectors: int) -> Sequence[int]:
    """The number of images behind each vector: as `given`, one for all or one each, else counted in the truth.

    Empty where neither says. Raises UsageError for numbers that do not fit."""
    if table is not None and table.owner is not None:
        if int(table.owner.max()) > vectors:
            raise UsageError(f"the truth names vector {int(table.owner.max())}; there are {vectors}.")
        counted = [int(table.members(number).sum()) for number in range(vectors)]
        if not given and not all(counted):
            raise UsageError(f"the truth names no image of vector {counted.index(0) + 1}; give --images-per-client.")
        given = given or counted
    if given and (len(given) not in (1, vectors) or min(given) < 1):
        raise UsageError(
            f"--images-per-client must be one number, or one for each of {vectors} vectors, all at least 1; got "
            f"{','.join(map(str, given))}."
        )
    return list(given) * vectors if len(given) == 1 else list(given)
