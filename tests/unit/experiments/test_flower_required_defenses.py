"""A node that was started with --require-defense takes part in no run in which the server could undo that defense."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fdgsec.experiments.flower import apps
from fdgsec.experiments.flower.jobs import Job, Status
from fdgsec.experiments.run_config import resolve_settings
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.federation.round_loop import ClientFailedError
from fdgsec.federation.wire import Transcript
from tests.support.paper_grid import PaperGrid

REQUIRED = "private-styles:epsilon=1"


@pytest.mark.parametrize("order", [1, -1], ids=["raw last", "raw first"])
def test_a_node_refuses_a_hostile_server_that_lists_a_second_mechanism(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unchecked(_stack: DefenseStack, _method: Method) -> None:
        """A server that leaves its own check out."""

    monkeypatch.setattr(DefenseStack, "check", unchecked)
    listed = (REQUIRED, "private-styles:epsilon=inf,clip=1e9")[::order]
    config = resolve_settings(
        {"dataset": "shapes", "rounds": 0, "per_domain": 24, "image_size": 32, "defenses": listed},
        preset=None, defaults={"method": "ccst"},
    )  # fmt: skip
    grid = PaperGrid.of(tmp_path / "nodes", 3, node_config={"require-defenses": f'["{REQUIRED}"]'})
    job = Job(config=config, purpose="train", clients=3, wait=0.1)

    with pytest.raises(ClientFailedError, match=r"takes part in no run with private-styles:epsilon=inf,clip="):
        apps._run_job(job, grid.grid, tmp_path / "job", Status(folder=tmp_path / "job"))

    assert not [
        path for path in (tmp_path / "job").rglob("transcript*") if list(Transcript.load(path.parent).messages())
    ]
