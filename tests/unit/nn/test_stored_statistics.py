"""Stored statistics of images are used again only by the code and the version of torch that computed them."""

from pathlib import Path

import pytest
import torch

from fdgsec.data.shapes import shapes
from fdgsec.nn.styles import image_styles
from fdgsec.nn.styles.image_styles import prepare_statistics, statistics


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))


def test_the_same_code_reads_them_and_gets_the_same_numbers():
    first, second = (shapes(image_size=16, per_domain=8) for _ in range(2))

    assert not prepare_statistics("mini", first, reuse=True)
    assert prepare_statistics("mini", second, reuse=True)
    assert torch.equal(statistics("mini", first).mean, statistics("mini", second).mean)


@pytest.mark.parametrize("changed", ["code", "torch"])
def test_other_code_or_another_torch_computes_them_anew(changed: str, monkeypatch: pytest.MonkeyPatch):
    prepare_statistics("mini", shapes(image_size=16, per_domain=8), reuse=True)

    if changed == "code":
        monkeypatch.setattr(image_styles, "source_sha256", lambda package: f"other {package}")
    else:
        monkeypatch.setattr(torch, "__version__", "0.0.0")
    assert not prepare_statistics("mini", shapes(image_size=16, per_domain=8), reuse=True)
