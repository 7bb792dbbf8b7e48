import socket
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from fdgsec.cli import main
from fdgsec.nn.networks import weights
from fdgsec.runtime.errors import WeightsUnavailableError
from tests.support.local_site import Site
from tests.support.weight_files import random_state, saved, sha256


@pytest.fixture(autouse=True)
def store(own_cache: Path) -> Path:
    return own_cache / "weights"


def publish(monkeypatch: pytest.MonkeyPatch, site: Site, name: str, file: Path, digest: str) -> None:
    """Let the catalogue point at a server on this machine instead of the internet."""
    site.files[file.name] = file.read_bytes()
    entry = replace(weights.CATALOG[name], url=site.url(file.name), sha256=digest)
    monkeypatch.setattr(weights, "CATALOG", MappingProxyType({**weights.CATALOG, name: entry}))


def test_a_fetched_file_is_stored_and_marked_as_the_published_one(tmp_path, monkeypatch, store, site):
    state = random_state("squeezenet1_1")
    file = saved(state, tmp_path / "published.pth")
    publish(monkeypatch, site, "squeezenet1_1", file, sha256(file)[:8])
    seen: list[tuple[int, int | None]] = []

    imported = weights.fetch("squeezenet1_1", progress=lambda done, total: seen.append((done, total)))

    assert imported.official
    assert imported.source == "published.pth"
    assert seen[-1] == (file.stat().st_size, file.stat().st_size)
    assert torch.equal(weights.load_state("squeezenet1_1")["classifier.1.bias"], state["classifier.1.bias"])
    assert sorted(path.name for path in store.iterdir()) == ["squeezenet1_1.json", "squeezenet1_1.safetensors"]


def test_a_cut_fetch_stores_no_weights_and_the_next_one_goes_on(tmp_path, monkeypatch, store, site):
    file = saved(random_state("squeezenet1_1"), tmp_path / "published.pth")
    publish(monkeypatch, site, "squeezenet1_1", file, sha256(file))
    site.cuts = [2_000_000, 0]

    with pytest.raises(WeightsUnavailableError, match="The 2000000 bytes so far are kept for the next try"):
        weights.fetch("squeezenet1_1")
    assert not any(row.stored for row in weights.listing())

    assert weights.fetch("squeezenet1_1").official
    assert site.asked[-1] == ("published.pth", "bytes=2000000-")
    assert sorted(path.name for path in store.iterdir()) == ["squeezenet1_1.json", "squeezenet1_1.safetensors"]


def test_a_download_with_another_hash_is_not_stored(tmp_path, monkeypatch, store, site):
    file = saved(random_state("squeezenet1_1"), tmp_path / "published.pth")
    publish(monkeypatch, site, "squeezenet1_1", file, "00000000")

    with pytest.raises(WeightsUnavailableError, match=r"expected 00000000\. It was deleted; nothing was stored"):
        weights.fetch("squeezenet1_1")

    assert not list(store.iterdir())


def test_a_fetch_that_fails_leaves_the_stored_weights_as_they_are(tmp_path, monkeypatch, site):
    file = saved(random_state("squeezenet1_1"), tmp_path / "published.pth")
    before = weights.import_file("squeezenet1_1", file)
    publish(monkeypatch, site, "squeezenet1_1", file, "00000000")

    with pytest.raises(WeightsUnavailableError):
        weights.fetch("squeezenet1_1")

    assert weights.record("squeezenet1_1").sha256 == before.sha256


def test_without_a_network_a_fetch_says_in_one_line_which_file_to_get_and_how_to_import_it(monkeypatch, store):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)

    with pytest.raises(WeightsUnavailableError) as caught:
        weights.fetch("squeezenet1_1")

    assert str(caught.value) == (
        "cannot fetch squeezenet1_1: https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth cannot be downloaded: "
        "[Errno 101] Network is unreachable. Get squeezenet1_1-b8a52dc0.pth on another machine and run "
        "`fdgsec weights import squeezenet1_1 squeezenet1_1-b8a52dc0.pth`."
    )
    assert caught.value.exit_code == 3
    assert not list(store.iterdir())


def test_the_command_line_shows_a_bar_on_a_terminal_and_prints_the_record(tmp_path, monkeypatch, capsys, site):
    file = saved(random_state("squeezenet1_1"), tmp_path / "published.pth")
    publish(monkeypatch, site, "squeezenet1_1", file, sha256(file))
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal

    assert main(["weights", "fetch", "squeezenet1_1"]) == 0

    shown = capsys.readouterr()
    assert shown.out.startswith("squeezenet1_1: ")
    assert shown.out.endswith("(the published file)\n")
    assert "squeezenet1_1 (MB)" in shown.err
