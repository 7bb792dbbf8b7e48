"""Python on pages runs as it stands, in a folder with the files and with the names that its page speaks of.

Datasets that cannot be distributed are replaced by the bundled one. docs/extending.md has its own tests
(tests/conformance/test_extending.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fdgsec
from tests.support.pages import PAGES, ROOT, Block, blocks

BLOCKS = [
    block for page in PAGES if page.is_file() and page.name != "extending.md" for block in blocks(page)
    if block.language == "python"
]  # fmt: skip
NOISE = 0.05  # spread of a client's vectors in their second release


def surroundings(folder: Path) -> dict[str, Any]:
    """Names that pages use without making them, and files in the working folder."""
    rng = np.random.default_rng(0)
    clients = rng.normal(size=(12, 16))
    clients[:, 8:] = np.abs(clients[:, 8:]) + 0.1
    table = np.concatenate([clients, np.abs(rng.normal(size=(12, 16))) + 0.1])
    np.save(folder / "styles.npy", clients.astype(np.float32))
    (folder / "docs" / "img").mkdir(parents=True)
    return {
        "fdgsec": fdgsec, "array": clients, "second_array": np.abs(clients + NOISE * rng.normal(size=clients.shape)),
        "one": clients[0], "other": clients[1], "table": table, "owner": np.r_[1:13, np.zeros(12, dtype=int)],
        "means": torch.rand(9, 8), "stds": torch.rand(9, 8) + 0.1,
    }  # fmt: skip


def runnable(block: Block) -> str:
    """The text of a block with the bundled dataset, without what needs files of the reader's own images."""
    lines = [line for line in block.text.splitlines() if '"rows.npy"' not in line]
    return "\n".join(lines).replace('dataset="pacs"', 'dataset="shapes"')


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_of_python_compiles(block: Block):
    compile(block.text, str(block), "exec")


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.excused], ids=str)
def test_a_block_of_python_runs(block: Block, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    names = surroundings(tmp_path)
    monkeypatch.chdir(tmp_path)

    exec(compile(runnable(block), str(block), "exec"), names)  # noqa: S102 - the code of a page


def test_pages_have_blocks_of_python():
    assert {block.page.relative_to(ROOT).name for block in BLOCKS} >= {"README.md", "shapes.md", "attack-existing.md"}
