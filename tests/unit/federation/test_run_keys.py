"""What a stored run is found by: versions and the machine that decide its numbers, and not how many cores it has."""

import pytest

from fdgsec.federation import run_folder
from fdgsec.federation.run_folder import VERSIONED, conditions, run_key


@pytest.mark.parametrize("name", [*VERSIONED, "torch", "python", "processor", "precision", "code_sha256"])
def test_a_run_of_another_version_or_machine_is_another(name: str, monkeypatch: pytest.MonkeyPatch):
    own, here = run_key("settings"), conditions()
    monkeypatch.setattr(run_folder, "conditions", lambda: {**here, name: "another"})

    assert run_key("settings") != own


@pytest.mark.parametrize("name", ["threads", "cores"])
def test_a_run_is_found_again_whatever_the_number_of_cores(name: str, monkeypatch: pytest.MonkeyPatch):
    own, here = run_key("settings"), conditions()
    monkeypatch.setattr(run_folder, "conditions", lambda: {**here, name: 17})

    assert run_key("settings") == own
