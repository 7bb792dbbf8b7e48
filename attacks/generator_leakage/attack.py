"""Generator leakage: membership inference, domain inference and reconstruction from FedDAG's perturbation generators.

FedDAG's section V-A argues that generators add no risk because a classifier trained on their perturbations performs
poorly. That says nothing about their weights, which go to the server every round. Here each candidate is passed through
the generator that the server sent to the client and through the one that the client returned. The test statistics are
the change in the size of the output (`response`) and the change in the generator's own loss (`loss`: Algorithm 1, line
3). Reference generators, which the target's public method trains on images that the adversary holds, give the null
distribution of each image; the test is LiRA's offline test (fdgsec.attacks.generator_leakage.generator_membership).
The loss needs a model. The client's own model may itself have memorized the images, which is the subject of model-
membership, so a model trained on auxiliary images alone is used instead.

The same generators are used for two more attacks: inferring the domain of the client's images
(fdgsec.attacks.generator_leakage.generator_domain_inference), and reconstructing an image from its perturbation,
compared with an untrained generator (fdgsec.attacks.generator_leakage.decoder)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.generator_leakage.control import planted_generators
from fdgsec.attacks.generator_leakage.decoder import prepare_decoders
from fdgsec.attacks.generator_leakage.generator_domain_inference import (
    fingerprints,
    mixed_domain_updates,
    output_change,
    split_auxiliary,
    too_few_images,
)
from fdgsec.attacks.generator_leakage.generator_membership import (
    GeneratorProbe,
    GeneratorUpdate,
    Objective,
    membership_by_change,
)
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED_ON_MODELS
from fdgsec.attacks.statistics.reference_federations import (
    Pool,
    Reference,
    auxiliary_run,
    check_sizes,
    pools_of,
    reference_runs,
    rounds_of,
)
from fdgsec.federation.artifacts import ModelState
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels, Membership, Prediction
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable

CANDIDATES = {"quick": 100, "full": 250}
CONTROLS = 4
"""Reference federations of the negative control, which tests for an effect and does not measure its size."""
FINGERPRINTS = 4
"""Reference federations of the fingerprint, each with one client per domain; half as many for its negative control."""
DOMAIN_SLICE = {"domain": "all", "test": "fingerprint"}
"""The slice of domain predictions: all domains are judged together."""


@dataclass(frozen=True, kw_only=True)
class GeneratorLeakage:
    """Membership of `candidates` training images and as many others (None: 100, and 250 in the full profile).

    Each of `references` reference federations has one client per victim, of about `largest` images. `a` and `margin`
    are those of the target."""

    name: ClassVar[str] = "generator-leakage"
    reads: ClassVar[frozenset[str]] = frozenset({"GeneratorState"})
    needs: ClassVar[frozenset[str]] = frozenset()
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED_ON_MODELS
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
        """Test membership, predict the domain, and reconstruct images, for every client whose generators were seen."""
        seen = _answerable(cases)
        if not seen:
            return []
        trained = {number: _training(case) for number, case in seen.items()}
        answers = self._membership(trained, seen, knowledge, rng, models=self.references)
        shown = {number: case.candidates for number, case in seen.items() if case.candidates is not None}
        decoders = prepare_decoders(knowledge.public_images(), child(rng, "decoder"))
        return [*answers, *self._domains(trained, seen, knowledge, rng), *decoders.answers(trained, shown)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer from generators trained on auxiliary images alone, and from perturbations of other images.

        Domains are predicted from generators of clients that hold all domains in equal proportion."""
        seen = _answerable(cases)
        if not seen:
            return []
        trained = {number: _training(case) for number, case in seen.items()}
        answers = self._membership(None, seen, knowledge, rng, models=CONTROLS)
        shown = {number: case.candidates for number, case in seen.items() if case.candidates is not None}
        decoders = prepare_decoders(knowledge.public_images(), child(rng, "decoder"))
        return [*answers, *self._domains(None, seen, knowledge, rng), *decoders.exchanged(trained, shown)]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Generators that memorize noise images, stripes as domains, and one generator that passes its image
        through."""
        return planted_generators(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report victims whose generator cannot be used: not seen, not trained yet, or of another architecture than
        FedDAG's."""
        rows = [
            row
            for case in cases
            if case.question == "trained" and (reason := _obstacle(case))
            for row in unavailable(["auc"], case.slice, reason)
        ]
        reason = too_few_images(knowledge.auxiliary)
        if reason and _answerable(cases):
            rows += unavailable(["balanced_accuracy", "accuracy"], DOMAIN_SLICE, reason)
        return rows

    def _membership(
        self,
        trained: dict[int, GeneratorUpdate] | None,
        seen: dict[int, Case],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
    ) -> list[Membership]:
        """Score all candidates by the generators `trained`; None: by those of a federation on auxiliary images
        alone."""
        asked = {number: case for number, case in seen.items() if _asks_membership(case)}
        if not asked:
            return []
        pools = pools_of(list(asked), seen, knowledge, child(rng, "pools"))
        if trained is None:
            rounds = max(rounds_of(case.views[0]) for case in asked.values())
            other = auxiliary_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "other"))
            trained = {number: _train_federation(other, number) for number in asked}
        return self._score(trained, asked, pools, knowledge, child(rng, "references"), models=models)

    def _domains(
        self,
        trained: dict[int, GeneratorUpdate] | None,
        seen: dict[int, Case],
        knowledge: Knowledge,
        rng: torch.Generator,
    ) -> list[Answer]:
        """Predict each client's domain with single-domain references; `trained` None: for clients that hold all
        domains."""
        if knowledge.auxiliary is None or too_few_images(knowledge.auxiliary):
            return []  # `missing` says why
        parts = split_auxiliary(knowledge.auxiliary, child(rng, "probes"))
        rounds = max(rounds_of(case.views[0]) for case in seen.values())
        references = FINGERPRINTS
        if trained is None:
            references = FINGERPRINTS // 2
            mixed = mixed_domain_updates(
                parts, knowledge, clients=len(seen), most=self.largest, rounds=rounds, rng=child(rng, "mixed")
            )
            trained = dict(zip(seen, mixed, strict=True))
        known = fingerprints(
            parts, knowledge, references=references, most=self.largest, rounds=rounds, rng=child(rng, "fingerprints")
        )
        answers: list[Answer] = [
            Labels(
                case=number, predicted=torch.tensor([known.nearest(output_change(trained[number], parts.probes))]),
                of="domains", classes=len(parts.pools), slice=DOMAIN_SLICE,
            )
            for number, case in seen.items()
            if case.question == "trained"
        ]  # fmt: skip
        expected = known.left_out_accuracy()
        return [
            *answers, Prediction(case=next(iter(seen)), name="reference_accuracy", value=expected, slice=DOMAIN_SLICE),
        ]  # fmt: skip

    def _score(
        self,
        trained: dict[int, GeneratorUpdate],
        cases: dict[int, Case],
        pools: Sequence[Pool],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
    ) -> list[Membership]:
        rounds = max(rounds_of(case.views[0]) for case in cases.values())
        bystander = auxiliary_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "bystander"))
        runs = reference_runs(pools, knowledge, models=models, most=self.largest, rounds=rounds, rng=rng)
        places = {number: (pool, rows) for pool in pools for number, rows in pool.places.items()}
        asked = {number: self._probe(number, bystander, knowledge, *places[number]) for number in cases}
        found: dict[int, list[Mapping[str, Tensor]]] = {number: [] for number in cases}
        members: dict[int, list[Tensor]] = {number: [] for number in cases}
        for run in runs:
            for number, interview in asked.items():
                found[number].append(interview.changes(_train_federation(run, number)))
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

    def _probe(
        self, number: int, bystander: Reference, knowledge: Knowledge, pool: Pool, rows: Tensor
    ) -> GeneratorProbe:
        """The queries to a generator about a case's candidates, under the bystander's model in place of the
        client's."""
        state = bystander.view.sent(bystander.clients[number], ModelState)
        if state is None or knowledge.network is None:
            raise UsageError("the generator's loss needs a model of the target's architecture; there is none.")
        return GeneratorProbe(
            images=pool.images.subset(rows),
            model=knowledge.network(state.state),
            objective=Objective(a=self.a, margin=self.margin),
        )


def _asks_membership(case: Case) -> bool:
    """Whether a case asks about membership. Some cases of the positive control ask about domains or reconstructions
    only."""
    return case.question == "trained" and case.candidates is not None


def _answerable(cases: Sequence[Case]) -> dict[int, Case]:
    """The cases, by number, whose generator was seen before and after training."""
    return {number: case for number, case in enumerate(cases) if not _obstacle(case)}


def _obstacle(case: Case) -> str:
    """The reason why a case cannot be answered; "" if it can."""
    try:
        found = GeneratorUpdate.of(case.views[0], case.victim)
    except UsageError as error:
        return str(error)
    return "" if found else f"the generator of {case.victim} was not seen both before and after it trained"


def _training(case: Case) -> GeneratorUpdate:
    found = GeneratorUpdate.of(case.views[0], case.victim)
    assert found is not None  # `_obstacle` was checked
    return found


def _train_federation(run: Reference, number: int) -> GeneratorUpdate:
    found = GeneratorUpdate.of(run.view, run.clients[number])
    if found is None:
        raise UsageError("a reference federation sent no generator; its rounds are those of the target.")
    return found
