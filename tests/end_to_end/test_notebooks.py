from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_without_output(script: Path):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    expected = jupytext.read(script)

    assert [cell.source for cell in notebook.cells] == [cell.source for cell in expected.cells]
    assert not [cell for cell in notebook.cells if cell.get("outputs")]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # what the kernel's own libraries warn about is not ours
def test_a_notebook_runs_on_shapes(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    notebook = jupytext.read(script)

    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()

    assert any(cell.get("outputs") for cell in notebook.cells)
