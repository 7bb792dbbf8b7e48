"""Who judges nobody is left out with its own model: what remains is the round of those who judged each other."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Method, Reply, Step
from fdgsec.federation.participation import ClientFailedError
from fdgsec.federation.reply_checks import select_scores
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import resolve
from tests.support.faults import Altering, Run, driven, local, silent
from tests.support.hostile import forged
from tests.support.round_loop import four_clients
from tests.support.toy_federation import FULL_BATCH, PeerReviewed, largest_gap, members

PLAN = {"plan": {"batch_size": 8, "learning_rate": 0.01, "epochs": 1}}


def scoring(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    """Answer other scores, unchecked."""
    return lambda reply: replace(
        reply,
        artifacts={"scores": forged(Scores, values=change(reply.artifacts["scores"].tensors()["values"].clone()))},
    )


def run_without(
    step: Step, method: FedAvg, change: Callable[[Reply], Reply | None] = silent, *, clients: int = 4
) -> Run:
    """Two rounds in which client:1 does not do a step, or otherwise."""
    sizes = (6, 10, 8, 4, 6)[:clients]
    return driven(method, Altering(engine=local(method, members(*sizes)), step=step, change=change), rounds=2)


@pytest.mark.parametrize(
    "method", [PeerReviewed(plan=FULL_BATCH), CrossEvaluation(plan=FULL_BATCH, rho=0.05), CrossEvaluation(rho=0.0, k=1)]
)
@pytest.mark.medium
def test_a_reviewer_that_fails_is_out_as_if_it_had_not_trained(method: FedAvg):
    unjudging, untrained = run_without("review", method), run_without("fit", method)

    assert [(failure.client, failure.step) for failure in unjudging.failures] == [("client:1", "review")] * 2
    assert largest_gap(unjudging.state(), untrained.state()) == 0
    told, expected = unjudging.reports[-1].server, untrained.reports[-1].server
    assert told.keys() == expected.keys()
    assert all(torch.equal(told[name], expected[name]) for name in expected)
    assert [sorted(report.metrics) for report in unjudging.reports] == [["client:0", "client:2", "client:3"]] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (scoring(lambda values: values * math.nan), "scores.values has 3 of 3 values that are not finite"),
        (scoring(lambda values: values[:2]), "the number of scores is that of models shown -1; more clients sent that of models shown +0"),
        (lambda reply: replace(reply, artifacts={}), "scores is missing"),
        (lambda reply: replace(reply, artifacts={"scores": ModelState(state={})}), "scores is a ModelState; a Scores was expected"),
    ],
)  # fmt: skip
@pytest.mark.medium
def test_a_bad_review_is_none(change: Callable[[Reply], Reply], said: str):
    method = CrossEvaluation(plan=FULL_BATCH)

    bad, none = run_without("review", method, change), run_without("review", method)

    assert {failure.reason for failure in bad.failures} == {said}
    assert bad.wire.transcript.sha256 == none.wire.transcript.sha256
    assert largest_gap(bad.state(), none.state()) == 0


def feddag(**options: object) -> Method:
    made: Method = build(resolve("methods", "feddag"), {**PLAN, "warm_up": 0, **options}, where="method")
    return made


@pytest.mark.parametrize("distribution", ["student", "global-student"])
@pytest.mark.medium
def test_feddag_goes_on_without_a_reviewer_generator_history_and_all(distribution: str):
    method, outcomes = feddag(distribution=distribution), []
    plan = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    model = GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "start")))))
    for step in ("review", "fit"):
        engine = Altering(engine=local(method, four_clients()[:3]), step=step, change=silent)  # type: ignore[arg-type]
        outcomes.append(driven(method, engine, rounds=2, model=model))

    unjudging, untrained = outcomes
    assert len(unjudging.failures) == 2
    assert largest_gap(unjudging.state(), untrained.state()) == 0
    told, expected = unjudging.reports[-1].server, untrained.reports[-1].server
    assert told.keys() == expected.keys()
    assert all(torch.equal(told[name], expected[name]) for name in expected)
    assert any(name.startswith("evaluation/history/client:0/1/") for name in told)
    assert not any("client:1" in name for name in told)


def test_where_judges_take_turns_a_lost_one_ends_the_run_and_is_named():
    with pytest.raises(ClientFailedError) as caught:
        run_without("review", CrossEvaluation(plan=FULL_BATCH, evaluators=1))

    assert str(caught.value) == (
        "round 0 cannot be aggregated, for what client:0 judged is not what it would have been shown without them; "
        "client:1 failed in review: no reply came"
    )


def test_one_client_that_is_left_alone_judges_itself_or_ends_the_run():
    itself = CrossEvaluation(plan=FULL_BATCH)

    alone = run_without("review", itself, clients=2)
    assert [sorted(report.metrics) for report in alone.reports] == [["client:0"]] * 2
    with pytest.raises(
        ClientFailedError, match=r"1 of 2 clients answered, but a single client has no peers .*client:1"
    ):
        run_without("review", replace(itself, include_self=False), clients=2)


def test_a_gap_that_is_not_reported_moves_nobodys_weight():
    method = FedDGGA(plan=FULL_BATCH, metric="loss")

    outcome = run_without("review", method, clients=3)

    first = outcome.reports[0].server["weights"]
    reviews = [m.artifact.tensors()["values"] for m in outcome.wire.transcript.messages() if m.stage == "review"]
    gaps = torch.tensor([float(reviews[0]), 0.0, float(reviews[1])], dtype=torch.float64)
    moved = torch.full((3,), 1 / 3, dtype=torch.float64) + 0.2 / 3 * gaps / gaps.abs().max()
    torch.testing.assert_close(first, moved.clamp(0, 1) / moved.clamp(0, 1).sum(), atol=1e-12, rtol=0)


def styled(*names: str) -> dict[str, Artifact]:
    return {name: ModelState(state={"w": torch.tensor([float(len(name))])}) for name in names}


def test_scores_are_narrowed_to_what_is_shown_again_in_the_order_of_the_names():
    shown = {"a": styled("z", "yy", "xxx")}

    left = select_scores(
        {"a": Scores(values=torch.tensor([3.0, 2.0, 1.0]))}, shown=shown, again={"a": styled("yy", "xxx")}
    )

    assert left["a"].values.tolist() == [3.0, 2.0]  # of xxx and yy


@pytest.mark.parametrize(
    ("scores", "again"),
    [
        (2, styled("z", "w")),
        (2, {"z": ModelState(state={"w": torch.zeros(1)})}),
        (3, styled("z")),
    ],
    ids=["not shown", "shown otherwise", "too many scores"],
)
def test_scores_of_something_else_are_nobodys(scores: int, again: dict[str, Artifact]):
    given = {"a": Scores(values=torch.ones(scores))}

    with pytest.raises(ValueError, match="what a judged is not what it would have been shown"):
        select_scores(given, shown={"a": styled("z", "yy")}, again={"a": again})


def test_a_loss_below_zero_still_ends_the_run_for_only_the_method_knows_it_is_none():
    with pytest.raises(ArtifactError, match="client:1 must report mean validation losses of at least 0"):
        run_without("review", CrossEvaluation(plan=FULL_BATCH), scoring(lambda values: -values - 1))
