"""Membership inference on models: whether an image was in the training set of a client's model or the global model.

LiRA (Carlini et al., S&P 2022, arXiv:2112.03570) and RMIA (Zarifzadeh et al., ICML 2024, arXiv:2312.03262), offline and
online, with two baselines: the loss (Yeom et al., CSF 2018) and the calibrated loss (Watson et al., 2022); formulas in
fdgsec.attacks.statistics.lira_rmia. The models that the adversary reads depend on its position. A server has every
client's update. A client of FedDAG has the perturbed teachers of the others, which it evaluates under eq. (5), without
their owners' names. Every party has the global model. Where the run kept the models of all rounds, a server also reads
a client's updates together, against those of the other clients (FedMIA: Zhu et al., CVPR 2025; round_scores). What
training adds to a client's model, or to the global one, is regressed on gradients of the candidates
(update_regression). Reference models are further runs of the target's public method
(fdgsec.attacks.statistics.reference_federations)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.model_membership.control import planted_models
from fdgsec.attacks.model_membership.image_gradients import AS_THEY_ARE
from fdgsec.attacks.model_membership.label_only import label_only_scores
from fdgsec.attacks.model_membership.membership_scores import ModelOutputs, ReferenceOutputs, membership_scores
from fdgsec.attacks.model_membership.round_scores import RoundModels, evenly_spaced, score_rounds, senders_of_models
from fdgsec.attacks.model_membership.seen_models import Owner, Seen, seen_models, seen_of_other_run
from fdgsec.attacks.model_membership.update_regression import Candidates, Step, regression_scores
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED_ON_MODELS
from fdgsec.attacks.statistics.lira_rmia import log_confidence
from fdgsec.attacks.statistics.reference_federations import (
    Pool,
    Reference,
    auxiliary_run,
    check_sizes,
    global_model,
    pools_of,
    reference_runs,
    rounds_of,
)
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.runtime.errors import CannotRunError, UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership, SetMembership
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.option_checks import check_at_least

CONTROLS = 4
"""Reference federations of the negative control, which tests for an effect and does not measure its size."""
LEAST_CLASSES = 2
"""Classes with which a model's answers can tell images apart."""
LEAST_ROUNDS = 2
"""Rounds after which the global model has been trained and sent."""
SET_TESTS = ("lira", "fedmia loss", "update regression", "head regression")
"""Tests whose scores are averaged over sets of images: those in units of a standard deviation, of a null or of all."""
LEAST_SETS = 2
"""Minimum number of sets of members, and of others, of one client."""


@dataclass(frozen=True, kw_only=True)
class ModelMembership:
    """Membership of `candidates` training images and as many others, by `references` reference federations.

    Each reference federation costs a training run on half of the candidates and a quarter of the auxiliary images; 0
    leaves out what needs them, as the quick profile does. `largest` is the maximum number of training images of one
    reference client. Gradients of single images are compared with the updates of at most `gradient_rounds` rounds; for
    regression, where training augments images, they are means over `views` random views, each also mirrored. `sets` are
    the sizes of sets of images that are asked about together. `tests` may leave all but regression out, which reads no
    answers of models and needs no reference federation. Of at most `victims` clients (None: all) images are asked
    about."""

    name: ClassVar[str] = "model-membership"
    reads: ClassVar[frozenset[str]] = frozenset({"ModelState"})
    needs: ClassVar[frozenset[str]] = frozenset()
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED_ON_MODELS
    keeps: ClassVar[Literal["models=last", "models=all"]] = "models=last"
    candidates: int = 200
    references: int = 16
    largest: int | None = None
    gradient_rounds: int = 5
    views: int = 2
    sets: tuple[int, ...] = (10, 40)
    tests: Literal["all", "regression"] = "all"
    victims: int | None = None

    def __post_init__(self) -> None:
        if self.tests not in ("all", "regression"):
            raise UsageError(f"model-membership has tests all, regression; got {self.tests}.")
        check_sizes(references=self.references or None, candidates=self.candidates, largest=self.largest)
        check_at_least(1, {"gradient_rounds": self.gradient_rounds, "views": self.views})
        check_at_least(1, {"victims": 1 if self.victims is None else self.victims})
        check_at_least(2, {"sets": self.sets})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about the trained run. Raises CannotRunError for fewer than two classes."""
        if facts.classes < LEAST_CLASSES:
            raise CannotRunError("models of one class answer all images alike")
        facts.check_images()
        return [Question(kind="trained", count=self.candidates, clients=self.victims or 0)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Score every candidate of every client by every test, for every model that was seen."""
        seen = {number: seen_models(cases[number]) for number in _trained_cases(cases)}
        return self._score(seen, cases, knowledge, rng, models=self._federations)

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with the models of a federation that trained on auxiliary images alone in place of those that were
        seen.

        Models of other clients would not do, because each starts from a global model that all of them have trained."""
        asked = _trained_cases(cases)
        pools = pools_of(asked, cases, knowledge, child(rng, "pools"))
        if not pools:
            return []
        rounds = max(rounds_of(cases[number].views[0]) for number in asked)
        if not self._federations:  # no test knows how a model of the target's last round answers
            rounds = min(rounds, max(LEAST_ROUNDS, self.gradient_rounds))
        other = auxiliary_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "other"))
        seen = {number: seen_of_other_run(cases[number], other, number) for number in asked}
        models = min(CONTROLS, self._federations)
        return self._score(seen, cases, knowledge, rng, models=models, pools=pools)

    @property
    def _federations(self) -> int:
        """The number of reference federations to train."""
        return 0 if self.tests == "regression" else self.references

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Linear classifiers that interpolate random labels of noise images
        (fdgsec.attacks.model_membership.control)."""
        return planted_models(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report clients that were not asked about, or of which no model was seen, updates without the model before
        them, or beside which no other client's was, and too large sets.

        Clients of one population give one row."""
        asked = _trained_cases(cases)
        rows = self._missing_clients([cases[number] for number in asked])
        for number in asked:
            rows += [*self._missing_models(cases[number]), *self._missing_sets(cases[number])]
        return list({tuple(row.slice.items()): row for row in rows}.values())

    def _missing_models(self, case: Case) -> list[Measurement]:
        """What a test of one client's images could not read."""
        seen, where = seen_models(case), {**case.slice, "model": "client"}
        if not (seen.models or seen.steps):
            reason = f"no model that {case.victim} has trained was seen; a longer run, or another adversary"
            return unavailable(["auc"], case.slice, reason)
        rows: list[Measurement] = []
        if "client" in seen.models and "client" not in seen.steps:
            reason = f"the model that {case.victim} was sent was not seen beside the one that it returned"
            rows += unavailable(["auc"], {**where, "test": "update regression"}, reason)
        if self.tests == "all" and "client" in seen.models and not seen.rounds:
            reason = f"no update of another client was seen beside {case.victim}'s"
            rows += unavailable(["auc"], {**where, "test": "fedmia loss"}, reason)
        if self.tests == "all" and not self._federations:
            rows += unavailable(["auc"], {**case.slice, "test": "lira"}, "no reference federations were trained")
        return rows

    def _missing_clients(self, cases: Sequence[Case]) -> list[Measurement]:
        """The clients whose updates are in the view and whose images nobody is asked about, in one row."""
        if not cases:
            return []
        names, senders = {case.victim for case in cases}, senders_of_models(cases[0].views[0])
        others = senders - names
        if not others or names.isdisjoint(senders):
            return []
        further = "1 further client was" if len(others) == 1 else f"{len(others)} further clients were"
        reason = "none with few images is"
        if self.victims is not None and len(senders) > self.victims:
            reason = f"at most {self.victims} are (attacks.model-membership.victims), and none with few images"
        return unavailable(["auc"], {"clients": "others"}, f"{further} not asked about: {reason}")

    def _missing_sets(self, case: Case) -> list[Measurement]:
        asked = 0 if case.candidates is None else len(case.candidates)
        rows: list[Measurement] = []
        for size in self.sets:
            if asked < 2 * LEAST_SETS * size:
                reason = f"{LEAST_SETS} sets of {size} members and of others need {2 * LEAST_SETS * size} candidates"
                rows += unavailable(["auc"], {**case.slice, "set": size}, f"{reason}; {case.victim} has {asked}")
        return rows

    def _score(
        self,
        seen: Mapping[int, Seen],
        cases: Sequence[Case],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
        pools: Sequence[Pool] = (),
    ) -> list[Membership | SetMembership]:
        asked = [number for number, found in seen.items() if found.models or found.steps]
        if not asked:
            return []
        pools = pools or pools_of(asked, cases, knowledge, child(rng, "pools"))
        rounds = max(rounds_of(cases[number].views[0]) for number in asked)
        runs = reference_runs(
            pools, knowledge, models=models, most=self.largest, rounds=rounds, rng=child(rng, "references")
        )
        panels = _reference_outputs(pools, seen, runs, knowledge) if models else {}
        answers: list[Membership | SetMembership] = []
        for pool in pools if self.tests == "all" else ():
            for number, places in pool.places.items():
                for owner, states in seen[number].models.items():
                    outputs = [_query(state, pool, knowledge) for state in states]
                    if models:
                        panel = panels[_reference_key(owner, number, pool)]
                        found = [membership_scores(each, panel, places) for each in outputs]
                    else:
                        labels = pool.images.labels[places]
                        found = [{"loss": log_confidence(each.pool[places], labels)} for each in outputs]
                    answers += self._answers(number, {"model": owner, "references": models}, _stacked(found))
                    answers += _label_only_answers(number, cases[number], owner, states, knowledge)
        for number in asked:
            if self.tests == "all":
                answers += self._round_answers(number, cases[number], seen[number].rounds, knowledge)
            for owner, steps in seen[number].steps.items():
                drawn = child(rng, "steps", number, owner)
                answers += self._step_answers(number, cases[number], owner, steps, knowledge, drawn)
        return sorted(answers, key=lambda answer: answer.case)

    def _answers(
        self, number: int, where: Mapping[str, str | int], scores: Mapping[str, Tensor]
    ) -> list[Membership | SetMembership]:
        """Every test's scores (models, N), the maximum over the models, and those of sets by a calibrated test."""
        images = [
            Membership(case=number, slice={"test": test, **where}, scores=found.amax(0))
            for test, found in scores.items()
        ]
        sets = [
            SetMembership(case=number, slice={"test": test, **where, "set": size}, scores=scores[test], size=size)
            for test in SET_TESTS
            for size in self.sets
            if test in scores and scores[test].shape[1] >= 2 * LEAST_SETS * size
        ]
        return [*images, *sets]

    def _round_answers(
        self, number: int, case: Case, rounds: Sequence[RoundModels], knowledge: Knowledge
    ) -> list[Membership | SetMembership]:
        """The scores of the tests that read the updates of all rounds; the slice says how many rounds there were."""
        if not rounds or case.candidates is None:
            return []
        found = score_rounds(rounds, case.candidates, _network(knowledge), gradient_rounds=self.gradient_rounds)
        answers: list[Membership | SetMembership] = []
        for test, one in found.items():
            where: dict[str, str | int] = {"model": "client", "rounds": one.rounds}
            answers += self._answers(number, where, {test: one.scores.unsqueeze(0)})
        return answers

    def _step_answers(
        self,
        number: int,
        case: Case,
        owner: Owner,
        steps: Sequence[Step],
        knowledge: Knowledge,
        rng: torch.Generator,
    ) -> list[Membership | SetMembership]:
        """The scores of the tests by regression, averaged over steps; the slice says of how many rounds."""
        if case.candidates is None:
            return []
        everybody = owner == "global"
        most = (2 if everybody else 1) * len(case.candidates)
        others = _population(knowledge, None if everybody else case.domain, most, child(rng, "others"))
        plan = AS_THEY_ARE if knowledge.plan is None else knowledge.plan
        asked = Candidates(
            images=case.candidates, others=others, plan=plan, count=self.views, objective=knowledge.objective
        )
        scored: dict[str, list[tuple[Step, Tensor]]] = {}
        for place, step in enumerate(tracked(evenly_spaced(steps, self.gradient_rounds), f"regressing {case.victim}")):
            for test, found in regression_scores(step, asked, _network(knowledge), child(rng, place)).items():
                scored.setdefault(test, []).append((step, found))
        answers: list[Membership | SetMembership] = []
        for test, each in scored.items():
            models = {id(model) for step, _ in each for model in (step.before, step.after)}
            where: dict[str, str | int] = {"model": owner, "rounds": len(models) if everybody else len(each)}
            answers += self._answers(number, where, {test: _mean_of_rounds([found for _, found in each]).unsqueeze(0)})
        return answers


def _mean_of_rounds(scores: Sequence[Tensor]) -> Tensor:
    """The mean of several rounds' scores (N,), each in units of its deviation: one that diverged counts no more."""
    scaled = [one / one.std() if len(one) > 1 and float(one.std()) > 0 else one for one in scores]
    return torch.stack(scaled).mean(0)


def _population(knowledge: Knowledge, domain: str | None, most: int, rng: torch.Generator) -> DomainDataset:
    """At most `most` auxiliary images, of `domain` where the adversary has some of it."""
    images = knowledge.public_images()
    if domain in images.domain_names and len(of_domain := images.of_domain(str(domain))):
        images = of_domain
    return images.subset(torch.randperm(len(images), generator=rng)[:most])


def _trained_cases(cases: Sequence[Case]) -> list[int]:
    return [number for number, case in enumerate(cases) if case.question == "trained"]


def _reference_key(owner: Owner, number: int, pool: Pool) -> tuple[str, int]:
    """The key of a question's reference models: all cases of a pool share global ones, client models are per client."""
    return ("global", min(pool.places)) if owner == "global" else ("client", number)


def _reference_outputs(
    pools: Sequence[Pool],
    seen: Mapping[int, Seen],
    runs: Iterable[Reference],
    knowledge: Knowledge,
) -> dict[tuple[str, int], ReferenceOutputs]:
    """Query every reference model about its pool, federation by federation."""
    wanted = {
        _reference_key(owner, number, pool): pool
        for pool in pools
        for number in pool.places
        for owner in seen[number].models
    }
    outputs: dict[tuple[str, int], list[ModelOutputs]] = {key: [] for key in wanted}
    members: dict[tuple[str, int], list[Tensor]] = {key: [] for key in wanted}
    for run in runs:
        for (kind, number), pool in wanted.items():
            everybody = kind == "global"
            state = global_model(run.view) if everybody else run.view.sent(run.clients[number], ModelState)
            if state is None:
                raise UsageError("a reference federation sent no model; membership needs what the target would send.")
            outputs[kind, number].append(_query(state, pool, knowledge))
            members[kind, number].append(run.trained_on(pool) if everybody else run.members[number])
    return {
        key: ReferenceOutputs(
            outputs=outputs[key],
            members=torch.stack(members[key]),
            labels=pool.images.labels,
            aside_labels=pool.aside.labels,
        )
        for key, pool in wanted.items()
    }


def _network(knowledge: Knowledge) -> Callable[[Mapping[str, Tensor]], Classifier]:
    if knowledge.network is None:
        raise UsageError("membership in a model needs the target's architecture; the adversary does not know it.")
    return knowledge.network


def _query(state: ModelState, pool: Pool, knowledge: Knowledge) -> ModelOutputs:
    return ModelOutputs.of(_network(knowledge)(state.state), pool.images, pool.aside)


def _stacked(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The scores of every test under several models, (models, N)."""
    return {test: torch.stack([scores[test] for scores in found]) for test in found[0]}


def _label_only_answers(
    number: int, case: Case, owner: Owner, states: Sequence[ModelState], knowledge: Knowledge
) -> list[Membership]:
    """The tests that see answered classes alone; where several models may be the victim's, the maximum over them."""
    if case.candidates is None:
        return []
    found = [label_only_scores(_network(knowledge)(state.state), case.candidates) for state in states]
    return [
        Membership(
            case=number, slice={"test": test, "model": owner, "queries": queries},
            scores=torch.stack([scores[test][1] for scores in found]).amax(0),
        )
        for test, (queries, _) in found[0].items()
    ]  # fmt: skip
