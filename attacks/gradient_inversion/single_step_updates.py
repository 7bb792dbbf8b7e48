"""Single-step updates: the gradient and labels of one batch, or the reason why an update is not a single step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from fdgsec.attacks.gradient_inversion.batch_norm_leakage import Statistic, batch_statistics
from fdgsec.attacks.gradient_inversion.gradient_matching import Statistics, feasible, recover_labels, step_gradient
from fdgsec.attacks.gradient_inversion.head_features import expected_features
from fdgsec.federation.artifacts import HeadGradient, ModelState
from fdgsec.federation.wire import SERVER
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """A client's model as it was `given` in `round` of `rounds`, counted from 0, and as it was `returned`."""

    given: ModelState
    returned: ModelState
    round: int
    rounds: int

    @classmethod
    def of(cls, view: View, client: str) -> Self | None:
        """Find both in the last round in which the client sent a model, None where one of them was not seen."""
        states = [m for m in view.messages if type(m.artifact) is ModelState]
        sent = [m for m in states if m.stage == "update" and m.sender == client]
        if not sent:
            return None
        last = max(m.round for m in sent)
        given = [m for m in states if m.stage == "model" and m.sender == SERVER and m.receiver == client]
        before = next((m.artifact for m in given if m.round == last), None)
        after = next(m.artifact for m in sent if m.round == last)
        if not isinstance(before, ModelState) or not isinstance(after, ModelState):
            return None
        rounds = 1 + max(m.round for m in view.messages)
        return cls(given=before, returned=after, round=last, rounds=rounds)


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedStep:
    """One observed step of SGD: the model before it, the gradient, and the labels recovered from it, sorted.

    `statistics` is what the client's batch norm normalized by. For "batch", `norms` holds the batch's statistics by
    layer. `expected` (K, d) are the mean features of the adversary's images of each class, where the gradient is the
    head's alone."""

    model: Classifier
    gradient: Mapping[str, Tensor]
    labels: Tensor
    statistics: Statistics
    norms: Mapping[str, Statistic]
    expected: Tensor | None = None


def observed_step(case: Case, knowledge: Knowledge) -> ObservedStep | str:
    """Invert the victim's last update in the case's view, or return the reason why it is not a batch's gradient."""
    if case.question == "head_gradients":
        return _observed_head(case, knowledge)
    update = Update.of(case.views[0], case.victim)
    if update is None:
        return f"no update of {case.victim} was seen beside the model that it was given"
    plan = _plan_of(case, knowledge)
    if knowledge.network is None or plan is None or case.records is None:
        return (
            f"the adversary does not know the architecture, how clients train, or how many images {case.victim} holds"
        )
    reason = obstacle(plan, case.records, keeps_moments=knowledge.keeps_moments and case.question != "single_step")
    if reason:
        return reason
    model = knowledge.network(update.given.state)
    rate = plan.rate(round=update.round, rounds=update.rounds)
    try:
        gradient = step_gradient(model, update.returned.state, learning_rate=rate, weight_decay=plan.weight_decay)
        labels = recover_labels(model, gradient, batch=case.records)
    except UsageError as error:
        return str(error)
    norms = {} if plan.freeze_norm else batch_statistics(model, update.returned.state)
    statistics: Statistics = "running" if plan.freeze_norm else "batch"
    return ObservedStep(model=model, gradient=gradient, labels=labels, statistics=statistics, norms=norms)


def _observed_head(case: Case, knowledge: Knowledge) -> ObservedStep | str:
    """The gradient of the head that the victim sent, or the reason why it cannot be read."""
    batch = (knowledge.plan or TrainingPlan()).batch_size
    if case.records is not None and case.records > batch and case.records % batch:
        return (
            f"the gradient is a mean of batches of {batch}, of which the last is shorter, and nobody knows whose it is"
        )
    sent, given = case.views[0].sent(case.victim, HeadGradient), case.views[0].given(case.victim)
    if sent is None or given is None or knowledge.network is None or case.records is None:
        return f"no head gradient of {case.victim} was seen beside the model that it was given"
    model = knowledge.network(given.state)
    gradient = {"head.weight": sent.weight, "head.bias": sent.bias}
    try:
        labels = recover_labels(model, gradient, batch=case.records)
    except UsageError as error:
        return str(error)
    expected = expected_features(model, knowledge.public_images())
    return ObservedStep(
        model=model, gradient=gradient, labels=labels, statistics="running", norms={}, expected=expected
    )


def obstacle(plan: TrainingPlan, records: int, *, keeps_moments: bool) -> str:
    """The reason why an update of a client with `records` images after a round of `plan` cannot be inverted; "" if it
    can.

    The first step of a fresh optimizer has no momentum yet, whatever the plan says."""
    batch, steps = min(plan.batch_size, records), plan.local_steps(records)
    momentum = plan.momentum if keeps_moments else 0.0
    reason = feasible(batch, steps, optimizer=plan.optimizer, momentum=momentum)
    if not reason and batch < records:
        return f"one step is taken on {batch} of {records} images, and which ones is not recorded for the judge"
    return reason


def _plan_of(case: Case, knowledge: Knowledge) -> TrainingPlan | None:
    """The client's training plan: the target's, or the single step that was requested."""
    if case.question != "single_step":
        return knowledge.plan
    return None if case.records is None else (knowledge.plan or TrainingPlan()).one_step(case.records)
