import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision.models
from torch import nn

from fdgsec.cli import main
from fdgsec.nn.networks import weights
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from tests.support.weight_files import random_state, saved, sha256


@pytest.fixture(autouse=True)
def store(own_cache: Path) -> Path:
    return own_cache / "weights"


@pytest.mark.parametrize("zipped", [True, False])
def test_an_imported_file_comes_back_tensor_for_tensor(tmp_path, zipped):
    state = random_state("squeezenet1_1")

    weights.import_file("squeezenet1_1", saved(state, tmp_path / "mine.pth", zipped=zipped))
    loaded = weights.load_state("squeezenet1_1")

    assert list(loaded) == list(state)
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_half_precision_is_stored_as_it_is_and_loaded_as_fp32(tmp_path, store):
    state = random_state("squeezenet1_0", dtype=torch.float16)
    source = tmp_path / "half.safetensors"
    safetensors.torch.save_file(state, source)

    imported = weights.import_file("squeezenet1_0", source)
    loaded = weights.load_state("squeezenet1_0")

    assert imported.bytes < 1.01 * sum(2 * tensor.numel() for tensor in state.values()) + 10_000
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    assert all(torch.equal(loaded[key], state[key].float()) for key in state)


def test_the_record_names_both_hashes_and_the_source(tmp_path, store):
    source = saved(random_state("squeezenet1_1"), tmp_path / "mine.pt")

    imported = weights.import_file("squeezenet1_1", source)

    stored = store / "squeezenet1_1.safetensors"
    assert json.loads((store / "squeezenet1_1.json").read_text()) == {
        "name": "squeezenet1_1",
        "sha256": sha256(stored),
        "bytes": stored.stat().st_size,
        "source": "mine.pt",
        "source_sha256": sha256(source),
        "official": False,
    }
    assert weights.record("squeezenet1_1").sha256 == imported.sha256 == sha256(stored)


def test_importing_the_same_file_twice_gives_the_same_bytes(tmp_path):
    source = saved(random_state("squeezenet1_1"), tmp_path / "mine.pth")

    assert weights.import_file("squeezenet1_1", source) == weights.import_file("squeezenet1_1", source)


@pytest.mark.medium
def test_another_networks_file_is_refused_with_the_first_difference_and_what_it_is(tmp_path, store):
    source = saved(random_state("squeezenet1_0"), tmp_path / "squeezenet.pth")

    with pytest.raises(UsageError) as caught:
        weights.import_file("squeezenet1_1", source)

    assert str(caught.value) == (
        f"{source} is not squeezenet1_1: features.0.weight must be (64, 3, 3, 3); got (96, 3, 7, 7). "
        "It fits squeezenet1_0."
    )
    assert not list(store.glob("*"))


@pytest.mark.medium
def test_a_missing_key_an_extra_key_and_a_wrong_type_are_each_named(tmp_path):
    state = random_state("squeezenet1_1")
    lacking = {key: tensor for key, tensor in state.items() if key != "classifier.1.bias"}
    whole_numbers = {**state, "features.0.bias": torch.zeros(64, dtype=torch.int64)}

    with pytest.raises(UsageError, match=r"it has no classifier\.1\.bias\."):
        weights.import_file("squeezenet1_1", saved(lacking, tmp_path / "a.pth"))
    with pytest.raises(UsageError, match=r"extra\.weight is not part of it\."):
        weights.import_file("squeezenet1_1", saved({**state, "extra.weight": torch.zeros(1)}, tmp_path / "b.pth"))
    with pytest.raises(UsageError, match=r"features\.0\.bias is of type torch\.int64"):
        weights.import_file("squeezenet1_1", saved(whole_numbers, tmp_path / "c.pth"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(tmp_path, value):
    state = random_state("squeezenet1_1")
    state["features.0.bias"][3] = value

    with pytest.raises(UsageError, match=r"features\.0\.bias holds values that are not finite"):
        weights.import_file("squeezenet1_1", saved(state, tmp_path / "bad.pth"))


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_refused_and_not_run(tmp_path, store, zipped):
    state = {**random_state("squeezenet1_1"), "note": Command(tmp_path / "was_here")}
    source = saved(state, tmp_path / "evil.pth", zipped=zipped)

    with pytest.raises(UsageError, match="pickled code, which is refused"):
        weights.import_file("squeezenet1_1", source)

    assert not (tmp_path / "was_here").exists()
    assert not list(store.glob("*"))


def test_a_whole_pickled_module_is_refused_with_what_to_save_instead(tmp_path):
    source = saved(nn.Conv2d(1, 1, 1), tmp_path / "module.pt")

    with pytest.raises(UsageError, match=r"Save the state dict alone: torch\.save\(model\.state_dict\(\), FILE\)"):
        weights.import_file("squeezenet1_1", source)


@pytest.mark.parametrize("kept", [0, 60, 100_000, -4])
@pytest.mark.parametrize("form", ["zip", "old", "safetensors"])
def test_a_truncated_file_is_refused(tmp_path, store, form, kept):
    state = random_state("squeezenet1_1")
    source = tmp_path / ("part.safetensors" if form == "safetensors" else "part.pth")
    if form == "safetensors":
        safetensors.torch.save_file(state, source)
    else:
        saved(state, source, zipped=form == "zip")
    source.write_bytes(source.read_bytes()[:kept])

    with pytest.raises(UsageError, match="is damaged"):
        weights.import_file("squeezenet1_1", source)

    assert not list(store.glob("*"))


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_page_in_the_place_of_the_file_is_refused_in_one_line(tmp_path, content):
    source = tmp_path / "page.pth"
    source.write_bytes(content)

    with pytest.raises(UsageError, match="not a torch file") as caught:
        weights.import_file("squeezenet1_1", source)

    assert "\n" not in str(caught.value)


def test_what_is_not_a_flat_state_dict_is_refused(tmp_path):
    with pytest.raises(UsageError, match="it holds a list"):
        weights.import_file("squeezenet1_1", saved([torch.zeros(1)], tmp_path / "list.pth"))
    with pytest.raises(UsageError, match="'state_dict' is a dict"):
        weights.import_file("squeezenet1_1", saved({"state_dict": {}}, tmp_path / "nested.pth"))
    with pytest.raises(UsageError, match=r"must be a \.pth, \.pt, \.safetensors or \.h5 file"):
        weights.import_file("squeezenet1_1", saved({}, tmp_path / "weights.bin"))
    with pytest.raises(UsageError, match="is not a file; expected the weights squeezenet1_1"):
        weights.import_file("squeezenet1_1", tmp_path / "absent.pth")


def test_missing_weights_end_with_the_commands_that_get_them(store):
    with pytest.raises(WeightsUnavailableError) as caught:
        weights.load_state("resnet18")

    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "$FDGSEC_CACHE/weights/resnet18.safetensors" in message
    assert "`fdgsec weights fetch resnet18`" in message
    assert "`fdgsec weights import resnet18 resnet18-f37072fd.pth`" in message
    assert "\n" not in message


@pytest.mark.medium
def test_an_explicit_path_wins_over_the_store_and_is_checked_as_strictly(tmp_path):
    weights.import_file("squeezenet1_1", saved(random_state("squeezenet1_1"), tmp_path / "stored.pth"))
    mine = {key: tensor + 1 for key, tensor in random_state("squeezenet1_1").items()}
    path = saved(mine, tmp_path / "mine.pth")

    assert weights.locate("squeezenet1_1", path=path) == path
    assert torch.equal(weights.load_state("squeezenet1_1", path=path)["classifier.1.bias"], mine["classifier.1.bias"])
    with pytest.raises(UsageError, match="is not squeezenet1_0"):
        weights.load_state("squeezenet1_0", path=path)
    with pytest.raises(WeightsUnavailableError, match=r"absent\.pth does not exist"):
        weights.locate("squeezenet1_1", path=tmp_path / "absent.pth")


def test_a_stored_file_that_changed_is_refused(tmp_path, store):
    weights.import_file("squeezenet1_1", saved(random_state("squeezenet1_1"), tmp_path / "mine.pth"))
    stored = store / "squeezenet1_1.safetensors"
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)

    with pytest.raises(WeightsUnavailableError, match=r"is not what was imported.*fdgsec weights import squeezenet1_1"):
        weights.load_state("squeezenet1_1")
    with pytest.raises(WeightsUnavailableError, match="is not what was imported"):
        weights.record("squeezenet1_1")


@pytest.mark.parametrize("record", [None, "", "[]", '{"name": "squeezenet1_1"}'])
def test_a_stored_file_without_its_record_is_refused(tmp_path, store, record):
    weights.import_file("squeezenet1_1", saved(random_state("squeezenet1_1"), tmp_path / "mine.pth"))
    if record is None:
        (store / "squeezenet1_1.json").unlink()
    else:
        (store / "squeezenet1_1.json").write_text(record)

    with pytest.raises(WeightsUnavailableError, match="expected a record beside it"):
        weights.load_state("squeezenet1_1")
    assert not next(row for row in weights.listing() if row.name == "squeezenet1_1").stored


def test_the_listing_has_every_name_and_what_is_stored(tmp_path):
    imported = weights.import_file("squeezenet1_1", saved(random_state("squeezenet1_1"), tmp_path / "mine.pth"))

    rows = {row.name: row for row in weights.listing()}

    assert set(rows) == {
        "resnet18", "resnet50", "mobilenet_v3_large", "squeezenet1_0", "densenet121", "alexnet", "vgg16",
        "squeezenet1_1", "adain_vgg", "adain_decoder", "inception_fid", "vgg16_hed", "vgg16_hed_decoder",
            "efficientnet_lite0",
    }  # fmt: skip
    assert [name for name, row in rows.items() if row.stored] == ["squeezenet1_1"]
    assert (rows["squeezenet1_1"].sha256, rows["squeezenet1_1"].bytes) == (imported.sha256, imported.bytes)
    assert rows["resnet18"].sha256 is None


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UsageError, match=r"unknown weights 'adain-vgg'; did you mean 'adain_vgg'"):
        weights.locate("adain-vgg")


def test_a_digest_that_the_user_gives_is_checked_before_anything_is_read(tmp_path, store):
    source = saved(random_state("squeezenet1_1"), tmp_path / "mine.pth")

    with pytest.raises(UsageError, match=rf"has sha256 {sha256(source)}; expected 00000000\. Get it again"):
        weights.import_file("squeezenet1_1", source, sha256="00000000")
    with pytest.raises(UsageError, match="sha256 must be 8 to 64 hexadecimal digits; got 'abc'"):
        weights.import_file("squeezenet1_1", source, sha256="abc")
    assert not list(store.glob("*"))

    assert main(["weights", "import", "squeezenet1_1", str(source), "--sha256", sha256(source).upper()]) == 0


def test_deeper_layers_of_the_adain_encoder_are_dropped(tmp_path):
    deeper = {"32.weight": torch.zeros(512, 512, 3, 3), "32.bias": torch.zeros(512)}
    source = saved({**random_state("adain_vgg"), **deeper}, tmp_path / "vgg_normalised.pth", zipped=False)

    weights.import_file("adain_vgg", source)

    assert list(weights.load_state("adain_vgg")) == list(weights.expected_shapes("adain_vgg"))


@pytest.mark.medium
def test_the_old_keys_of_torchvisions_densenet_file_and_its_missing_counters_are_understood(tmp_path):
    state = {
        key: torch.full(shape, 0.5)
        for key, shape in weights.expected_shapes("densenet121").items()
        if not key.endswith("num_batches_tracked")
    }
    old = {}
    for key, tensor in state.items():  # denselayer1.norm1.weight was once denselayer1.norm.1.weight
        parts = key.split(".")
        if "denselayer" in key:
            parts[3] = f"{parts[3][:-1]}.{parts[3][-1]}"
        old[".".join(parts)] = tensor
    assert "features.denseblock1.denselayer1.norm.1.weight" in old

    loaded = weights.load_state("densenet121", path=saved(old, tmp_path / "densenet121-a639ec97.pth", zipped=False))

    with torch.device("meta"):
        network = torchvision.models.densenet121(weights=None)
    network.to_empty(device="cpu").load_state_dict(loaded)
    assert int(loaded["features.norm0.num_batches_tracked"]) == 0
    assert loaded["features.norm0.num_batches_tracked"].dtype == torch.int64


@pytest.mark.medium
def test_what_an_earlier_version_took_for_the_published_file_is_not_loaded_as_todays(tmp_path, store):
    state = torchvision.models.mobilenet_v3_large(weights=None).state_dict()
    weights.import_file("mobilenet_v3_large", saved(state, tmp_path / "mine.pth"))
    assert weights.load_state("mobilenet_v3_large")  # one's own file is no published one
    path = store / "mobilenet_v3_large.json"
    first_version = {
        "official": True,
        "source": "mobilenet_v3_large-8738ca79.pth",
        "source_sha256": "8738ca79" + 56 * "0",
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **first_version}))

    with pytest.raises(
        WeightsUnavailableError, match=r"8738ca79.*IMAGENET1K_V2.*fdgsec weights fetch mobilenet_v3_large"
    ):
        weights.load_state("mobilenet_v3_large")


@pytest.mark.data
@pytest.mark.medium
def test_a_real_half_precision_squeezenet_is_taken_and_is_not_mistaken_for_its_successor():
    folder = os.environ.get("FDGSEC_WEIGHTS")
    source = Path(folder or ".") / "squeezenet1_0-imagenet-fp16.safetensors"
    if not folder or not source.is_file():
        pytest.skip("FDGSEC_WEIGHTS names no folder with squeezenet1_0-imagenet-fp16.safetensors")

    imported = weights.import_file("squeezenet1_0", source)
    network = torchvision.models.squeezenet1_0(weights=None)
    network.load_state_dict(weights.load_state("squeezenet1_0"))

    assert not imported.official
    assert 1_230_000 < sum(parameter.numel() for parameter in network.parameters()) < 1_260_000
    with pytest.raises(UsageError, match=r"features\.0\.weight must be \(64, 3, 3, 3\); got \(96, 3, 7, 7\)"):
        weights.import_file("squeezenet1_1", source)


def test_a_file_in_the_weights_folder_is_checked_and_stored_when_it_is_needed(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "weights"
    folder.mkdir()
    safetensors.torch.save_file(
        torchvision.models.squeezenet1_0(weights=None).state_dict(), folder / "squeezenet1_0-mine.safetensors"
    )
    assert not weights.stored("squeezenet1_0")

    monkeypatch.setenv("FDGSEC_WEIGHTS", str(folder))

    assert weights.stored("squeezenet1_0")
    assert len(weights.load_state("squeezenet1_0")) == 52
    assert (own_cache / "weights" / "squeezenet1_0.json").is_file()


@pytest.mark.medium
def test_a_file_of_another_network_in_the_weights_folder_is_refused(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    safetensors.torch.save_file(
        torchvision.models.squeezenet1_1(weights=None).state_dict(), tmp_path / "squeezenet1_0.safetensors"
    )
    monkeypatch.setenv("FDGSEC_WEIGHTS", str(tmp_path))

    with pytest.raises(UsageError, match=r"features\.0\.weight"):
        weights.load_state("squeezenet1_0")
    assert not own_cache.exists()
