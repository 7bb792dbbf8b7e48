"""Stored statistics of images are used again only by the code and the version of torch that computed them."""

import importlib.util
import linecache
import sys
from pathlib import Path

import pytest
import torch

from fdgsec.data.shapes import shapes
from fdgsec.nn.styles import encoders, image_styles
from fdgsec.nn.styles.encoders import Pixels, code_sha256, load_encoder
from fdgsec.nn.styles.image_styles import forget_encoders, prepare_statistics, register_encoder, statistics
from fdgsec.nn.training import numerics


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))


def test_the_same_code_reads_them_and_gets_the_same_numbers():
    first, second = (shapes(image_size=16, per_domain=8) for _ in range(2))

    assert not prepare_statistics("mini", first, reuse=True)
    assert prepare_statistics("mini", second, reuse=True)
    assert torch.equal(statistics("mini", first).mean, statistics("mini", second).mean)


@pytest.mark.parametrize("changed", ["code", "torch", "processor"])
def test_other_code_another_torch_or_another_processor_computes_them_anew(
    changed: str, monkeypatch: pytest.MonkeyPatch
):
    prepare_statistics("mini", shapes(image_size=16, per_domain=8), reuse=True)

    if changed == "code":
        monkeypatch.setattr(image_styles, "source_sha256", lambda package: f"other {package}")
    elif changed == "processor":
        monkeypatch.setattr(numerics, "capabilities", lambda: {"cpu_name": "another", "amx_bf16": True})
    else:
        monkeypatch.setattr(torch, "__version__", "0.0.0")
    assert not prepare_statistics("mini", shapes(image_size=16, per_domain=8), reuse=True)


PLUG_IN = """
from fdgsec.nn.styles.encoders import Pixels

class Scaled(Pixels):
    name = "scaled"

    def _features(self, images):
        return {factor} * super()._features(images)
"""


def scaled(folder: Path, factor: int, monkeypatch: pytest.MonkeyPatch) -> Pixels:
    """The encoder of a plug-in's module, in the version with this factor."""
    path = folder / "scaled_plug_in.py"
    path.write_text(PLUG_IN.format(factor=factor))
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location("scaled_plug_in", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scaled_plug_in", module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    made = module.Scaled()
    assert isinstance(made, Pixels)
    return made


def test_another_version_of_a_plug_ins_encoder_computes_them_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its weights are the same, and its code is no part of fdgsec."""
    found = []
    for factor in (1, 30):
        forget_encoders()
        register_encoder(scaled(tmp_path, factor, monkeypatch))
        data = shapes(image_size=16, per_domain=8)
        assert not prepare_statistics("scaled", data, reuse=True)
        found.append(statistics("scaled", data).mean)
    forget_encoders()
    torch.testing.assert_close(found[1], 30 * found[0])


def test_another_version_of_a_plug_ins_encoder_is_another_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is kept by the fingerprint (features, finished trainings, rounds) was computed by this code alone."""
    monkeypatch.setattr(encoders, "encoder_names", lambda: ("scaled",))
    found = []
    for factor in (1, 30, 1):
        made = scaled(tmp_path, factor, monkeypatch)
        monkeypatch.setattr(encoders, "resolve", lambda group, name, made=made: lambda: made)
        found.append(load_encoder("scaled").fingerprint)

    assert found[0] == found[2] != found[1]


def test_a_bundled_encoder_has_the_fingerprint_of_its_weights():
    """Else every stored number would be another one's."""
    assert code_sha256(Pixels()) == ""
    assert load_encoder("pixels").fingerprint == Pixels().fingerprint


def test_without_reuse_what_this_process_computed_is_computed_anew(monkeypatch: pytest.MonkeyPatch):
    data, encoded = shapes(image_size=16, per_domain=8), list[int]()
    prepare_statistics("mini", data, reuse=True)
    moments = image_styles.image_moments
    monkeypatch.setattr(image_styles, "image_moments", lambda *given: encoded.append(len(given[1])) or moments(*given))

    prepare_statistics("mini", data, reuse=True)
    assert encoded == []
    prepare_statistics("mini", data, reuse=False)
    assert sum(encoded) == len(data)


def test_forgotten_encoders_leave_no_statistics():
    data = shapes(image_size=16, per_domain=8)
    statistics("mini", data)
    forget_encoders()
    assert image_styles._TABLES == {}
