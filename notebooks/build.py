"""Keep each notebook paired: write NAME.ipynb from NAME.py; with --execute also run all of it.

What is stored is without output, but for cells tagged `from-pacs`, whose figures are drawn from tables of this
repository. A notebook's metadata have the hashes of those tables."""

import argparse
import hashlib
import os
import re
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "benchmarks" / "results"
IMPORTS, STORED = "imports", "from-pacs"
"""Tags of cells: what stored figures need, and what draws them."""


def tagged(cell: nbformat.NotebookNode, *tags: str) -> bool:
    """Whether a cell has one of the tags."""
    return bool({*tags} & {*cell.metadata.get("tags", [])})


def tables_of(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """The tables under benchmarks/results that are named in cells whose output is stored, with their hashes."""
    text = "\n".join(cell.source for cell in notebook.cells if tagged(cell, STORED))
    named = re.findall(r'"([\w/-]+\.(?:json|csv))"', text)
    return {name: hashlib.sha256((RESULTS / name).read_bytes()).hexdigest() for name in sorted({*named})}


def paired(script: Path) -> nbformat.NotebookNode:
    """Read a percent script as a notebook with stable cell ids and the output of the cells that are stored with it."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    if tables := tables_of(notebook):
        drawn = nbformat.from_dict(notebook)
        drawn.cells = [cell for cell in notebook.cells if tagged(cell, IMPORTS, STORED)]
        NotebookClient(drawn, timeout=120, kernel_name="python3", record_timing=False).execute()
        for cell in drawn.cells:
            cell.outputs = [one for one in cell.outputs if tagged(cell, STORED) and one.output_type != "execute_result"]
            cell.execution_count = None
        notebook.metadata["tables"] = tables
    return notebook


def main() -> None:
    """Write every notebook; execute it first where asked, which changes nothing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execute", action="store_true")
    arguments = parser.parse_args()
    os.environ.pop("MPLBACKEND", None)  # with another backend than the kernel's own, cells have no figures
    for script in sorted(FOLDER.glob("[0-9]*.py")):
        notebook = paired(script)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        if arguments.execute:
            NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        print(f"{script.stem}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()
