"""What tests of several files need: one thread where they run side by side, a cache and a web server of their own."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.local_site import Site, serving

if "PYTEST_XDIST_WORKER" in os.environ:  # networks of several workers on all cores only wait for each other
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
os.environ.pop("COLUMNS", None)  # what is printed is as wide as without it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a nightly test that `make test` would run too."""
    kept = [item.nodeid for item in items if item.get_closest_marker("nightly")
            and not any(map(item.get_closest_marker, ("medium", "slow")))]  # fmt: skip
    if kept:
        raise pytest.UsageError(f"nightly tests are also medium or slow: {', '.join(kept)}")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: it would go through all of it again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all tests of a run, in every worker, share a cache of their own, whatever the user's holds."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FDGSEC_CACHE", str(root / "cache"))
        yield


@pytest.fixture(autouse=True)
def no_weights_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fdgsec find no weights but those that a test stores; tests marked `data` use $FDGSEC_WEIGHTS."""
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("FDGSEC_WEIGHTS", raising=False)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let fdgsec keep what it caches in a folder of this test."""
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve what the test puts into `site.files`, past any proxy of the environment."""
    monkeypatch.setenv("no_proxy", "*")
    with serving({}) as site:
        yield site
