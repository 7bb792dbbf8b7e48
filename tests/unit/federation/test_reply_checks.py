"""What is wrong with a reply is named by slot, entry, shape and number."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    GeneratorState,
    ImageStyles,
    ModelState,
    Prototypes,
    Scores,
    StyleStatistics,
)
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Clock, Inbox, Reply, StepRequest, Update
from fdgsec.federation.reply_checks import differing_replies, objection
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.feddg import FedDG
from fdgsec.methods.fedsr import FedSR
from fdgsec.runtime.random_streams import stream
from tests.support.faults import FAULTS
from tests.support.hostile import forged
from tests.support.toy_federation import start

CLOCK = Clock(round=0, rounds=1, participants=("client:0",))
UNSEEN_ALONE = ("exception", "usage error", "another list of metrics")


def asked(model: GlobalModel | None = None, inbox: Inbox | None = None) -> StepRequest:
    return StepRequest(clock=CLOCK, model=model, inbox=inbox or {})


def trained(**beside: Artifact) -> Reply:
    state = ModelState(state=start().state.tensors())
    return Reply(artifacts={"model": state, **beside}, weight=6.0, metrics={"loss": 0.5, "steps": 2.0})


def generator(**changes: Tensor) -> GeneratorState:
    return forged(GeneratorState, state={"a": torch.zeros(3), "steps": torch.tensor(0), **changes})


def test_an_honest_update_is_not_objected_to():
    assert objection("fit", asked(start()), trained()) is None


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in UNSEEN_ALONE])
def test_each_fault_of_an_update_is_named(fault: str):
    spoil, said = FAULTS[fault]
    honest = trained()
    update = spoil(Update(artifacts=honest.artifacts, weight=honest.weight, metrics=honest.metrics))

    found = objection(
        "fit", asked(start()), Reply(artifacts=update.artifacts, weight=update.weight, metrics=update.metrics)
    )

    assert found is not None
    assert re.fullmatch(said + ".*", found)


@pytest.mark.parametrize("weight", [1.0, 0.25, 1e9])
def test_a_weight_may_be_any_share_or_count_up_to_a_billion(weight: float):
    assert objection("fit", asked(start()), replace(trained(), weight=weight)) is None


def test_who_has_no_images_may_share_but_not_weigh_in_a_mean():
    nothing = replace(trained(), weight=0.0)

    assert objection("share", asked(), nothing) is None
    assert objection("fit", asked(start()), nothing) == "its weight is 0; it must be above 0 and at most 1e+09"


def test_entries_that_stay_with_clients_are_missing_and_must_be():
    kept = frozenset({"head.bias"})
    whole = trained()
    part = {name: value for name, value in start().state.state.items() if name not in kept}
    partial = replace(whole, artifacts={"model": ModelState(state=part)})

    assert objection("fit", asked(start()), partial, kept=kept) is None
    assert objection("fit", asked(start()), whole, kept=kept) == "model.head.bias is not expected"
    assert objection("fit", asked(start()), partial) == "model.head.bias is missing"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (generator(), None),
        (generator(a=torch.zeros(1)), "generator.a is (1,) float32; it was sent out as (3,) float32"),
        (generator(steps=torch.zeros(1, dtype=torch.int64)), "generator.steps is (1,) int64; it was sent out as () int64"),
        (generator(b=torch.zeros(1)), "generator.b is not expected"),
        (ModelState(state=generator().state), "generator is a ModelState; a GeneratorState was expected"),
    ],
)  # fmt: skip
def test_a_network_that_came_with_the_request_must_come_back_in_its_form(sent: Artifact, said: str | None):
    assert objection("fit", asked(start(), {"generator": generator()}), trained(generator=sent)) == said


def test_a_second_version_of_the_model_must_have_its_form_and_other_networks_their_own():
    bent = ModelState(state={**start().state.state, "head.bias": torch.zeros(5)})
    part = ModelState(state={"head.bias": torch.zeros(5)})
    foreign = ModelState(state={"head.bias": torch.zeros(5), "judge.weight": torch.zeros(2)})

    said = "perturbed.head.bias is (5,) float32; it was sent out as (2,) float32"
    assert objection("fit", asked(start()), trained(perturbed=bent)) == said
    assert objection("fit", asked(start()), trained(norm=part)) == said.replace("perturbed", "norm")
    assert objection("fit", asked(start()), trained(discriminator=foreign)) is None


def test_no_artifact_takes_the_place_of_weight_and_metrics():
    said = "it holds an artifact 'numbers', which is where weight and metrics go"

    assert objection("fit", asked(start()), trained(numbers=Scores(values=torch.ones(3)))) == said


@pytest.mark.parametrize("step", ["share", "fit", "review"])
def test_every_float_of_every_artifact_must_be_finite(step: str):
    values = torch.tensor([1.0, math.nan, -math.inf])
    reply = trained(scores=forged(Scores, values=values))

    assert objection(step, asked(start()), reply) == "scores.values has 2 of 3 values that are not finite"  # type: ignore[arg-type]


def test_integers_and_empty_tensors_are_finite():
    spectra = Amplitudes(values=torch.zeros(0, 3, 4, 3), owner=torch.zeros(0, dtype=torch.int64))

    assert objection("share", asked(), Reply(artifacts={"spectra": spectra})) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_lost_value_is_found_in_every_dtype_of_floats(dtype: torch.dtype):
    values = torch.ones(7, 5, dtype=dtype)
    values[6, 4] = math.nan

    said = objection("share", asked(), Reply(artifacts={"rows": forged(Scores, values=values)}))

    assert said == "rows.values has 1 of 35 values that are not finite"


@pytest.mark.parametrize(
    ("artifacts", "said"),
    [
        ({"scores": Scores(values=torch.ones(2))}, None),
        ({}, "scores is missing"),
        ({"gap": Scores(values=torch.ones(2))}, "scores is missing"),
        ({"scores": ModelState(state={})}, "scores is a ModelState; a Scores was expected"),
    ],
)
def test_a_review_answers_with_scores(artifacts: Inbox, said: str | None):
    assert objection("review", asked(start()), Reply(artifacts=artifacts)) == said


def styles(width: int, rows: int | None = None) -> Reply:
    shape = (width,) if rows is None else (rows, width)
    kind = StyleStatistics if rows is None else ImageStyles
    return Reply(artifacts={"style": kind(mean=torch.zeros(shape), std=torch.ones(shape))})


def told(*replies: Reply, shown: Mapping[int, Inbox] | None = None) -> Mapping[str, str]:
    """What is said of client:0, client:1, ..."""
    requests = {f"client:{number}": asked(inbox=(shown or {}).get(number)) for number in range(len(replies))}
    return differing_replies(requests, {f"client:{number}": reply for number, reply in enumerate(replies)})


def test_replies_of_one_form_do_not_differ_however_many_rows_they_have():
    prototypes = [
        Reply(artifacts={"p": Prototypes(features=torch.ones(rows, 4), classes=torch.arange(rows))}) for rows in (2, 7)
    ]

    assert told() == {}
    assert told(styles(3)) == {}
    assert told(styles(3), styles(3), styles(3)) == {}
    assert told(styles(3, rows=0), styles(3, rows=5), styles(3, rows=2)) == {}
    assert told(*prototypes) == {}


def test_the_order_of_entries_is_nobodys_mistake():
    one, other = {"a": torch.zeros(1), "b": torch.zeros(2)}, {"b": torch.zeros(2), "a": torch.zeros(1)}
    replies = [Reply(artifacts={"m": ModelState(state=state)}) for state in (one, other, {"a": torch.zeros(1)})]

    assert told(*replies[:2]) == {}
    assert told(*replies) == {"client:2": "m.b is missing"}


def test_the_one_of_another_form_is_named_with_where_it_differs():
    assert told(styles(3), styles(4), styles(3)) == {
        "client:1": "style.mean is (4,) float32; more clients sent (3,) float32"
    }
    assert told(styles(3, rows=2), styles(3, rows=2), styles(4, rows=2)) == {
        "client:2": "style.mean is (rows, 4) float32; more clients sent (rows, 3) float32"
    }
    assert told(Reply(artifacts={}), styles(3), styles(3)) == {"client:0": "style is missing"}


def test_of_forms_as_frequent_as_each_other_all_are_named():
    assert told(styles(3), styles(4), styles(3), styles(4)).keys() == {f"client:{number}" for number in range(4)}
    assert told(styles(3), styles(4), styles(5)).keys() == {"client:0", "client:1", "client:2"}
    assert told(styles(3), styles(3), styles(4), styles(5)).keys() == {"client:2", "client:3"}


def test_reviewers_who_were_shown_different_numbers_of_models_answer_different_numbers_of_scores():
    peers: Inbox = {name: ModelState(state={}) for name in ("client:1", "client:2", "client:3")}
    two: Inbox = {name: peers[name] for name in ("client:1", "client:2")}
    shown = {0: peers, 1: two, 2: peers}

    def scores(*counts: int) -> list[Reply]:
        return [Reply(artifacts={"scores": Scores(values=torch.ones(count))}) for count in counts]

    assert told(*scores(3, 2, 3), shown=shown) == {}
    assert told(*scores(3, 3, 3), shown=shown).keys() == {"client:1"}


NORM = {"body.stem.1.weight", "body.stem.1.running_mean", "body.stage4.1.num_batches_tracked"}


@pytest.mark.parametrize(
    ("method", "some"),
    [
        (FedAvg(), set[str]()),
        (FedBN(), NORM),
        (CrossEvaluation(base=FedBN()), NORM),
        (Stacked(base=FedBN(), local=FedDG()), NORM),
        (CrossEvaluation(base=CCST()), set[str]()),
        (FedSR(reference="local"), {"reference"}),
        (FedSR(reference="averaged"), set[str]()),
    ],
    ids=["fedavg", "fedbn", "fedbn++", "fedbn with feddg", "ccst++", "fedsr", "fedsr, reference averaged"],
)
def test_what_stays_with_clients_is_what_the_method_or_the_one_below_it_says(method: FedAvg, some: set[str]):
    plan = Blueprint(backbone="tiny", classes=2, remodel=method.remodel)
    network = plan.network(stream(0, "world", "start"))

    kept = method.kept_entries(network)

    assert bool(kept) == bool(some)
    assert all(any(part in name for name in kept) for part in some)
    assert kept <= network.state_dict().keys()
