"""What clients send more than once: copies of one exchange are averaged, rounds that were not read are named."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

import fdgsec
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.model_membership.attack import ModelMembership
from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.experiments.attack import loop
from fdgsec.experiments.attack.release_check import several_releases
from fdgsec.experiments.attack.unread_releases import partly_read
from fdgsec.experiments.report.html import render
from fdgsec.experiments.report.text import unread
from fdgsec.federation.artifacts import HeadGradient, ModelState, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.wire import Message, Transcript
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc import FISC
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.threats.judging.controls import positive_control

COPIES = 48


@dataclass(frozen=True, kw_only=True)
class Copies(CCST):
    """CCST whose rows go up in many slots, each with fresh noise."""

    @property
    def releases(self) -> Sequence[Release]:
        sent = super().releases
        one = next(release for release in sent if release.stage == "share")
        return (*sent, *(replace(one, slot=f"copy{number}") for number in range(COPIES)))

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        return {**sent, **{f"copy{number}": sent["styles"] for number in range(COPIES)}}, state


@pytest.mark.medium
def test_noisy_copies_of_one_release_are_averaged(own_cache: object):
    """49 copies under noise of 7 sd are read as well as one under 1 sd."""
    one, many = (
        fdgsec.attack(
            method(style="single", encoder="pixels"), attacks=("reidentification",), per_domain=60, image_size=32,
            defenses=[f"style-noise:p=0.5,scale={scale}"],
        ).attacks[0]
        for method, scale in ((CCST, 0.02), (Copies, 0.02 * (COPIES + 1) ** 0.5))
    )  # fmt: skip
    top1 = [next(row for row in result.measurements if row.name == "top1" and row.judged) for result in (one, many)]
    assert top1[0].value is not None
    assert top1[1].value is not None
    assert top1[0].value > 0.3
    assert top1[1].value > 0.6 * top1[0].value
    assert top1[1].leaks


def row(**where: int) -> Measurement:
    return Measurement(
        name="auc", value=0.5, low=0.4, high=0.6, chance=0.5, chance_kind="exact", n=9, p_value=0.5, slice=where
    )


def transcript(*values: float) -> Transcript:
    found = Transcript()
    for number, value in enumerate(values):
        style = StyleStatistics(mean=torch.full((2,), float(value)), std=torch.full((2,), 1.0))
        found.append(Message(round=number, stage="share", sender="client:1", receiver="server", artifact=style))
    return found


def test_rounds_count_where_their_releases_differ():
    reads = Membership()
    same, other = (partly_read(reads, transcript(*values).different_exchanges()) for values in ((1, 1, 1), (1, 2, 1)))
    assert same(row(), 1) == ""
    assert other(row(), 1) == "reads 1 of 2 releases that differ"
    assert other(row(), 2) == ""
    assert other(row(rounds=3), 1) == ""
    assert partly_read(ModelMembership(), transcript(1, 2).different_exchanges())(row(), 1) == ""


@pytest.mark.medium
def test_a_trained_run_gives_no_all_clear_to_an_attack_that_reads_one_round(own_cache: object):
    for target, attack in (
        ("fedalign", PoolExposure(rounds=(2,))),
        ("fedavg", ModelMembership(candidates=8, references=4)),
    ):
        once, twice = (
            fdgsec.attack(target, attacks=(attack,), per_domain=60, image_size=32, rounds=rounds).attacks[0]
            for rounds in (1, 2)
        )
        assert not [each for each in once.measurements if each.unread]
        read = [each for each in twice.measurements if each.judged and not each.leaks]
        assert read
        assert all(each.verdict.endswith("no evidence of protection") for each in read if each.slice.get("rounds") != 2)
        assert not [each for each in twice.measurements if each.slice.get("rounds") == 2 and each.unread]


@dataclass(frozen=True, kw_only=True)
class AgainWithTheUpdate(CCST):
    """CCST whose clients send their style once more with the update, where no defense of shares acts."""

    @property
    def releases(self) -> Sequence[Release]:
        return (*super().releases, Release(stage="update", slot="style", kind=StyleStatistics))

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        sent, _ = self.share(client, model=model, state={}, clock=clock, rng=rng)
        return replace(update, artifacts={**update.artifacts, "style": sent["style"]}), state


@pytest.mark.medium
def test_a_style_that_another_stage_sends_bare_gives_no_all_clear(own_cache: object):
    result = fdgsec.attack(
        AgainWithTheUpdate(encoder="pixels"), attacks=(Membership(sizes=(20,), clients=12),), per_domain=120,
        image_size=32, rounds=1, backbone="tiny", defenses=["private-styles:epsilon=0.1"],
    ).attacks[0]  # fmt: skip

    assert result.status == "done", result.reason
    quiet = [row.verdict for row in result.measurements if row.judged and not row.leaks]
    assert quiet
    assert all("reads 1 of 2 releases that differ" in verdict for verdict in quiet)


@pytest.mark.medium
def test_behind_a_failed_positive_control_a_row_without_a_leak_is_no_evidence(
    own_cache: object, monkeypatch: pytest.MonkeyPatch
):
    def failing(*given: object) -> list[Control]:
        return [replace(control, passed=False) for control in positive_control(*given)]  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "positive_control", failing)
    result = fdgsec.attack(
        "ccst-overall", attacks=(Linkage(clients=6),), per_domain=60, image_size=32,
        defenses=["style-noise:p=0.1,scale=500"],
    ).attacks[0]  # fmt: skip

    quiet = [row.verdict for row in result.measurements if row.judged and not row.leaks]
    assert quiet
    assert all("positive controls failed: no evidence of protection" in verdict for verdict in quiet)


@pytest.mark.medium
def test_a_report_names_what_no_attack_read(own_cache: object):
    found = fdgsec.attack("ccst-overall", attacks=("linkage",), per_domain=60, image_size=32, rounds=1)
    assert found.unread_kinds == ["ModelState", "Scores"]
    assert unread(found) == "seen by the adversary and read by no attack of this report: ModelState, Scores"
    assert unread(found) in render(found)
    assert found.document()["unread_kinds"] == ["ModelState", "Scores"]
    assert "read by no attack" not in render(replace(found, unread_kinds=()))


@dataclass(frozen=True, kw_only=True)
class Examples(FISC):
    """FISC whose clients also send the styles of two of their images, each in a slot of its own."""

    @property
    def releases(self) -> Sequence[Release]:
        one = next(release for release in super().releases if release.stage == "share")
        return (*super().releases, *(replace(one, slot=f"example{number}") for number in range(2)))

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        mean, std = (part.float() for part in statistics(self.encoder, client.data).style(unbiased=True))
        examples = {f"example{number}": StyleStatistics(mean=mean[number], std=std[number]) for number in range(2)}
        return {**sent, **examples}, state


def test_different_styles_that_are_sent_at_once_are_not_averaged_into_an_all_clear(own_cache: object):
    """A method that claims no means is not compared with any; what it sends at once is compared with each other."""
    result = fdgsec.attack(
        Examples(encoder="pixels"), attacks=(Membership(simulated_sizes=(20,), simulated_clients=4),), per_domain=80,
        image_size=16,
    ).attacks[0]  # fmt: skip

    assert result.status == "skipped"
    assert "sends several pooled styles that differ (style, example0, example1) at once" in result.reason


@dataclass(frozen=True, kw_only=True)
class TwoModels(FedAvg):
    """FedAvg whose update has a second slot of the model's kind, with numbers of the images."""

    @property
    def releases(self) -> Sequence[Release]:
        return (*super().releases, Release(stage="update", slot="buffers", kind=ModelState))

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        rows = statistics("pixels", client.data).mean.float()[:4]
        return replace(update, artifacts={**update.artifacts, "buffers": ModelState(state={"rows": rows})}), state


@pytest.mark.slow
def test_a_second_model_in_an_update_is_named_as_unread(own_cache: object):
    result = fdgsec.attack(
        TwoModels(plan=TrainingPlan(steps=1, batch_size=8)), attacks=(ModelMembership(candidates=8, references=4),), per_domain=60, image_size=16, rounds=1,
        backbone="tiny",
    ).attacks[0]  # fmt: skip

    assert result.status == "done", result.reason
    quiet = [row.verdict for row in result.measurements if row.judged and not row.leaks and not row.unavailable]
    assert quiet
    assert all("reads 1 of 2 releases that differ" in verdict for verdict in quiet), quiet


def sent_at_once(stage: str, *values: float) -> Transcript:
    found = Transcript()
    for value in values:
        style = StyleStatistics(mean=torch.full((2,), float(value)), std=torch.full((2,), 1.0))
        found.append(Message(round=0, stage=stage, sender="client:1", receiver="server", artifact=style))
    return found


def test_two_head_gradients_that_are_shared_at_once_count_twice():
    found = Transcript()
    for value in (1.0, 2.0):
        gradient = HeadGradient(weight=torch.full((2, 3), float(value)), bias=torch.full((2,), float(value)))
        found.append(Message(round=0, stage="share", sender="client:1", receiver="server", artifact=gradient))

    assert found.different_exchanges() == {"HeadGradient": 2}


def test_styles_that_nearly_agree_are_several_releases():
    style = StyleStatistics(mean=torch.ones(4), std=torch.ones(4))
    moved = StyleStatistics(mean=torch.ones(4) + 1e-6, std=torch.ones(4))

    assert several_releases({"style": style, "copy": style}) == {}
    assert several_releases({"style": style, "moved": moved}) == {"StyleStatistics": ["style", "moved"]}


def test_different_messages_of_one_stage_count_each_but_for_slots_that_are_compared():
    for stage, values, count in (("update", (1, 2), 2), ("update", (1, 1), 1), ("share", (1, 2), 1)):
        assert sent_at_once(stage, *values).different_exchanges() == {"StyleStatistics": count}
