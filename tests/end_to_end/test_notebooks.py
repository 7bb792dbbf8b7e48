import ast
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

import fdgsec
from fdgsec.experiments.claims.catalogue import ledger

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_without_output(script: Path):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    expected = jupytext.read(script)

    assert [cell.source for cell in notebook.cells] == [cell.source for cell in expected.cells]
    assert not [cell for cell in notebook.cells if cell.get("outputs")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_of_fdgsec_alone(script: Path):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fdgsec"
    }

    assert [name for name in imported if name.startswith("fdgsec")] == ["fdgsec"]
    assert used <= set(fdgsec.__all__)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_says_that_shapes_are_no_finding(script: Path):
    assert "**Shapes proves that the mechanics work;" in script.read_text().replace("\n# ", " ")


def test_the_notebook_of_claims_has_a_cell_for_each_claim_of_the_ledger_and_no_verdict_of_its_own():
    text = (NOTEBOOKS / "08-the-papers-claims.py").read_text()

    assert re.findall(r'^show\("(.+)"\)$', text, re.MULTILINE) == [claim.id for claim in ledger()]
    assert not re.search("refuted|supported", text)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # what the kernel's own libraries warn about is not ours
def test_a_notebook_runs_on_shapes(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    notebook = jupytext.read(script)

    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()

    assert any(cell.get("outputs") for cell in notebook.cells)
