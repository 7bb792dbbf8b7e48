"""An attack that cannot read what a plug-in's method sends gives no all-clear."""

from dataclasses import dataclass, replace

import pytest
import torch

import fdgsec
from fdgsec.experiments.attack import attack_context, run_attacks
from fdgsec.experiments.attack.run_attacks import through_target
from fdgsec.experiments.attack.target_control import (
    control_settings,
    failed_control,
    single_steps_of_another,
    target_control,
    with_target_controls,
)
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.report.text import controls_of
from fdgsec.experiments.run_config import RunConfig, attack_settings
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, Update
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.progress import NoProgress

AUC = Measurement(
    name="auc", value=0.9, low=0.85, high=0.95, chance=0.5, chance_kind="exact", n=100, p_value=1e-9, slice={"size": 4}
)
NOTHING = replace(AUC, value=0.5, low=0.4, high=0.6, p_value=0.5, slice={"size": 8})


def done(*rows: Measurement) -> AttackResult:
    return AttackResult(name="membership", adversary={}, status="done", measurements=rows)


def test_the_control_is_the_strongest_row_and_passes_beyond_the_margin():
    control = target_control(done(NOTHING, AUC))
    assert control.passed
    assert control.measurement.slice == AUC.slice
    assert not target_control(done(NOTHING)).passed
    slight = replace(AUC, value=0.53, low=0.51, high=0.55, p_value=1e-4)
    assert not target_control(done(slight)).passed
    assert not target_control(done()).passed


def test_many_rows_without_a_leak_do_not_pass_by_chance():
    lucky = replace(AUC, value=0.7, low=0.56, high=0.84, p_value=0.02)
    rows = [replace(NOTHING, slice={"size": size}) for size in range(20)]
    assert target_control(done(lucky)).passed
    assert not target_control(done(lucky, *rows)).passed


def test_behind_a_failed_control_a_row_without_a_leak_is_no_evidence():
    passed, failed = target_control(done(AUC)), target_control(done(NOTHING))
    [good] = with_target_controls([done(AUC, NOTHING)], {"membership": passed})
    [bad] = with_target_controls([done(AUC, NOTHING)], {"membership": failed})
    assert [row.verdict for row in good.measurements] == ["leaks strongly", "undecided: the interval reaches 0.6"]
    assert bad.measurements[0].verdict == "leaks strongly"
    assert bad.measurements[1].verdict.endswith("no evidence of protection")
    assert "through-the-target controls 0/1 passed" in controls_of(bad)
    assert not bad.document()["controls"]["through-the-target"][0]["passed"]  # type: ignore[index]


def test_controls_leave_defenses_and_data_of_the_run_behind():
    given = {"dataset": "pacs", "defenses": ["style-noise"], "rounds": 7, "per_class": 3, "partition": "dirichlet"}
    config = attack_settings("ccst-overall", given, assignments=["auxiliary=500"])  # swatches have not as many
    style, memory, harm = control_settings(config, ["model-membership", "membership", "poisoning"])
    assert (style.attacks, harm.attacks, memory.attacks) == (("membership",), ("poisoning",), ("model-membership",))
    assert {settings.dataset for settings in (style, harm)} == {"swatches"}
    assert memory.dataset == "swatches-random"  # labels that only a model trained on them can know
    for settings in (style, harm, memory):
        assert not settings.defenses
        assert settings.auxiliary is None
        assert settings.method == config.method
        assert settings.adversary == config.adversary
    assert [settings.rounds for settings in control_settings(replace(config, rounds=0), ["membership"])] == [0]


def test_a_failed_control_is_run_once_more_where_more_data_may_decide(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[tuple[str, ...], int | None]] = []

    def controls(settings: RunConfig, _progress: object) -> dict[str, Control]:
        asked.append((tuple(settings.attacks), settings.per_domain))
        larger = settings.attacks == ("model-membership",) and settings.per_domain == 100
        return {name: target_control(done(AUC if larger else NOTHING)) for name in settings.attacks}

    monkeypatch.setattr(run_attacks, "_controls", controls)
    config = attack_settings("fedavg", {"rounds": 1})

    found = through_target(config, ["linkage", "model-membership"], NoProgress())

    assert asked == [(("linkage",), 240), (("model-membership",), 140), (("model-membership",), 100)]
    assert [found[name].passed for name in ("linkage", "model-membership")] == [False, True]


@dataclass(frozen=True, kw_only=True)
class ReversedSpectra(CCST):
    """Spectra of single images, upside down: all of each image's spectrum is sent, and no attack looks there."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        spectra = sent["styles"]
        assert isinstance(spectra, Amplitudes)
        return {"styles": replace(spectra, values=spectra.values.flip(1, 2, 3))}, state


@dataclass(frozen=True, kw_only=True)
class ReadSpectra(CCST):
    """CCST as a plug-in."""


@pytest.mark.medium
def test_a_method_that_the_attack_cannot_read_gets_no_all_clear(own_cache: object, monkeypatch: pytest.MonkeyPatch):
    """The control alone, as for releases that are not compared with known images."""
    monkeypatch.setattr(attack_context, "foreign_releases", lambda *_, **__: {})
    read, unread = (
        fdgsec.attack(
            method(style="single", representation="amplitude"),
            attacks=("reidentification",), per_domain=60, image_size=32,
        ).attacks[0]
        for method in (ReadSpectra, ReversedSpectra)
    )  # fmt: skip
    assert read.target is not None
    assert read.target.passed
    assert unread.target is not None
    assert not unread.target.passed
    assert not [row for row in unread.measurements if row.verdict.startswith(("no leak shown", "undecided"))]
    assert [row for row in unread.measurements if row.verdict.endswith("no evidence of protection")]


@dataclass(frozen=True, kw_only=True)
class SevenClasses(CCST):
    """CCST for images of seven classes, as a plug-in."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        if len(client.data.class_names) != 7:
            raise IndexError("no such class")
        return super().share(client, model=model, state=state, clock=clock, rng=rng)


@pytest.mark.medium
def test_an_error_of_a_plug_in_on_swatches_does_not_end_the_report(own_cache: object):
    [result] = fdgsec.attack(SevenClasses(), attacks=("differencing",), per_domain=60, image_size=32).attacks
    assert result.status == "done"
    assert result.target is not None
    assert result.target.measurement.unavailable == "IndexError: no such class"


@dataclass(frozen=True, kw_only=True)
class PixelsInModel(FedAvg):
    """FedAvg whose clients hide their first images in the model that they send."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        raise NotImplementedError


def test_single_steps_say_nothing_about_a_method_that_trains_in_its_own_way(own_cache: object):
    assert single_steps_of_another(FedAvg(), "gradient-inversion") == ""
    assert single_steps_of_another(PixelsInModel(), "model-membership") == ""
    reason = single_steps_of_another(PixelsInModel(), "gradient-inversion")
    assert "its own fit" in reason
    [bad] = with_target_controls([done(NOTHING)], {"membership": failed_control(reason)})
    assert bad.measurements[0].verdict == f"{reason}: no evidence of protection"


@pytest.mark.medium
def test_bundled_methods_and_attacks_have_their_controls_in_the_documentation(own_cache: object):
    report = fdgsec.attack("ccst-overall", attacks=("differencing",), per_domain=60, image_size=32)
    assert report.attacks[0].target is None


@pytest.mark.medium
def test_an_attack_reads_swatches_through_a_bundled_target(own_cache: object):
    config = attack_settings("ccst-overall", {"device": "cpu"})
    found = through_target(config, ["membership", "differencing", "property-inference"], NoProgress())
    assert len(found) == 3
    assert all(control.passed for control in found.values())


@pytest.mark.medium
def test_a_control_that_cannot_run_has_failed_with_the_reason(own_cache: object):
    config = attack_settings("ccst-overall", {"device": "cpu"})
    [control] = through_target(config, ["gradient-inversion"], NoProgress()).values()
    assert not control.passed
    assert "ccst-overall sends no head gradients or models" in (control.measurement.unavailable or "")
