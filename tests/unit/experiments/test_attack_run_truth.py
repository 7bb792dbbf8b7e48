"""What stands behind a recorded release: known where it can be made again byte for byte, and nowhere else."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdgsec.attacks.gradient_inversion.attack import GradientInversion
from fdgsec.attacks.model_membership.attack import ModelMembership
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, attack_recorded
from fdgsec.experiments.attack_run.read_finished_run import Recorded
from fdgsec.experiments.attack_run.truth import RecordedQuestions, ReproducedStates, models_not_kept, reproduce_states
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import FederationRun
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ImageStyles, ModelState, StyleDistribution
from fdgsec.federation.method import SHARED_ROWS
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.attack import Question
from tests.support.recorded_run import again, edited, ran

LOOKED_UP = Reidentification()
MODELS = ModelMembership()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("runs") / "ccst", defenses=("style-noise:p=0.1,scale=0.05",))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("runs") / "fedavg", "fedavg", rounds=1, keep="models=last")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def found(made: Recorded) -> ReproducedStates:
    return reproduce_states(made, defense_stack_of(made.config, made.method))


def questions(made: Recorded) -> RecordedQuestions:
    again = found(made)
    observed = FederationRun(transcript=made.record.transcript, states=again.states)
    challenger = Challenger(
        method=made.method, roles=made.roles, sources=made.world.sources, clients=made.clients,
        adversary=ADVERSARIES["server"], encoder="pixels", seed=0, run=observed, model=made.model,
        defense_stack=defense_stack_of(made.config, made.method),
    )  # fmt: skip
    return RecordedQuestions(recorded=made, challenger=challenger, reproduced=again)


@pytest.mark.medium
def test_rows_found_by_sharing_again_are_the_images_behind_the_recorded_ones(tmp_path: Path):
    made = again(ran(tmp_path / "run"))

    truth = found(made)

    sent = {m.sender: m.artifact for m in made.record.transcript.messages() if m.stage == "share"}
    assert set(truth.reasons.values()) == {""}
    for client in made.clients:
        artifact = sent[client.name]
        assert isinstance(artifact, ImageStyles)
        behind = client.data.subset(truth.states[client.name][SHARED_ROWS])
        mean, std = statistics("pixels", behind).style(unbiased=True)
        assert torch.equal(artifact.mean, mean.float())
        assert torch.equal(artifact.std, std.float())


def test_defended_releases_are_made_again_where_the_noise_is_the_runs_own(run: Path):
    assert set(found(again(run)).reasons.values()) == {""}


def test_noise_from_elsewhere_leaves_the_truth_unknown_and_the_rest_answered(copy: Path):
    edited(copy, "config.json", defenses=["style-noise:p=0.1,scale=0.051"])
    asked = questions(again(copy))

    released, simulated = Question(kind="released", gallery=50), Question(kind="as_if_released", per_class=1)

    assert asked.cases(released, LOOKED_UP) == []
    assert "client:2 released cannot be reproduced here byte for byte" in asked.gap(released, LOOKED_UP)
    assert len(asked.cases(simulated, LOOKED_UP)) == 3
    assert asked.gap(simulated, LOOKED_UP) == ""


def test_only_clients_whose_truth_is_known_are_asked_about(run: Path):
    asked = questions(again(run))
    one = replace(
        asked, reproduced=replace(asked.reproduced, reasons={**asked.reproduced.reasons, "client:1": "not known"})
    )

    question = Question(kind="released", gallery=50)

    assert [case.victim for case, _ in asked.cases(question, LOOKED_UP)] == ["client:0", "client:1", "client:2"]
    del asked.challenger.memo[question]
    assert [case.victim for case, _ in one.cases(question, LOOKED_UP)] == ["client:0", "client:2"]
    assert one.gap(question, LOOKED_UP) == "not known"


@pytest.mark.medium
def test_a_client_that_sat_out_all_rounds_is_not_asked_about(tmp_path: Path):
    run = ran(tmp_path / "run", "fedalign", rounds=1, options=(), participation=0.67)
    asked = questions(again(run))

    took_part = {row.sender for row in asked.recorded.record.transcript.rows if row.stage == "share"}
    cases = asked.cases(Question(kind="released", gallery=50), LOOKED_UP)

    assert {case.victim for case, _ in cases} == took_part
    assert len(took_part) == 2
    assert asked.gap(Question(kind="released"), LOOKED_UP).endswith("took part in no round")


@pytest.mark.medium
def test_names_that_a_policy_hid_are_not_guessed(tmp_path: Path):
    run = ran(tmp_path / "run", defenses=("shuffle",))

    reasons = found(again(run)).reasons

    assert set(reasons) == {"client:0", "client:1", "client:2"}
    assert all("has a name that a policy replaced" in reason for reason in reasons.values())


@pytest.mark.medium
def test_members_asked_about_trained_and_others_did_not(trained: Path):
    made = again(trained, target="fedavg")
    cases = questions(made).cases(Question(kind="trained", count=20), MODELS)

    pixels = {client.name: client.data.pixels() for client in made.clients}
    held = made.roles.held_out.pixels()
    assert [case.victim for case, _ in cases] == ["client:0", "client:1", "client:2"]
    for case, truth in cases:
        assert case.candidates is not None
        assert truth.members is not None
        members = case.candidates.pixels(truth.members.nonzero().flatten())
        others = case.candidates.pixels((~truth.members).nonzero().flatten())
        assert len(members) == len(others) > 5
        assert all(any(torch.equal(image, own) for own in pixels[case.victim]) for image in members)
        assert all(any(torch.equal(image, own) for own in held) for image in others)
        assert case.records == len(pixels[case.victim])


def test_copied_images_are_neither_members_nor_others(trained: Path):
    made = again(trained, target="fedavg")
    copied = frozenset([*made.clients[0].data.ids[:100], *made.roles.held_out.ids[:5]])

    cases = questions(replace(made, copied=copied)).cases(Question(kind="trained", count=1000), MODELS)

    shown = torch.cat([case.candidates.rows for case, _ in cases if case.candidates is not None])
    names = {made.world.dataset.ids[int(row)] for row in shown}
    assert not names & copied
    assert cases[0][0].records == len(made.clients[0].data)


@pytest.mark.medium
def test_models_that_were_not_kept_are_named_with_the_option_that_keeps_them(tmp_path: Path):
    run = ran(tmp_path / "run", "fedavg", rounds=1)
    asked = questions(again(run, target="fedavg"))

    outputs = "this run kept no models; train it again with --keep models=last"

    assert asked.cases(Question(kind="trained", count=20), MODELS) == []
    assert asked.gap(Question(kind="trained", count=20), MODELS) == outputs
    assert asked.gap(Question(kind="released"), GradientInversion()) == outputs
    assert asked.gap(Question(kind="single_step", records=1, count=1), GradientInversion()) == ""
    assert models_not_kept(MODELS, "models=last") == models_not_kept(LOOKED_UP, "artifacts") == ""


def test_official_splits_leave_nobody_to_compare_members_with(trained: Path):
    asked = questions(replace(again(trained, target="fedavg"), random_split=False))

    assert asked.cases(Question(kind="trained", count=20), MODELS) == []
    assert "an official list, not at random" in asked.gap(Question(kind="trained", count=20), MODELS)


@pytest.mark.medium
def test_a_run_led_elsewhere_has_members_only_where_a_release_says_so(trained: Path, run: Path):
    silent = questions(replace(again(trained, target="fedavg"), remote_data=True))
    shared = questions(replace(again(run), remote_data=True))

    assert silent.cases(Question(kind="trained", count=20), MODELS) == []
    assert "held their own images elsewhere" in silent.gap(Question(kind="trained", count=20), MODELS)
    assert len(shared.cases(Question(kind="released", gallery=50), LOOKED_UP)) == 3


@pytest.mark.medium
def test_a_report_without_its_clients_images_names_the_unseen_domain_alone(trained: Path, tmp_path: Path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    made = again(trained, target="fedavg")
    data = made.record.report["dataset"]

    for manifest in ("", made.world.unseen().manifest_sha256):
        edited(copy, "report.json", dataset={**data, "manifest_sha256": manifest})
        assert again(copy, target="fedavg").remote_data
    assert not made.remote_data


@pytest.mark.medium
def test_clients_of_a_run_led_elsewhere_may_have_kept_their_numbers_to_themselves(trained: Path, tmp_path: Path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    data = again(trained, target="fedavg").record.report["dataset"]
    counts = dict(data["roles"]["train"])
    silent = {name: count for name, count in counts.items() if name != "client:1"}
    wrong = {**silent, "client:0": counts["client:0"] + 1}

    edited(copy, "report.json", dataset={**data, "manifest_sha256": "", "roles": {**data["roles"], "train": silent}})
    assert len(again(copy, target="fedavg").clients) == 3
    edited(copy, "report.json", dataset={**data, "manifest_sha256": "", "roles": {**data["roles"], "train": wrong}})
    with pytest.raises(DataError, match="images as train"):
        again(copy, target="fedavg")
    edited(copy, "report.json", dataset={**data, "roles": {**data["roles"], "train": silent}})
    with pytest.raises(DataError, match="images as train"):  # a run whose images were all here counted them all
        again(copy, target="fedavg")


def test_the_first_model_is_the_recorded_one_or_said_not_to_be(trained: Path):
    made = again(trained, target="fedavg")
    first = next(row for row in made.record.transcript.rows if row.stage == "model")

    assert made.model is not None
    assert made.model.state.sha256 == first.sha256


@pytest.mark.medium
def test_styles_of_layers_that_were_not_kept_cannot_be_attacked(tmp_path: Path):
    run = ran(tmp_path / "run", "stablefdg", rounds=1)
    question = RecordedRequest(run=run, attacks=("membership",))

    with pytest.raises(UsageError, match="train it again with --keep models=last"):
        attack_recorded(question, data_root=None, out=None, fresh=True, progress=NoProgress())


@pytest.mark.medium
def test_styles_of_kept_layers_are_made_again(tmp_path: Path):
    made = again(ran(tmp_path / "run", "stablefdg", rounds=1, keep="models=last"))

    kinds = {m.artifact.kind for m in made.record.transcript.messages()}

    assert {StyleDistribution.kind, ModelState.kind} <= kinds
    assert set(found(made).reasons.values()) == {""}


def test_a_run_is_never_overwritten_by_the_attack_on_it(run: Path):
    with pytest.raises(UsageError, match="is the folder of the attacked run"):
        attack_recorded(RecordedRequest(run=run), data_root=None, out=run, fresh=True, progress=NoProgress())


def test_an_altered_run_is_refused_before_anything_is_written(copy: Path, tmp_path: Path):
    file = copy / "transcript.jsonl"
    file.write_text(file.read_text().replace('"round": 0', '"round": 1', 1))

    with pytest.raises(DataError, match=r"transcript\.jsonl is not the file that was written"):
        attack_recorded(
            RecordedRequest(run=copy), data_root=None, out=tmp_path / "out", fresh=True, progress=NoProgress()
        )

    assert not (tmp_path / "out").exists()
