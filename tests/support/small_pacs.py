"""A small PACS, as a folder or a .zip file."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from fdgsec.data.catalog import DATASETS, load_dataset
from fdgsec.data.dataset_specs import FolderSpec
from fdgsec.data.domains import DomainDataset

Files = Mapping[str, bytes]


def pacs() -> FolderSpec:
    spec = DATASETS["pacs"].files
    assert spec is not None
    return spec


def png(value: int, *, side: int = 8, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    ramp = (np.arange(side * side).reshape(side, side) + value).astype(np.uint8)
    Image.fromarray(ramp).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


SMALL: Files = {
    "photo/dog/b.png": png(10),
    "photo/dog/a.png": png(20),
    "photo/person/a.png": png(30),
    "art_painting/house/x.png": png(40),
    "sketch/dog/n_4068-1.png": png(50),
}


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def under(prefix: str, files: Files = SMALL) -> Files:
    return {prefix + name: content for name, content in files.items()}


def load(root: Path, *, image_size: int = 8) -> DomainDataset:
    return load_dataset("pacs", data_root=root, image_size=image_size, allow_partial=True)
