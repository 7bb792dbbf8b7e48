import ast
import hashlib
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

import fdgsec
from fdgsec.experiments.claims.catalogue import ledger

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
RESULTS = NOTEBOOKS.parent / "benchmarks" / "results"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_with_the_output_of_stored_figures_alone(script: Path):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    expected = jupytext.read(script)

    assert [cell.source for cell in notebook.cells] == [cell.source for cell in expected.cells]
    with_output = [cell for cell in notebook.cells if cell.get("outputs")]
    assert with_output == [cell for cell in notebook.cells if "from-pacs" in cell.metadata.get("tags", [])]
    kinds = {output.output_type for cell in with_output for output in cell.outputs}
    assert kinds <= {"display_data", "stream"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_stored_figures_are_of_the_tables_as_they_are(script: Path):
    """`python notebooks/build.py` draws them anew."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    drawn = "".join(cell.source for cell in notebook.cells if cell.get("outputs"))
    tables = notebook.metadata.get("tables", {})

    assert bool(tables) == bool(drawn)
    for name, digest in tables.items():
        assert f'"{name}"' in drawn
        assert hashlib.sha256((RESULTS / name).read_bytes()).hexdigest() == digest


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


def test_three_notebooks_store_a_figure_of_findings():
    stored = [script.stem for script in SCRIPTS if 'tags=["from-pacs"]' in script.read_text()]

    assert stored == ["02-privacy-against-accuracy", "03-dp-sgd", "04-who-was-in-the-average"]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # what the kernel's own libraries warn about is not ours
def test_a_notebook_runs_on_shapes(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    notebook = jupytext.read(script)

    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()

    assert any(cell.get("outputs") for cell in notebook.cells)
