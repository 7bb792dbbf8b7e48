"""A cache whose files were damaged or forged: the same report as without a cache, and a line that says so."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.experiments.report.schema import AttackReport

pytestmark = pytest.mark.slow  # each case runs the federation and an attack again

SETTINGS: dict[str, Any] = {
    "target": "ccst-overall", "per_domain": 42, "image_size": 16, "attacks": ["differencing"], "seed": 3,
    "defenses": ["private-styles:epsilon=8"],
}  # fmt: skip


def attacked() -> AttackReport:
    return fdgsec.attack(**SETTINGS)


def told(report: AttackReport) -> str:
    document = json.loads(report.json())
    for changing in ("seconds", "reused"):
        del document[changing]
    for changing in ("date", "command"):
        del document["environment"][changing]
    for attack in document["attacks"]:
        del attack["seconds"]
    return json.dumps(document, sort_keys=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def first(cache: Path) -> AttackReport:
    return attacked()


def forged(path: Path) -> None:
    text = path.read_text()
    assert '"epsilon": 8' in text or '"epsilon": 7.9' in text
    document = json.loads(text)
    document["guarantees"] = [{**each, "epsilon": 0.01} for each in document["guarantees"]]
    path.write_text(json.dumps(document))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 0x40
    path.write_bytes(bytes(content))


def without_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("runs/*/facts.json", forged),
        ("runs/*/transcript.jsonl", without_last_line),
        ("runs/*/payloads/*", flipped),
        ("runs/*/payloads/*", Path.unlink),
        ("runs/*/SHA256SUMS", cut),
        ("runs/*/facts.json", cut),
        ("runs/*/transcript.jsonl", Path.unlink),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_bad_entry_is_said_and_made_anew(
    pattern: str, damage: Callable[[Path], None], cache: Path, first: AttackReport, capsys: pytest.CaptureFixture[str]
):
    (path, *_) = sorted(cache.glob(pattern))
    damage(path)

    again = attacked()

    assert told(again) == told(first)
    assert not again.reused
    assert capsys.readouterr().err.count("it is computed anew") == 1
    assert attacked().reused
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", [flipped, cut], ids=["flipped", "cut"])
def test_bad_statistics_are_said_and_made_anew(
    damage: Callable[[Path], None], cache: Path, first: AttackReport, capsys: pytest.CaptureFixture[str]
):
    from fdgsec.nn.styles.image_styles import forget_encoders

    forget_encoders()
    (path,) = sorted(cache.glob("features/*"))
    before = path.read_bytes()
    damage(path)

    assert told(attacked()) == told(first)

    assert capsys.readouterr().err.count("it is computed anew") == 1
    assert path.read_bytes() == before
