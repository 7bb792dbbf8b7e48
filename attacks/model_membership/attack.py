"""Membership inference on models: whether an image was in the training set of a client's model or the global model.

LiRA (Carlini et al., S&P 2022, arXiv:2112.03570) and RMIA (Zarifzadeh et al., ICML 2024, arXiv:2312.03262), offline and
online, with two baselines: the loss (Yeom et al., CSF 2018) and the calibrated loss (Watson et al., 2022); formulas in
fdgsec.attacks.statistics.lira_rmia. The models that the adversary reads depend on its position. A server has every
client's update. A client of FedDAG has the perturbed teachers of the others, which it evaluates under eq. (5), without
their owners' names. Every party has the global model. Reference models are further runs of the target's public method
(fdgsec.attacks.statistics.reference_federations)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.model_membership.control import planted_models
from fdgsec.attacks.model_membership.membership_scores import ModelOutputs, ReferenceOutputs, membership_scores
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED_ON_MODELS
from fdgsec.attacks.statistics.reference_federations import (
    Pool,
    Reference,
    auxiliary_run,
    check_sizes,
    global_model,
    peer_models,
    pools_of,
    reference_runs,
    rounds_of,
)
from fdgsec.federation.artifacts import ModelState
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable

FULL = 16
"""Default number of reference federations."""
CONTROLS = 4
"""Reference federations of the negative control, which tests for an effect and does not measure its size."""
Owner = Literal["client", "peer", "global"]


@dataclass(frozen=True, kw_only=True)
class ModelMembership:
    """Membership of `candidates` training images and as many others, by `references` reference federations.

    Each reference federation costs a training run on half of the candidates and a quarter of the auxiliary images,
    hence only the full profile uses them by default (None: 16 there). `largest` is the maximum number of training
    images of one reference client."""

    name: ClassVar[str] = "model-membership"
    reads: ClassVar[frozenset[str]] = frozenset({"ModelState"})
    needs: ClassVar[frozenset[str]] = frozenset()
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED_ON_MODELS
    keeps: ClassVar[Literal["models=last", "models=all"]] = "models=last"
    candidates: int = 200
    references: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        check_sizes(references=self.references, candidates=self.candidates, largest=self.largest)

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about the trained run. Raises UsageError in the quick profile without `references`."""
        if self.references is None and facts.profile == "quick":
            raise UsageError(
                f"runs in the full profile only: it trains {FULL} reference federations; or set "
                "attacks.model-membership.references"
            )
        facts.check_images()
        return [Question(kind="trained", count=self.candidates)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Score every candidate of every client by every test, for every model that was seen."""
        seen = {number: _models_of(cases[number]) for number in _trained_cases(cases)}
        return self._score(seen, cases, knowledge, rng, models=FULL if self.references is None else self.references)

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with the models of a federation that trained on auxiliary images alone in place of those that were
        seen.

        Models of other clients would not do, because each starts from a global model that all of them have trained."""
        asked = _trained_cases(cases)
        pools = pools_of(asked, cases, knowledge, child(rng, "pools"))
        if not pools:
            return []
        rounds = max(rounds_of(cases[number].views[0]) for number in asked)
        other = auxiliary_run(pools, knowledge, most=self.largest, rounds=rounds, rng=child(rng, "other"))
        seen = {number: _models_of_other_run(cases[number], other, number) for number in asked}
        return self._score(seen, cases, knowledge, rng, models=CONTROLS, pools=pools)

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Linear classifiers that interpolate random labels of noise images
        (fdgsec.attacks.model_membership.control)."""
        return planted_models(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report clients of which no model was seen, not even the global one."""
        rows: list[Measurement] = []
        for number in _trained_cases(cases):
            if not _models_of(cases[number]):
                reason = (
                    f"no model that {cases[number].victim} has trained was seen; a longer run, or another adversary"
                )
                rows += unavailable(["auc"], cases[number].slice, reason)
        return rows

    def _score(
        self,
        seen: dict[int, dict[Owner, list[ModelState]]],
        cases: Sequence[Case],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        models: int,
        pools: Sequence[Pool] = (),
    ) -> list[Membership]:
        asked = [number for number, states in seen.items() if states]
        if not asked:
            return []
        pools = pools or pools_of(asked, cases, knowledge, child(rng, "pools"))
        rounds = max(rounds_of(cases[number].views[0]) for number in asked)
        runs = reference_runs(
            pools, knowledge, models=models, most=self.largest, rounds=rounds, rng=child(rng, "references")
        )
        panels = _reference_outputs(pools, seen, runs, knowledge)
        answers = [
            answer
            for pool in pools
            for number, places in pool.places.items()
            for owner, states in seen.get(number, {}).items()
            for answer in _answers(
                number, owner, states, pool, places, panels[_reference_key(owner, number, pool)], knowledge
            )
        ]
        return sorted(answers, key=lambda answer: answer.case)


def _trained_cases(cases: Sequence[Case]) -> list[int]:
    return [number for number, case in enumerate(cases) if case.question == "trained"]


def _models_of(case: Case) -> dict[Owner, list[ModelState]]:
    """The models in a view that the victim has trained, or may have."""
    view = case.views[0]
    own, shared = view.sent(case.victim, ModelState), global_model(view)
    peers = [] if own is not None else peer_models(view)
    found: dict[Owner, list[ModelState]] = {
        "client": [] if own is None else [own], "peer": peers, "global": [] if shared is None else [shared],
    }  # fmt: skip
    return {owner: states for owner, states in found.items() if states}


def _models_of_other_run(case: Case, other: Reference, number: int) -> dict[Owner, list[ModelState]]:
    """The models of another federation in place of those that were seen."""
    seen, theirs = _models_of(case), _models_of(replace(case, views=(other.view,), victim=other.clients[number]))
    if "peer" in seen:
        theirs["peer"] = theirs["client"]
    return {owner: theirs[owner] for owner in seen if owner in theirs}


def _reference_key(owner: Owner, number: int, pool: Pool) -> tuple[str, int]:
    """The key of a question's reference models: all cases of a pool share global ones, client models are per client."""
    return ("global", min(pool.places)) if owner == "global" else ("client", number)


def _reference_outputs(
    pools: Sequence[Pool],
    seen: Mapping[int, Mapping[Owner, Sequence[ModelState]]],
    runs: Iterable[Reference],
    knowledge: Knowledge,
) -> dict[tuple[str, int], ReferenceOutputs]:
    """Query every reference model about its pool, federation by federation."""
    wanted = {
        _reference_key(owner, number, pool): pool
        for pool in pools
        for number in pool.places
        for owner in seen.get(number, {})
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


def _query(state: ModelState, pool: Pool, knowledge: Knowledge) -> ModelOutputs:
    if knowledge.network is None:
        raise UsageError("membership in a model needs the target's architecture; the adversary does not know it.")
    return ModelOutputs.of(knowledge.network(state.state), pool.images, pool.aside)


def _answers(
    number: int,
    owner: Owner,
    states: Sequence[ModelState],
    pool: Pool,
    places: Tensor,
    panel: ReferenceOutputs,
    knowledge: Knowledge,
) -> list[Membership]:
    """Every test's scores; where several models may be the victim's, the maximum over them."""
    found = [membership_scores(_query(state, pool, knowledge), panel, places) for state in states]
    return [
        Membership(
            case=number, slice={"test": test, "model": owner, "references": len(panel.outputs)},
            scores=torch.stack([scores[test] for scores in found]).amax(0),
        )
        for test in found[0]
    ]  # fmt: skip
