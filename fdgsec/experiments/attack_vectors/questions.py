"""A question source for given style vectors, without a run to simulate or further images of the clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.attack_vectors.given_questions import GivenVectors
from fdgsec.experiments.attack_vectors.read_vectors import Listed, Sent
from fdgsec.experiments.simulated_runs.simulator import Cases, blinded
from fdgsec.federation.wire import SERVER, Message
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Attack, Case, Question, QuestionKind, Truth

MOST = 1000
"""Maximum number of public images that serve as candidates without a truth file."""
BEHIND = 300
"""Maximum number of true images per pooled style, to which sets of reconstructions are compared."""
READERS_OF_POOLED = ("membership", "set-reconstruction", "style-inversion")
"""Attacks that apply to a single pooled style, without other clients to compare it with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorQuestions:
    """The `sent` vectors by client, and the candidate `images` in random order.

    `places` (n,) is the position in `images` of each image of the truth. `first` holds the first question of each kind
    per attack: only that one is answered, since sizes cannot be varied. `given` answers questions about the vectors
    alone, where every one is a client's."""

    sent: Mapping[str, Sent]
    truth: Listed | None
    images: DomainDataset | None
    places: Tensor
    given: GivenVectors | None = None
    first: dict[tuple[str, QuestionKind], Question] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sent: Mapping[str, Sent],
        truth: Listed | None,
        public: DomainDataset | None,
        *,
        seed: int,
        given: GivenVectors | None = None,
    ) -> "VectorQuestions":
        """Take the truth's images as candidates, else public ones. Raises UsageError if rows and images mismatch."""
        asked = public if truth is None else truth.images
        if asked is None:
            return cls(sent=sent, truth=None, images=None, places=torch.empty(0, dtype=torch.int64), given=given)
        if truth is not None:
            _check_behind(sent, truth)
        order = torch.randperm(len(asked), generator=stream(seed, "world", "candidates of vectors"))
        order = order if truth is not None else order[:MOST]
        return cls(sent=sent, truth=truth, images=asked.subset(order), places=order.argsort(), given=given)

    @property
    def names(self) -> Mapping[str, str]:
        """The name of each candidate, by its blinded name."""
        if self.images is None:
            return {} if self.given is None else self.given.candidate_names
        return dict(zip(blinded(self.images).ids, self.images.ids, strict=True))

    @property
    def pooled(self) -> bool:
        """Whether the vectors are styles pooled over images."""
        return any(one.pooled for one in self.sent.values())

    @property
    def placed(self) -> bool:
        """Whether the domains of the images are known; for pooled styles, whether each client has a single one."""
        if self.truth is None or not self.truth.placed:
            return False
        return not self.pooled or all(self._domain(one) != "mixed" for one in self.sent.values())

    @property
    def sized(self) -> bool:
        """Whether the number of images in a pooled style is known."""
        return self.pooled and (self.truth is not None or (self.given is not None and bool(self.given.sizes)))

    def cases(self, question: Question, attack: Attack) -> Cases:
        """Return one case per client for the first question of each kind that the vectors answer."""
        if question.kind == "given":
            return [] if self.given is None else self.given.cases(question)
        if not self._answers(question, attack):
            return []
        if self.first.setdefault((attack.name, question.kind), question) != question:
            return []
        return [self._case(question, name, one) for name, one in self.sent.items()]

    def gap(self, question: Question, attack: Attack) -> str:
        """Return why the question is not answered; empty if it is."""
        if question.kind == "given":
            return ""
        if not self._answers(question, attack):
            return "needs runs of the method that produced these vectors, or other images of the clients"
        if question.kind != "released" and self.images is None:
            return "needs candidate images: give --truth, or public images with --dataset"
        return ""

    def _answers(self, question: Question, attack: Attack) -> bool:
        if question.kind == "released":
            return bool(not question.gallery or self.images is not None)
        if question.kind == "rounds":
            return not self.pooled and question.rounds == 1 and not question.scheme and self.images is not None
        return question.kind == "resampled_clients" and self.pooled and attack.name in READERS_OF_POOLED

    def _case(self, question: Question, name: str, one: Sent) -> tuple[Case, Truth]:
        message = Message(round=0, stage="share", sender=name, receiver=SERVER, artifact=one.artifact)
        domain = self._domain(one) if self.placed else None
        asks = question.kind != "released" or question.gallery
        where: dict[str, str | int] = {"domain": domain or "unknown"}
        if self.truth is not None and self.sized:
            where["n_per_client"] = len(self.behind(one))
        if self.images is not None and question.kind == "resampled_clients" and question.gallery:
            where["gallery"] = len(self.images)
        case = Case(
            question=question.kind, views=(View(messages=(message,)),), victim=name, slice=where, domain=domain,
            records=len(self.behind(one)) if self.truth is not None and self.sized else None,
            candidates=None if self.images is None or not asks else blinded(self.images),
        )  # fmt: skip
        return case, Truth() if self.truth is None else self._truth(question, one, self.truth)

    def behind(self, one: Sent) -> Tensor:
        """The positions in the truth of the images in a client's release."""
        assert self.truth is not None
        return self.truth.behind if one.pooled else self.truth.behind[one.rows]

    def _truth(self, question: Question, one: Sent, truth: Listed) -> Truth:
        behind = self.behind(one)
        members = torch.zeros(len(truth.images), dtype=torch.bool)
        members[self.places[behind]] = True
        images, some = truth.images.subset(behind), torch.arange(len(behind))[:BEHIND]
        domains = images.domains if truth.placed else None
        if one.pooled:
            majority = None if domains is None else torch.bincount(domains).argmax().reshape(1)
            return Truth(members=members, domains=majority, images=images.pixels(some))
        return Truth(
            members=members if question.kind == "rounds" else None, rows=self.places[behind], images=images.pixels(),
            labels=images.labels if truth.labeled else None, domains=domains,
        )  # fmt: skip

    def _domain(self, one: Sent) -> str:
        assert self.truth is not None
        found = self.truth.images.domains[self.behind(one)].unique()
        return str(self.truth.images.domain_names[int(found[0])]) if len(found) == 1 else "mixed"


def _check_behind(sent: Mapping[str, Sent], truth: Listed) -> None:
    """Raise UsageError if the truth's members cannot be the images of the vectors."""
    rows = sum(len(one.rows) for one in sent.values())
    if any(one.pooled for one in sent.values()):
        if len(sent) > 1:
            raise UsageError(
                "a truth file describes one pooled style; these vectors hold several. Give one file per client."
            )
        if not len(truth.behind):
            raise UsageError("the truth names no member; mark the images of the pooled style with member 1.")
    elif len(truth.behind) != rows:
        raise UsageError(
            f"the truth names {len(truth.behind)} members, but the file has {rows} rows; list the image of every row "
            "in the same order, and mark other images with member 0."
        )
