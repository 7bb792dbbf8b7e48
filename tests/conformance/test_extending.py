"""The method that docs/extending.md shows is real: it loads, keeps the engine's promises, and its options are checked."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fdgsec.experiments.config import build
from fdgsec.federation.method import Client, Method
from fdgsec.runtime.errors import UsageError
from tests.support.round_loop import federated, four_clients

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Method]]:
    """The class in the page's Python block, imported from a file of its own."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(code) == 1
    path = tmp_path_factory.mktemp("extension") / "repainting.py"
    path.write_text(code[0])
    spec = importlib.util.spec_from_file_location("repainting", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["repainting"] = module
    spec.loader.exec_module(module)
    yield module.Repainting
    del sys.modules["repainting"]


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def test_the_example_is_about_sixty_lines(shown: type[Method]):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]

    assert len([line for line in code.splitlines() if line.strip()]) <= 60


def test_the_example_runs_plain_and_through_bytes_alike(shown: type[Method], members: list[Client]):
    first = federated(shown(), members, recode=False)
    second = federated(shown(), members, recode=True)

    assert all(torch.equal(first.model[key], second.model[key]) for key in first.model)
    assert first.transcript.sha256 == second.transcript.sha256


def test_the_example_sends_what_the_page_says(shown: type[Method], members: list[Client]):
    outcome = federated(shown(), members, recode=False)

    sent = [(m.round, m.stage, m.artifact.kind, m.artifact.bytes) for m in outcome.transcript.messages()]
    assert sent[:8] == [(0, "share", "StyleStatistics", 24)] * 4 + [(0, "combine", "StyleBank", 128)] * 4
    assert {kind for _, _, kind, _ in sent[8:]} == {"ModelState", "Scores"}


def test_the_example_trains_on_other_pixels_only_where_it_repaints(shown: type[Method], members: list[Client]):
    never = federated(build(shown, {"share_repainted": 0.0}, where="method"), members, recode=False)
    always = federated(build(shown, {"share_repainted": 1.0}, where="method"), members, recode=False)

    own = members[0].data.pixels()
    assert torch.equal(never.states["client:0"]["repainted"], own)
    assert not torch.equal(always.states["client:0"]["repainted"], own)


def test_a_wrong_option_of_the_example_is_answered_with_the_nearest(shown: type[Method]):
    with pytest.raises(UsageError, match="did you mean 'share_repainted'"):
        build(shown, {"share_repaint": 0.5}, where="method")
