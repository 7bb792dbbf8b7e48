"""Forgeries: what a hostile client sends, where it acts, and what receivers make of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

from fdgsec.defenses.guards import Guards
from fdgsec.federation.artifacts import Artifact, ImageStyles, ModelState, Scores, StyleStatistics
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.forged_artifacts import Flaw, Flawed, Heavy, Honest, Judging, Scaled, ScaledUpdate
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.malicious_client_protocol import ForgeryError, Leaving, MaliciousClient, forge_reply
from fdgsec.federation.method import Clock, Reply, StepRequest
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Harm
from fdgsec.threats.paired_runs import Setting, harm_of_forgery, honest_run, hostile_run
from tests.support.hostile import Hostile, scaled
from tests.support.toy_federation import FULL_BATCH, PixelStyles, images, members, start

NAN, INF = math.nan, math.inf
METHOD = PixelStyles(plan=FULL_BATCH)
CLOCK = Clock(round=0, rounds=1, participants=("client:0",))


def setting(*defenses: Hostile, usual: Guards | None = None) -> Setting:
    return Setting(
        method=METHOD, members=members(8, 8, 8), defense_stack=DefenseStack(defenses=defenses, usual=usual),
        measured={"unseen domain": images(20, "unseen")},
    )  # fmt: skip


def harm(malicious_client: MaliciousClient, *defenses: Hostile, usual: Guards | None = None, rounds: int = 1) -> Harm:
    where, model = setting(*defenses, usual=usual), start()
    honest = honest_run(where, seed=0, rounds=rounds, model=model, forger="client:0")
    other = hostile_run(where, seed=0, rounds=rounds, model=model, malicious_clients={"client:0": malicious_client})
    return harm_of_forgery(honest, other, setting=where, forgers=["client:0"], rng=stream(0, "attack"))


def sent(
    malicious_client: MaliciousClient, artifacts: Mapping[str, Artifact], *, step: str = "share", model: GlobalModel | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Reply:  # fmt: skip
    reply = Reply(artifacts=artifacts, weight=8.0, metrics=metrics or {})
    asked = StepRequest(clock=CLOCK, model=model, inbox={})
    steps = {"share": "share", "fit": "fit", "review": "review"}
    assert step in steps
    return forge_reply(malicious_client, step, asked, reply, sender="client:0", rng=stream(0, "attack"))  # type: ignore[arg-type]


def style() -> StyleStatistics:
    return StyleStatistics(mean=torch.tensor([1.0, -2.0, 3.0]), std=torch.tensor([0.5, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("flaw", "mean", "std"),
    [("nan", [NAN, -2, 3], [0.5, 1, 2]), ("infinity", [INF, -2, 3], [0.5, 1, 2]), ("negative", [1, -2, 3], [-1, 1, 2]),
     ("another shape", [1, -2], [0.5, 1])],
)  # fmt: skip
def test_a_flaw_is_put_where_it_is_said_and_nowhere_else(flaw: Flaw, mean: list[float], std: list[float]):
    honest = style()

    made = sent(Flawed(kind="StyleStatistics", flaw=flaw), {"style": honest}).artifacts["style"].tensors()

    torch.testing.assert_close(made["mean"], torch.tensor(mean).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(made["std"], torch.tensor(std).float(), rtol=0, atol=0)
    assert honest.tensors()["mean"].tolist() == [1.0, -2.0, 3.0]


def test_what_is_missing_is_a_models_last_entry_and_of_others_the_whole():
    model = ModelState(state={"body": torch.ones(2), "head": torch.ones(2)})

    of_model = sent(Flawed(kind="ModelState", flaw="missing"), {"model": model}, step="fit")

    assert list(of_model.artifacts["model"].tensors()) == ["body"]
    assert sent(Flawed(kind="StyleStatistics", flaw="missing"), {"style": style()}).artifacts == {}


def test_scaling_multiplies_every_number_or_the_std_of_one_row():
    rows = ImageStyles(mean=torch.ones(2, 3), std=torch.ones(2, 3))

    everything = sent(Scaled(kind="StyleStatistics", factor=10.0), {"style": style()}).artifacts["style"].tensors()
    one = Scaled(kind="ImageStyles", factor=100.0, entries=("std",), rows=1)
    row = sent(one, {"styles": rows}).artifacts["styles"].tensors()

    assert everything["mean"].tolist() == [10.0, -20.0, 30.0]
    assert everything["std"].tolist() == [5.0, 10.0, 20.0]
    assert row["mean"].tolist() == [[1.0] * 3] * 2
    assert row["std"].tolist() == [[100.0] * 3, [1.0] * 3]


def test_a_scaled_update_is_counted_from_the_received_model_number_by_number():
    model = start()
    noise = stream(0, "world", "trained")
    trained = {
        name: value + torch.randn(value.shape, generator=noise) if value.is_floating_point() else value + 1
        for name, value in model.state.state.items()
    }

    made = sent(ScaledUpdate(factor=-3.0), {"model": ModelState(state=trained)}, step="fit", model=model).artifacts[
        "model"
    ]

    for name, before in model.state.state.items():
        expected = before - 3.0 * (trained[name] - before) if before.is_floating_point() else trained[name]
        torch.testing.assert_close(made.tensors()[name], expected, rtol=1e-6, atol=1e-6)


def test_models_in_other_slots_are_left_alone():
    model = ModelState(state={"head": torch.ones(2)})

    made = sent(ScaledUpdate(factor=2.0), {"model": model, "perturbed": model}, step="fit")

    assert made.artifacts["model"].tensors()["head"].tolist() == [2.0, 2.0]
    assert made.artifacts["perturbed"] is model


def test_a_weight_is_claimed_among_the_numbers_of_an_update():
    made = sent(Heavy(weight=1e12), {"style": style()}, step="fit", metrics={"loss": 0.25})

    assert (made.weight, made.metrics) == (1e12, {"loss": 0.25})


def test_a_false_judge_reports_its_losses_and_leaves_other_numbers_as_they_are():
    lie = Judging(peers=1e9, own=0.0)

    review = sent(lie, {"scores": Scores(values=torch.tensor([0.5, 0.7]))}, step="review")
    update = sent(lie, {}, step="fit", metrics={"loss": 0.25, "own_loss": 0.5, "steps": 3.0})

    assert review.artifacts["scores"].tensors()["values"].tolist() == [1e9, 1e9]
    assert (update.weight, update.metrics) == (8.0, {"loss": 0.25, "own_loss": 0.0, "steps": 3.0})


def test_the_honest_forgery_changes_no_byte_of_a_run():
    found = harm(Honest(), usual=Guards(), rounds=2)

    assert found.none
    assert found.honest.transcript_sha256 == found.hostile.transcript_sha256 != ""
    assert found.displacement == {"InterpolationStyle": 0.0, "global model": 0.0}


def test_a_forgery_acts_behind_its_own_clients_defenses():
    halved = Hostile(slot="style", forge=scaled(0.5), parties=("client:0", "client:1"))
    defense_stack = DefenseStack(
        defenses=[halved], malicious_clients={"client:0": Scaled(kind="StyleStatistics", factor=10.0)}
    )
    forger, other, _ = members(8, 8, 8)
    asked = StepRequest(clock=CLOCK, model=None, inbox={})

    def mean(defense_stack: DefenseStack, client: int) -> torch.Tensor:
        reply, _ = run_client_step(METHOD, (forger, other)[client], "share", asked, {}, 0, defense_stack)
        return reply.artifacts["style"].tensors()["mean"]

    torch.testing.assert_close(mean(defense_stack, 0), 10 * 0.5 * mean(DefenseStack(), 0), rtol=1e-6, atol=0)
    torch.testing.assert_close(mean(defense_stack, 1), 0.5 * mean(DefenseStack(), 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("flaw", ["nan", "infinity", "negative", "another shape"])
def test_by_default_flawed_styles_are_refused_by_the_forgers_name(flaw: Flaw):
    found = harm(Flawed(kind="StyleStatistics", flaw=flaw), usual=Guards())

    assert found.hostile.refused
    assert found.hostile.ended.startswith("client:0 sent a bad StyleStatistics")


def test_without_guards_nobody_is_named_and_the_run_ends_otherwise():
    found = harm(Flawed(kind="StyleStatistics", flaw="nan"), usual=Guards(schema=False, finite=False))

    assert not found.hostile.refused
    assert "InterpolationStyle.mean has 1 values that are not finite" in found.hostile.ended


def test_without_guards_a_nan_in_a_model_ends_the_run_where_the_mean_is_made():
    found = harm(Flawed(kind="ModelState", flaw="nan"), usual=Guards(schema=False, finite=False))

    assert not found.hostile.refused
    assert "values that are not finite" in found.hostile.ended
    assert found.displacement == {}


@dataclass(frozen=True, kw_only=True)
class Broken:
    """An intruder with a fault of its own."""

    name: str = "broken"
    kind: str = "everything"
    once: bool = False

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        raise ArtifactError("client:0 cannot forge.")


def test_a_fault_of_the_intruder_is_no_harm_that_it_did():
    with pytest.raises(ForgeryError, match="broken of StyleStatistics in 'style' could not be forged"):
        harm(Broken())


def test_a_claimed_weight_takes_the_mean_where_it_is_over_images_and_is_believed_up_to_a_bound():
    found = harm(Heavy(weight=1e8), usual=Guards())
    refused = harm(Heavy(weight=1e12), usual=Guards())

    assert found.honest.numbers["forger_weight"] == pytest.approx(1 / 3, abs=1e-12)
    assert found.hostile.numbers["forger_weight"] == pytest.approx(1.0, abs=1e-5)
    assert refused.hostile.refused
    assert "its weight is 1e+12; it must be above 0 and at most 1e+09" in refused.hostile.ended
