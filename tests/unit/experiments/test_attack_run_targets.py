"""Which target a recorded run is: found by its method and options, or named, and never one that it was not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, settings_for
from fdgsec.experiments.attack_run.read_finished_run import Record
from fdgsec.experiments.run_config import RunConfig
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    InterpolationStyle,
    ModelState,
    StyleBank,
    StyleStatistics,
)
from fdgsec.federation.wire import SERVER, Message, Transcript
from fdgsec.runtime.errors import UsageError

ROW, ROWS, OWNER = torch.ones(2), torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)
STYLE, STYLES = StyleStatistics(mean=ROW, std=2 * ROW), ImageStyles(mean=ROWS, std=2 * ROWS)
BANK, GLOBAL = StyleBank(mean=ROWS, std=2 * ROWS, owner=OWNER), InterpolationStyle(mean=ROW, std=2 * ROW)
MODEL = ModelState(state={"weight": ROW})
SPECTRA = Amplitudes(values=torch.ones(3, 1, 2, 2), owner=OWNER)


def record(config: RunConfig, *sent: Artifact) -> Record:
    transcript = Transcript()
    for artifact in sent:
        transcript.append(Message(round=0, stage="share", sender="client:0", receiver=SERVER, artifact=artifact))
    return Record(config=config, report={}, transcript=transcript)


ASKED = RecordedRequest(run=Path("run"))


def chosen(config: RunConfig, *sent: Artifact, target: str | None = None) -> RunConfig:
    return settings_for(record(config, *sent), replace(ASKED, target=target))


@pytest.mark.parametrize(
    ("config", "sent", "target"),
    [
        (RunConfig(method="ccst"), [STYLE, BANK], "ccst-overall"),
        (RunConfig(method="ccst", options={"style": "single", "k": 2}), [STYLES, BANK], "ccst-single"),
        (RunConfig(method="ccst", options={"representation": "amplitude"}), [SPECTRA], "ccst-amplitude-overall"),
        (RunConfig(method="ccst", options={"representation": "amplitude", "style": "single"}), [SPECTRA], "ccst-amplitude-single"),
        (RunConfig(method="ccst", local="mixstyle"), [STYLE, BANK], "ccst-overall"),
        (RunConfig(method="fisc"), [STYLE, GLOBAL], "fisc"),
        (RunConfig(method="fedalign", rounds=3), [STYLES, BANK, MODEL], "fedalign"),
        (RunConfig(method="fedavg", rounds=3), [MODEL], "fedavg"),
        (RunConfig(method="fedprox", rounds=3), [MODEL], "fedprox"),
    ],
)  # fmt: skip
def test_the_target_is_the_one_with_the_runs_method_and_options(config: RunConfig, sent: list[Artifact], target: str):
    assert chosen(config, *sent).target == target


def test_pixels_are_the_encoder_of_targets_that_have_no_other():
    assert chosen(RunConfig(method="fedalign", style_size=64), STYLES, BANK).encoder == "pixels"
    assert chosen(RunConfig(method="fedalign", style_size=64), STYLES, BANK).style_size is None
    assert chosen(RunConfig(method="ccst", encoder="mini", style_size=64), STYLE, BANK).style_size == 64


def test_the_models_of_any_run_can_be_attacked_as_those_of_fedavg():
    for method in ("ccst", "fedprox", "fedavg"):
        assert chosen(RunConfig(method=method, rounds=1), STYLE, BANK, MODEL, target="fedavg").target == "fedavg"


@pytest.mark.parametrize(
    ("config", "sent", "target", "said"),
    [
        (RunConfig(method="ccst"), [STYLE, BANK], "ccst-single", "this run had other options"),
        (RunConfig(method="ccst"), [STYLE, BANK], "fisc", "fisc is of fisc; this run is of ccst"),
        (RunConfig(method="ccst"), [STYLE, BANK], "ccst-ovrall", "did you mean 'ccst-overall'"),
        (RunConfig(method="fedavg"), [MODEL], None, "trained for 0 rounds"),
        (RunConfig(method="fedavg", rounds=1), [], None, "released nothing"),
        (RunConfig(method="ccst"), [MODEL], None, "this run trained for 0 rounds and released ModelState"),
        (RunConfig(method="artifacts"), [STYLES], None, "unknown method 'artifacts'"),
    ],
)
def test_a_target_that_the_run_was_not_is_refused(
    config: RunConfig, sent: list[Artifact], target: str | None, said: str
):
    with pytest.raises(UsageError, match=said):
        chosen(config, *sent, target=target)


def test_the_attacks_settings_are_the_requests_and_the_rest_the_runs():
    config = RunConfig(method="ccst", seed=7, partition="lambda", clients=9, profile="full", device="cuda")
    request = RecordedRequest(
        run=Path("run"), attacks=("membership",), adversary="outsider", device="cpu",
        assignments=("attacks.membership.clients=5",),
    )  # fmt: skip

    found = settings_for(record(config, STYLE, BANK), request)

    assert (found.seed, found.partition, found.clients) == (7, "lambda", 9)
    assert (found.attacks, found.adversary, found.profile, found.device) == (
        ("membership",),
        "outsider",
        "quick",
        "cpu",
    )
    assert found.attack_options == {"membership": {"clients": 5}}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (replace(ASKED, profile="quik"), "did you mean 'quick'"),
        (replace(ASKED, adversary="serverr"), "'server' or 'client' or 'outsider'"),
        (replace(ASKED, assignments=("method.k=2",)), "cannot change a finished run"),
        (replace(ASKED, assignments=("attacks",)), "name.option=value"),
    ],
)
def test_settings_that_are_the_runs_or_nobodys_are_refused(asked: RecordedRequest, said: str):
    with pytest.raises(UsageError, match=said):
        settings_for(record(RunConfig(method="ccst"), STYLE, BANK), asked)
