"""Membership in FedDAG's generators: does what a client's generator answers to an image tell that it was trained on it?

FedDAG's section V-A argues that generators add no risk because a classifier that is trained on their perturbations does badly;
that says nothing of their weights, which go to the server every round. Here each candidate is shown to the generator that
the server gave to the client and to the one that it got back: by how much did the size of the answer change (`response`),
and by how much the generator's own loss (`loss`: Algorithm 1, line 3)? What is normal for an image comes from reference
generators, which the target's public method trains on images that the adversary holds; LiRA's offline test compares
(fdgsec.attacks.generator_leakage.response). The loss needs a model, and the client's own may remember the images itself, which is
model-membership's question: in its place stands one that the adversary has trained on auxiliary images alone.

Two more questions are asked of the same generators: of which domain its client's images are (fdgsec.attacks.generator_leakage.fingerprint),
and whether a perturbation shows its image, more so than one of a generator that never trained
(fdgsec.attacks.generator_leakage.decoder)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.generator_leakage.control import planted_generators
from fdgsec.attacks.generator_leakage.decoder import decoding
from fdgsec.attacks.generator_leakage.fingerprint import (
    change_of,
    fingerprints,
    of_all_domains,
    parted,
    scarcity,
)
from fdgsec.attacks.generator_leakage.response import Interview, Objective, Training, membership_by_change
from fdgsec.attacks.statistics.reference_models import (
    Pool,
    Reference,
    check_sizes,
    disjoint_run,
    pools_of,
    reference_runs,
    rounds_of,
)
from fdgsec.federation.artifacts import ModelState
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.attack import (
    Answer,
    Answers,
    Case,
    Knowledge,
    Labels,
    Membership,
    PositiveControl,
    Prediction,
    Question,
    TargetFacts,
)
from fdgsec.threats.judging.groups import unavailable

CANDIDATES = {"quick": 100, "full": 250}
CONTROLS = 4
"""Reference federations of the negative control, which asks whether there is an effect and not how strong it is."""
FINGERPRINTS = 4
"""Reference federations of the fingerprint, each with one client per domain; half as many for its negative control."""
TOGETHER = {"domain": "all", "test": "fingerprint"}
"""The slice of domain guesses: within one domain there would be nothing to tell apart."""


@dataclass(frozen=True, kw_only=True)
class GeneratorLeakage:
    """Membership of `candidates` training images and as many others (None: 100, and 250 in the full profile).

    Each of `references` reference federations has a client per client that is asked about, of about `largest` images. `a`
    and `margin` are those of the target."""

    name: ClassVar[str] = "generator-leakage"
    reads: ClassVar[frozenset[str]] = frozenset({"GeneratorState"})
    needs: ClassVar[frozenset[str]] = frozenset()
    keeps: ClassVar[Literal["models=last", "models=all"]] = "models=last"
    candidates: int | None = None
    references: int = 16
    largest: int = 64
    a: float = 0.3
    margin: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(references=self.references, candidates=self.candidates, largest=self.largest)
        Objective(a=self.a, margin=self.margin)

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about the trained run. Raises UsageError for a client, which receives no other client's generator."""
        facts.check_images()
        if "auxiliary" not in facts.knows:
            raise UsageError("reads the generators that clients send; another client receives only their mean")
        count = CANDIDATES[facts.profile] if self.candidates is None else self.candidates
        return [Question(kind="trained", count=count)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Ask every generator that was seen before and after it trained: whose images, of which domain, and what they show."""
        seen = _seen(cases)
        if not seen:
            return []
        trained = {number: _training(case) for number, case in seen.items()}
        answers = self._membership(trained, seen, knowledge, rng, models=self.references)
        shown = {number: case.candidates for number, case in seen.items() if case.candidates is not None}
        decoders = decoding(knowledge.public_images(), child(rng, "decoder"))
        return [*answers, *self._domains(trained, seen, knowledge, rng), *decoders.answers(trained, shown)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer from generators that trained on auxiliary images alone, and from perturbations of other images.

        Domains are guessed from generators of clients that hold all of them alike."""
        seen = _seen(cases)
        if not seen:
            return []
        trained = {number: _training(case) for number, case in seen.items()}
        answers = self._membership(None, seen, knowledge, rng, models=CONTROLS)
        shown = {number: case.candidates for number, case in seen.items() if case.candidates is not None}
        decoders = decoding(knowledge.public_images(), child(rng, "decoder"))
        return [*answers, *self._domains(None, seen, knowledge, rng), *decoders.exchanged(trained, shown)]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Generators that were fitted to noise and to stripes, and let their images through (fdgsec.attacks.generator_leakage.control)."""
        return planted_generators(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Say whose generator tells nothing: not seen, not trained yet, or another network than FedDAG's."""
        rows = [
            row
            for case in cases
            if case.question == "trained" and (reason := _obstacle(case))
            for row in unavailable(["auc"], case.slice, reason)
        ]
        reason = scarcity(knowledge.auxiliary)
        if reason and _seen(cases):
            rows += unavailable(["balanced_accuracy", "accuracy"], TOGETHER, reason)
        return rows

    def _membership(
        self,
        trained: dict[int, Training] | None,
        seen: dict[int, Case],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
    ) -> list[Membership]:
        """Score all candidates by the generators `trained`; None: by those of a federation on auxiliary images alone."""
        asked = {number: case for number, case in seen.items() if _asks_who(case)}
        if not asked:
            return []
        pools = pools_of(list(asked), seen, knowledge, child(rng, "pools"))
        if trained is None:
            rounds = max(rounds_of(case.views[0]) for case in asked.values())
            other = disjoint_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "other"))
            trained = {number: _trained(other, number) for number in asked}
        return self._scored(trained, asked, pools, knowledge, child(rng, "references"), models=models)

    def _domains(
        self,
        trained: dict[int, Training] | None,
        seen: dict[int, Case],
        knowledge: Knowledge,
        rng: torch.Generator,
    ) -> list[Answer]:
        """Guess the domain of every client by references of one domain each; None: of clients that hold all of them."""
        if knowledge.auxiliary is None or scarcity(knowledge.auxiliary):
            return []  # `missing` says why
        parts = parted(knowledge.auxiliary, child(rng, "probes"))
        rounds = max(rounds_of(case.views[0]) for case in seen.values())
        references = FINGERPRINTS
        if trained is None:
            references = FINGERPRINTS // 2
            mixed = of_all_domains(
                parts, knowledge, clients=len(seen), most=self.largest, rounds=rounds, rng=child(rng, "mixed")
            )
            trained = dict(zip(seen, mixed, strict=True))
        known = fingerprints(
            parts, knowledge, references=references, most=self.largest, rounds=rounds, rng=child(rng, "fingerprints")
        )
        answers: list[Answer] = [
            Labels(
                case=number, predicted=torch.tensor([known.nearest(change_of(trained[number], parts.probes))]),
                of="domains", classes=len(parts.pools), slice=TOGETHER,
            )
            for number, case in seen.items()
            if case.question == "trained"
        ]  # fmt: skip
        expected = known.left_out_accuracy()
        return [
            *answers, Prediction(case=next(iter(seen)), name="reference_accuracy", value=expected, slice=TOGETHER),
        ]  # fmt: skip

    def _scored(
        self,
        trained: dict[int, Training],
        cases: dict[int, Case],
        pools: Sequence[Pool],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
    ) -> list[Membership]:
        rounds = max(rounds_of(case.views[0]) for case in cases.values())
        bystander = disjoint_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "bystander"))
        runs = reference_runs(pools, knowledge, models=models, most=self.largest, rounds=rounds, rng=rng)
        places = {number: (pool, rows) for pool in pools for number, rows in pool.places.items()}
        asked = {number: self._interview(number, bystander, knowledge, *places[number]) for number in cases}
        found: dict[int, list[Mapping[str, Tensor]]] = {number: [] for number in cases}
        members: dict[int, list[Tensor]] = {number: [] for number in cases}
        for run in runs:
            for number, interview in asked.items():
                found[number].append(interview.changes(_trained(run, number)))
                members[number].append(run.members[number][places[number][1]])
        return [
            Membership(
                case=number,
                slice={"test": test, "references": models},
                scores=membership_by_change(
                    target, torch.stack([mine[test] for mine in found[number]]), torch.stack(members[number])
                ),
            )
            for number, interview in asked.items()
            for test, target in interview.changes(trained[number]).items()
        ]

    def _interview(
        self, number: int, bystander: Reference, knowledge: Knowledge, pool: Pool, rows: Tensor
    ) -> Interview:
        """What is asked of a generator about a case's candidates, under the model of the bystander in the client's place."""
        state = bystander.view.sent(bystander.clients[number], ModelState)
        if state is None or knowledge.network is None:
            raise UsageError("the generator's loss needs a model of the target's architecture; there is none.")
        return Interview(
            images=pool.images.subset(rows),
            model=knowledge.network(state.state),
            objective=Objective(a=self.a, margin=self.margin),
        )


def _asks_who(case: Case) -> bool:
    """Whether membership is asked of a case: of the planted ones, some are about domains or pictures alone."""
    return case.question == "trained" and case.candidates is not None


def _seen(cases: Sequence[Case]) -> dict[int, Case]:
    """By number, the cases whose generator was seen before and after it trained."""
    return {number: case for number, case in enumerate(cases) if not _obstacle(case)}


def _obstacle(case: Case) -> str:
    """Why there is nothing to read in a case; "" where there is."""
    try:
        found = Training.of(case.views[0], case.victim)
    except UsageError as error:
        return str(error)
    return "" if found else f"the generator of {case.victim} was not seen both before and after it trained"


def _training(case: Case) -> Training:
    found = Training.of(case.views[0], case.victim)
    assert found is not None  # its obstacles were asked for
    return found


def _trained(run: Reference, number: int) -> Training:
    found = Training.of(run.view, run.clients[number])
    if found is None:
        raise UsageError("a reference federation sent no generator; its rounds are those of the target.")
    return found
