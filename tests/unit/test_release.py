"""What a release rests on: locks that fit pyproject.toml, an image without surprises, workflows that run the checks."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
LOCKS = {"run": CORE, "lowest": CORE, "ci": CORE + [Requirement(text) for text in (*EXTRAS["dev"], *EXTRAS["docs"])]}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def pins(lock: str) -> dict[str, Version]:
    """The packages of a lock with their versions."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+) \\$", text, re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def docker_answers() -> bool:
    """Whether images can be built here."""
    return (
        shutil.which("docker") is not None
        and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    )


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_an_allowed_version_of_every_requirement(lock: str):
    """This is what makes a changed requirement fail until `make lock` was run."""
    found = pins(lock)

    asked = [requirement for requirement in LOCKS[lock] if requirement.name != "fdgsec"]
    assert len(asked) >= len(CORE) > 10
    for requirement in asked:
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_has_a_hash_and_none_an_address(lock: str):
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()

    packages = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^ *#.*\n", "", text).strip())
    assert len(packages) == len(pins(lock)) > 20
    assert [package for package in packages if not re.search(r"--hash=sha256:[0-9a-f]{64}", package)] == []
    assert not re.search(r"://|--index|--extra-index|--find-links|--trusted", text)


def test_every_requirement_states_its_lowest_version_and_the_lowest_lock_has_it():
    found = pins("lowest")

    for requirement in CORE:
        bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        assert len(bounds) == 1, requirement
        bound, pinned = Version(bounds[0]).release, found[canonicalize_name(requirement.name)].release
        assert pinned[: len(bound)] == bound or pinned == (*bound, 0), requirement  # a first patch may have been yanked


def test_the_lock_for_running_is_part_of_the_one_for_ci():
    run, ci = pins("run"), pins("ci")

    assert {name for name, version in run.items() if ci.get(name) != version} <= {
        "rich",
        "typer",
        "click",
        "setuptools",
        "packaging",
        "protobuf",
    }


def test_the_image_is_pinned_unprivileged_and_installs_by_hashes():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    last = DOCKERFILE.rpartition("\nFROM ")[2]

    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", bases[0])
    assert re.search(r"^USER (?!root|0)\w+$", last, re.MULTILINE)
    assert last.index("USER ") < last.index("ENTRYPOINT")
    assert "--require-hashes -r requirements/run.txt" in DOCKERFILE
    installs = re.findall(r"pip install [^\n]*", DOCKERFILE)
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    assert not re.search(
        r"^(ARG|ENV)\b.*(TOKEN|PASSWORD|SECRET|KEY)|^ADD |curl |wget |sudo |:latest", DOCKERFILE, re.MULTILINE
    )


def test_what_must_not_get_into_an_image_is_ignored():
    ignored = set((ROOT / ".dockerignore").read_text().split())

    assert ignored >= {".git", ".venv*", "runs", "state", "*.key", "*.pem"}


@pytest.mark.slow
@pytest.mark.skipif(not docker_answers(), reason="there is no docker daemon")
def test_the_image_builds_and_prints_its_help():
    subprocess.run(["docker", "build", "--quiet", "--tag", "fdgsec-test", str(ROOT)], check=True)
    done = subprocess.run(["docker", "run", "--rm", "fdgsec-test"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("Usage: fdgsec")


def test_workflows_run_the_checks_with_few_permissions():
    folder = ROOT / ".github" / "workflows"
    ci, nightly, release = ((folder / name).read_text() for name in ("ci.yml", "nightly.yml", "release.yml"))

    assert "run: .ci/run" in ci
    assert 'LOCKED: "1"' in ci
    assert "which: [lowest, newest]" in ci
    assert "run: make LOCKED=1 nightly" in nightly
    assert re.search(r"schedule: \[\{ cron: ", nightly)
    for text in (ci, nightly, release):
        assert set(yaml.safe_load(text)["jobs"]) <= {"check", "versions", "lock", "image", "publish", "rates"}
        top = text.partition("\njobs:")[0]
        assert "permissions:\n  contents: read" in top
        assert "secrets." not in text
        actions = re.findall(r"uses: (\S+)", text)
        assert [action for action in actions if not re.fullmatch(r"actions/[\w-]+@(v\d+|[0-9a-f]{40})", action)] == []
    assert "id-token: write" in release
    assert "--trusted-publishing always" in release


def test_commands_of_workflows_are_targets_of_make():
    makefile = (ROOT / "Makefile").read_text()
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]

    asked = {word for text in texts for line in re.findall(r"make ([^\n]+)", text) for word in line.split()}
    asked = (asked - {"${{", "matrix.which", "}}", "LOCKED=1", ".venv/installed"}) | {"lowest", "newest"}
    assert [target for target in asked if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_issue_forms_ask_for_what_is_needed_to_repeat():
    forms = {path.stem: path.read_text() for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")}

    assert set(forms) == {"bug", "false-alarm", "stronger-attack", "config"}
    assert all(isinstance(yaml.safe_load(text), dict) for text in forms.values())
    for name in ("bug", "false-alarm", "stronger-attack"):
        assert "fdgsec --version" in forms[name]
        assert "required: true" in forms[name]


@pytest.mark.medium
def test_the_bill_of_materials_has_every_package_with_its_hash(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "requirements",
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
    ]
    command += ["--of", "JSON", "-o", str(tmp_path / "sbom.json"), "requirements/run.txt"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert {canonicalize_name(one["name"]): Version(one["version"]) for one in found["components"]} == pins("run")
    assert "sha256" in json.dumps(found).lower() or "SHA-256" in json.dumps(found)
