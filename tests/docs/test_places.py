"""Places in the code that pages name exist: files, folders, and what is defined in them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACE = re.compile(
    r"`(?P<path>(?:fdgsec|attacks|defenses|methods|tests|benchmarks|notebooks|docs)/[\w./-]+)(?::(?P<name>[\w.]+))?`"
)


def defined(body: list[ast.stmt], name: str) -> bool:
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == first:
            return not rest or (isinstance(node, ast.ClassDef) and defined(node.body, rest))
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_places_that_a_page_names_exist(page: Path):
    missing = []
    for found in PLACE.finditer(page.read_text()):
        path, name = ROOT / found["path"], found["name"]
        if not path.exists() or (name and not defined(ast.parse(path.read_text()).body, name)):
            missing.append(found[0])

    assert missing == []
