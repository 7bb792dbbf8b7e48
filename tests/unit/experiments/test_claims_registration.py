"""Registrations: fixed before a run, checked by hash, and cited with the commit that holds them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdgsec.experiments.claims import fixed_inputs, measured_runs
from fdgsec.experiments.claims.fixed_inputs import MISSING, inputs_of
from fdgsec.experiments.claims.measured_runs import ClaimsRequest, measure, planned_runs
from fdgsec.experiments.claims.registration import (
    NO_CHECKOUT,
    NOT_COMMITTED,
    Registration,
    commit_of,
    read_registration,
    write_registration,
)
from fdgsec.experiments.claims.run_claims import chosen_claims, claims, registered_request, registration_of
from fdgsec.experiments.failed_runs import FailedRunsError
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.metrics.feature_extractors import LITE
from fdgsec.nn.networks.weights import ImportedWeights
from fdgsec.runtime import source_hash
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress

REQUEST = ClaimsRequest(dataset="shapes", encoders=("mini", "pixels"), seeds=(10, 11), given={"per_domain": 20})


@pytest.fixture(scope="module")
def registration() -> Registration:
    return registration_of(REQUEST, data_root=None)


@pytest.fixture
def registered(registration: Registration, tmp_path: Path) -> Path:
    path = tmp_path / "registration.json"
    write_registration(registration, path)
    return path


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.medium
def test_a_registration_gives_the_same_request_back(registration: Registration, registered: Path):
    found = read_registration(registered)

    assert found == registration == registration_of(registered_request(registered), data_root=None)
    assert {
        "encoder mini",
        "encoder pixels",
        *(f"images of shapes, 20 per domain, seed {n}" for n in REQUEST.seeds),
    } <= set(found.inputs)


@pytest.mark.medium
def test_a_registration_may_be_of_some_claims_and_runs_no_others(tmp_path: Path):
    path, some = tmp_path / "some.json", replace(REQUEST, only=("ccst-content", "fedalign-summaries"))
    write_registration(registration_of(some, data_root=None), path)

    assert read_registration(path).claims == ("ccst-content", "fedalign-summaries")
    assert registered_request(path).only == ("ccst-content", "fedalign-summaries")
    with pytest.raises(UsageError, match="registered other claims"):
        claims(
            REQUEST, data_root=None, out=tmp_path / "out", fresh=False, progress=NoProgress(), registration=path
        )  # fmt: skip


def test_the_network_that_recognizes_classes_in_pictures_is_registered_and_may_be_missing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    (config,) = planned_runs(
        chosen_claims(["fedalign-reconstruction"]), replace(REQUEST, encoders=("mini",), seeds=(10,))
    ).values()
    assert inputs_of(config, data_root=None)[f"weights {LITE}"] == MISSING

    stored = ImportedWeights(
        name=LITE, sha256="1" * 64, bytes=1, source="other.pth", source_sha256="2" * 64, official=False
    )
    monkeypatch.setattr(fixed_inputs, "record", lambda name: stored)
    assert inputs_of(config, data_root=None)[f"weights {LITE}"] == "1" * 64


@pytest.mark.medium
def test_a_ledger_that_has_changed_since_is_refused(registered: Path):
    document = json.loads(registered.read_text())
    registered.write_text(json.dumps(document | {"ledger_sha256": "0" * 64}))

    with pytest.raises(UsageError, match="are not those registered"):
        read_registration(registered)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, seeds=(10, 12)), replace(REQUEST, encoders=("mini",)), replace(REQUEST, dataset="pacs"),
        replace(REQUEST, given={}), replace(REQUEST, only=("feddag-privacy",)),
    ],
)  # fmt: skip
def test_a_request_that_was_not_registered_is_refused(registered: Path, tmp_path: Path, other: ClaimsRequest):
    with pytest.raises(UsageError, match="run what is registered"):
        claims(other, data_root=None, out=tmp_path / "out", fresh=False, progress=NoProgress(), registration=registered)


@pytest.mark.medium
def test_runs_beyond_the_claims_may_be_left_out_of_what_is_registered():
    assert registration_of(replace(REQUEST, beyond=False), data_root=None) == registration_of(REQUEST, data_root=None)


@pytest.mark.parametrize("name", [f"images of shapes, 20 per domain, seed {REQUEST.seeds[-1]}", "encoder mini"])
@pytest.mark.medium
def test_other_images_or_weights_than_the_registered_ones_are_refused(registered: Path, tmp_path: Path, name: str):
    document = json.loads(registered.read_text())
    document["inputs"][name] = "0" * 64
    registered.write_text(json.dumps(document))

    with pytest.raises(UsageError, match=f"{name}: not what"):
        claims(
            REQUEST, data_root=None, out=tmp_path / "out", fresh=False, progress=NoProgress(), registration=registered
        )


@pytest.mark.medium
def test_a_report_counts_again_only_under_the_registration_it_was_made_for(tmp_path: Path):
    asked = replace(REQUEST, encoders=("mini",), seeds=(10,))
    chosen = chosen_claims(["fedalign-summaries"])

    def made(registered: str) -> set[int]:
        measure(
            chosen, asked, data_root=None, out=tmp_path, fresh=False, workers=1, progress=NoProgress(),
            registered=registered,
        )  # fmt: skip
        return {path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/report.json")}

    before = made("")
    under = made("registration, commit")

    assert before != under
    assert made("registration, commit") == under


def edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edit fdgsec."""
    monkeypatch.setattr(source_hash, "_hashed", lambda package: f"other {package}")


@pytest.mark.parametrize("during", [True, False])
@pytest.mark.medium
def test_a_run_during_which_fdgsec_was_edited_is_not_stored_and_one_after_it_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, during: bool
):
    source_hash.source_sha256("fdgsec")
    begun = list[RunConfig]()

    def attack(config: RunConfig, **given: Any) -> AttackReport:
        begun.append(config)
        found = run(config, **given)
        edited(monkeypatch)
        return found

    run = measured_runs.attack
    monkeypatch.setattr(measured_runs, "attack", attack)
    if not during:
        edited(monkeypatch)

    with pytest.raises(UsageError, match="were changed while it ran"):
        measure(
            chosen_claims(["fedalign-summaries"]), replace(REQUEST, encoders=("mini",), seeds=(10,)), data_root=None,
            out=tmp_path, fresh=False, workers=1, progress=NoProgress(),
        )  # fmt: skip
    assert len(begun) == during
    assert not list(tmp_path.glob("runs/*.key"))


@pytest.mark.medium
def test_a_run_that_fails_stops_no_other_one_and_is_named_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, begun = measured_runs.attack, list[int]()

    def attack(config: RunConfig, **given: Any) -> AttackReport:
        begun.append(config.seed)
        if config.seed == 11:
            raise UsageError("its weights are not finite.")
        return run(config, **given)

    monkeypatch.setattr(measured_runs, "attack", attack)
    asked = replace(REQUEST, encoders=("mini",), seeds=(10, 11, 12))

    def made() -> None:
        measure(
            chosen_claims(["fedalign-summaries"]), asked, data_root=None, out=tmp_path, fresh=False, workers=1,
            progress=NoProgress(),
        )  # fmt: skip

    failed = r"^runs that failed: 1; .*: fedalign, pixels, adversary client, seed 11: its weights are not finite\.$"
    with pytest.raises(FailedRunsError, match=failed):
        made()
    first = len(begun)
    with pytest.raises(FailedRunsError, match=failed):
        made()
    assert (sorted(set(begun[:first])), begun[first:]) == ([10, 11, 12], [11])


def test_a_registration_is_not_overwritten(registration: Registration, registered: Path):
    with pytest.raises(UsageError, match="is a registration already"):
        write_registration(registration, registered)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seeds": "ten"}'])
def test_a_file_that_is_no_registration_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "other.json"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"other\.json"):
        read_registration(path)


def test_the_commit_is_the_one_that_holds_the_file_as_it_is(registered: Path):
    folder = registered.parent
    assert commit_of(registered) == NO_CHECKOUT

    git(folder, "init", "--quiet")
    assert commit_of(registered) in (NOT_COMMITTED, NO_CHECKOUT)  # no commit at all yet

    git(folder, "add", registered.name)
    git(folder, "commit", "--quiet", "--message", "register")
    head = git(folder, "rev-parse", "HEAD")
    assert commit_of(registered) == head

    git(folder, "commit", "--quiet", "--allow-empty", "--message", "other")
    assert commit_of(registered) == head

    registered.write_text(registered.read_text() + "\n")
    assert commit_of(registered) == NOT_COMMITTED


def test_what_a_link_or_a_pattern_leads_to_is_not_committed(registered: Path, tmp_path: Path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "registration.json").write_bytes(registered.read_bytes())
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "register")
    head = git(folder, "rev-parse", "HEAD")
    (folder / "other").mkdir()
    (folder / "other" / "evil.json").write_text("{}")
    (folder / "registration.json").rename(folder / "kept")
    (folder / "registration.json").symlink_to("other/evil.json")
    (folder / "*.json").write_text("{}")

    assert commit_of(folder / "registration.json") == NOT_COMMITTED
    assert commit_of(folder / "*.json") == NOT_COMMITTED
    (folder / "registration.json").unlink()
    (folder / "kept").rename(folder / "registration.json")
    assert commit_of(folder / "registration.json") == head
    git(folder, "update-index", "--assume-unchanged", "registration.json")
    (folder / "registration.json").write_text("{}")
    assert commit_of(folder / "registration.json") == NOT_COMMITTED
