"""`fdgsec audit` with several defenses: one promise is audited behind and before what promises nothing, two are refused."""

import json
from pathlib import Path

import pytest

from fdgsec.cli.app import main
from fdgsec.runtime.registry import DEFENSES

OPTIONS = [
    "--per-domain", "20", "--image-size", "32", "--encoder", "pixels", "--norm", "group", "--runs", "300", "--distinct-releases", "0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def audit(out: Path, target: str, *defenses: str, options: tuple[str, ...] = ()) -> int:
    stated = [part for defense in defenses for part in ("--defense", defense)]
    return main(["audit", "--target", target, *stated, "--out", str(out), *OPTIONS, *options])


def document(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "audit.json").read_text())
    return found


@pytest.mark.parametrize(
    "defenses",
    [
        ("private-styles:epsilon=8", "quantize:bits=12,low=-8,high=8"),
        ("private-styles:epsilon=8", "style-noise:p=0,scale=0.01"),
        ("guards", "private-styles:epsilon=8"),
    ],
    ids=["rounded afterwards", "more noise", "guards"],
)
@pytest.mark.medium
def test_a_promise_is_audited_with_what_acts_before_and_behind_it(defenses: tuple[str, ...], tmp_path: Path):
    code = audit(tmp_path, "ccst-single", *defenses)

    found = document(tmp_path)
    assert code == 0
    assert float(str(found["claimed_epsilon"])) == pytest.approx(8.0, rel=1e-6)
    assert 1 < float(str(found["lower_bound"])) <= 8
    (named,) = [one for one in [found["defense"]] if isinstance(one, dict)]
    every = found["defenses"]
    assert isinstance(every, list)
    assert named["name"] == "private-styles"
    assert [one["name"] for one in every] == [text.partition(":")[0] for text in defenses]


@pytest.mark.medium
def test_a_broken_promise_is_caught_behind_another_defense_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesWithATenthOfTheNoise")  # type: ignore[arg-type]

    code = audit(tmp_path, "ccst-single", "private-styles:epsilon=2", "quantize:bits=12,low=-8,high=8")

    assert code == 1


@pytest.mark.parametrize(
    ("target", "defenses", "said"),
    [
        (
            "ccst-overall", ("dp-sgd:epsilon=8", "private-styles:epsilon=4,neighbors=zero-out"),
            "dp-sgd:epsilon=8 and private-styles:epsilon=4,neighbors=zero-out give one each; audit each of them alone",
        ),
        ("ccst-overall", ("private-styles", "shuffle"), "shuffle acts on the wire"),
        ("ccst-overall", ("quantize", "style-noise"), "quantize then style-noise states no (epsilon, delta)"),
    ],
)  # fmt: skip
def test_what_one_audit_cannot_look_at_is_refused_with_the_reason(
    target: str, defenses: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = audit(tmp_path, target, *defenses)

    assert code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "audit.json").exists()


@pytest.mark.medium
def test_an_audit_goes_twice_into_the_same_folder_and_into_nobody_elses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")

    codes = [audit(own, "ccst-overall", "private-styles:epsilon=8", options=("--runs", "40")) for _ in range(2)]
    refused = audit(foreign, "ccst-overall", "private-styles:epsilon=8")

    assert codes == [0, 0]
    assert refused == 2
    assert "holds files that fdgsec did not write" in capsys.readouterr().err
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
