"""Keep each notebook paired: write NAME.ipynb from NAME.py, without output; with --execute also run it."""

import argparse
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def paired(script: Path) -> nbformat.NotebookNode:
    """Read a percent script as a notebook with stable cell ids."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    return notebook


def main() -> None:
    """Write every notebook; execute it first where asked, which changes nothing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execute", action="store_true")
    arguments = parser.parse_args()
    for script in sorted(FOLDER.glob("[0-9]*.py")):
        notebook = paired(script)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        if arguments.execute:
            NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        print(f"{script.stem}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()
