"""A cap per class: so many images of each class in each domain, drawn by the seed."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from fdgsec.data.catalog import load_dataset
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import UsageError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Thirty dogs and two houses in sketch, five dogs in photo."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="PNG")
    root = tmp_path / "pacs"
    for folder, count in (("sketch/dog", 30), ("sketch/house", 2), ("photo/dog", 5)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            (root / folder / f"{number:02d}.png").write_bytes(buffer.getvalue())
    return root


def capped(tree: Path, *, seed: int = 0, per_domain: int | None = None) -> DomainDataset:
    return load_dataset(
        "pacs", data_root=tree, image_size=8, allow_partial=True, per_class=4, per_domain=per_domain, seed=seed
    )


def test_each_class_of_each_domain_keeps_at_most_its_cap(tree: Path):
    folders = [name.rsplit("/", 1)[0] for name in capped(tree).ids]

    assert {folder: folders.count(folder) for folder in folders} == {"photo/dog": 4, "sketch/dog": 4, "sketch/house": 2}


def test_both_caps_hold_together(tree: Path):
    folders = [name.rsplit("/", 1)[0] for name in capped(tree, per_domain=3).ids]

    assert {folder: folders.count(folder) for folder in folders} == {"photo/dog": 3, "sketch/dog": 2, "sketch/house": 1}


def test_the_seed_draws_and_nothing_else_does(tree: Path):
    assert capped(tree).ids == capped(tree).ids
    assert capped(tree).ids != capped(tree, seed=1).ids


def test_shapes_draws_as_many_of_each_class():
    drawn = load_dataset("shapes", image_size=16, per_class=3)

    assert torch.unique(drawn.labels, return_counts=True)[1].tolist() == [3 * len(drawn.domain_names)] * len(
        drawn.class_names
    )


def test_a_cap_below_one_is_refused():
    with pytest.raises(UsageError, match="per_class must be at least 1; got 0"):
        load_dataset("shapes", per_class=0)
