"""A job in Flower's simulation: its result, its failures in bounded time, and nothing that remains."""

import json
from pathlib import Path

import pytest

from fdgsec.federation.engines.flower import app
from fdgsec.federation.engines.flower.nodes_and_jobs import simulate
from fdgsec.federation.engines.flower.process_trees import FlowerFailedError
from tests.support.remaining import WORD, remaining, worded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes through /proc"),
]


@pytest.fixture
def word(monkeypatch: pytest.MonkeyPatch) -> str:
    word, environment = worded()
    monkeypatch.setenv(WORD, environment[WORD])
    monkeypatch.setattr(app, "CODE", (Path(__file__).parents[1] / "support" / "tiny_flower_app.py").read_text())
    return word


def test_every_simulated_node_answers_once_with_our_environment_and_one_thread(word: str, tmp_path: Path):
    simulate(tmp_path, 3, timeout=240, environment={"FDGSEC_GIVEN": "yes"})

    told = json.loads((tmp_path / "status.json").read_text())
    expected = {"of": 3, "given": "yes", "threads": "1", "telemetry": "0"}
    assert sorted(told["answers"], key=lambda answer: int(answer["partition"])) == [
        {"partition": number, **expected} for number in range(3)
    ]
    assert told["threads"] == "1"
    assert remaining(word) == []


def test_a_server_app_that_raises_is_an_error_that_quotes_it(word: str, tmp_path: Path):
    (tmp_path / "order").write_text("raise")
    (tmp_path / "status.json").write_text('{"status": "done"}')  # of an earlier run

    with pytest.raises(FlowerFailedError, match="ended without a result: ValueError: by order") as failure:
        simulate(tmp_path, 2, timeout=240)

    assert str(tmp_path / "flower.log") in str(failure.value)
    assert remaining(word) == []


def test_a_server_app_that_hangs_is_ended_in_time(word: str, tmp_path: Path):
    (tmp_path / "order").write_text("hang")

    with pytest.raises(FlowerFailedError, match="not done in time"):
        simulate(tmp_path, 2, timeout=30)

    assert remaining(word) == []
