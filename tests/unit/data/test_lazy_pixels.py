"""Sets too large to hold: listed and split without decoding, decoded when asked for, and pictures of every depth."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgsec.data.catalog import load_dataset
from fdgsec.data.dataset_scan import scan
from fdgsec.data.dataset_specs import FolderSpec
from fdgsec.data.domains import join
from fdgsec.data.image_sources import open_source
from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.runtime.errors import DataError

SPEC = FolderSpec(title="Mine", domains={})


def picture(array: np.ndarray, suffix: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, suffix)
    return buffer.getvalue()


def grown(root: Path, count: int) -> Path:
    """`count` pictures in two domains and two classes, each of a brightness of its own."""
    for number in range(count):
        path = root / f"{'ab'[number % 2]}/{'xy'[number // 2 % 2]}/{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(np.full((6, 6, 3), number, dtype=np.uint8)))
    return root


def test_lazy_pixels_are_those_that_are_decoded_at_once(tmp_path: Path) -> None:
    root = grown(tmp_path, 20)

    eager = load_dataset("folder", data_root=root, image_size=6)
    lazy = load_dataset("folder", data_root=root, image_size=6, lazy=True)

    assert isinstance(lazy.store, LazyPixels)
    assert torch.equal(lazy.pixels(), eager.pixels())
    assert torch.equal(lazy.pixels(torch.tensor([7, 3, 7])), eager.pixels(torch.tensor([7, 3, 7])))
    assert lazy.pixels(torch.empty(0, dtype=torch.int64)).shape == (0, 3, 6, 6)
    assert torch.equal(join([lazy.of_domain("a"), lazy.of_domain("b")]).pixels(), lazy.pixels())


def test_what_is_kept_is_bounded_and_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_source(grown(tmp_path, 20)) as source:
        files = scan(source, SPEC).files
    store = LazyPixels(tmp_path, files, image_size=6, cache_bytes=5 * 3 * 36)
    read: list[str] = []
    inner = store._source.read
    monkeypatch.setattr(store._source, "read", lambda name: (read.append(name), inner(name))[1])

    for row in (0, 1, 2, 3, 4, 0):
        store[torch.tensor([row])]
    assert len(read) == 5
    store[torch.tensor([5])]
    store[torch.tensor([1])]
    assert len(read) == 7  # row 1 was the one that had to go


def test_another_file_under_the_same_name_is_another_dataset(tmp_path: Path) -> None:
    root = grown(tmp_path, 8)
    first = load_dataset("folder", data_root=root, image_size=6, lazy=True).content_sha256
    (root / "a/x/000.png").write_bytes(picture(np.zeros((9, 9, 3), dtype=np.uint8)))

    assert load_dataset("folder", data_root=root, image_size=6, lazy=True).content_sha256 != first


def test_a_corrupt_image_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    root = grown(tmp_path, 8)
    (root / "a/x/000.png").write_bytes(b"no image")
    data = load_dataset("folder", data_root=root, image_size=6, lazy=True)

    assert data.pixels(torch.tensor([1])).shape == (1, 3, 6, 6)
    with pytest.raises(DataError, match=r"a/x/000\.png cannot be decoded"):
        data.pixels()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((6, 6), 257 * 200, dtype=np.uint16), [200, 200, 200]),
        (np.full((6, 6), 90, dtype=np.uint8), [90, 90, 90]),
        (np.full((6, 11, 3), (10, 20, 30), dtype=np.uint8), [10, 20, 30]),
        (np.full((9, 6, 4), (10, 20, 30, 255), dtype=np.uint8), [10, 20, 30]),
    ],
    ids=["16 bits", "gray", "wide", "alpha"],
)
@pytest.mark.parametrize("suffix", ["PNG", "TIFF"])
def test_every_depth_and_shape_becomes_eight_bit_rgb_squares(
    tmp_path: Path, array: np.ndarray, expected: list[int], suffix: str
) -> None:
    for domain in ("a", "b"):
        (tmp_path / domain / "x").mkdir(parents=True)
        (tmp_path / domain / "x" / f"0.{suffix.lower()}").write_bytes(picture(array, suffix))

    data = load_dataset("folder", data_root=tmp_path, image_size=6)

    assert data.pixels().shape == (2, 3, 6, 6)
    assert data.pixels()[0, :, 2, 3].tolist() == expected


LIST = """
import sys, time
from pathlib import Path
from fdgsec.data.catalog import load_dataset
from fdgsec.data.partition import lodo, partition
from fdgsec.data.roles import split_roles
from fdgsec.runtime.random_streams import stream
start = time.process_time()
data = load_dataset("folder", data_root=Path(sys.argv[1]), image_size=96)
split = lodo(data, 0)
parts = partition(data.subset(split.train), "domain", rng=stream(0, "world"))
roles = split_roles(data.subset(split.train), rng=stream(0, "world"))
taken = time.process_time() - start  # wall-clock time is this on a machine with nothing else to do
# not getrusage: its peak is inherited from the process that started this one
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0])  # without the pages of torch's libraries
print(len(data), len(parts), len(roles.federation), taken, peak)
"""


@pytest.mark.nightly
@pytest.mark.slow  # to make so many files takes as long as to list them
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_two_hundred_thousand_images_are_listed_and_split_in_20_s_and_1_gb(tmp_path: Path) -> None:
    for domain in range(20):
        for label in range(10):
            folder = tmp_path / f"camera_{domain:02d}/species_{label}"
            folder.mkdir(parents=True)
            for number in range(1000):
                with (folder / f"{number:04d}.jpg").open("wb") as file:
                    file.truncate(40_000)  # sparse: a size and no blocks

    done = subprocess.run([sys.executable, "-c", LIST, str(tmp_path)], capture_output=True, text=True, check=True)

    images, clients, federation, taken, peak = done.stdout.split()
    assert (int(images), int(clients)) == (200_000, 19)
    assert int(federation) == 133_000
    assert float(taken) <= 20
    assert int(peak) <= 2**20  # KiB
