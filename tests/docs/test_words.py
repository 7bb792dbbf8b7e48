"""Words that were given up are gone from everything that a person reads, and every public name has a docstring."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from docs.site import cli_reference, glossary_page
from fdgsec.experiments.explain import explain
from fdgsec.experiments.run_config import presets
from fdgsec.federation.artifacts import KINDS
from fdgsec.runtime.registry import names, targets
from tests.support.pages import PAGES, ROOT

OLD: Mapping[str, str] = {
    r"\brows? (that )?leaks?\b(?!`)": "a measurement is flagged",
    r"planted won|shuffled silent|must win": "positive controls passed, negative controls passed",
    r"\bblind guess": "baseline",
    r"chance and blind": "baseline",
    r"\\\[default": "[default",
    r"decides every draw": "random seed",
    r"at most so many": "maximum number of",
    r"\b(quantis|optimis|normalis|generalis|recognis)(e|es|ed|er|ing|ation)\b(?!-)|\bcentre|\bneighbour|\bcolour": "American spelling",
    r"\bshield\b|its coins|wears it|\bdressed\b": "defense stack, randomness",
    r"anybody in between": "anyone on the network",
    r"proves that the machinery works": "smoke test",
    r"holds no a folder": "contains no images in the layout",
    r"\bledger may be lost\b": "the privacy accountant gives an upper bound",
}
"""What is no longer said, and what is said instead."""
KEPT = {
    "CHANGELOG.md": r"\(`Shield`\)|`optimisation-inversion`|\(formerly \"neighbours\"\)|flower-optimiser",
    "docs/deploy.md": "flower-optimiser-state",
    "fdgsec/cli/help_pages.py": r"\\\[default",  # the pattern that mends it
}
"""Old names that a page tells as such: of files, and in the history of changes."""


@lru_cache(maxsize=1)
def texts() -> list[tuple[str, str]]:
    """All that a person reads: pages, help, explanations, the glossary, and templates of pages; each with its place."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.is_file():
            yield str(page.relative_to(ROOT)), page.read_text()
    yield "help", re.sub(r"\\([<>\[\]*_`])", r"\1", cli_reference.page())
    yield "glossary", glossary_page.page()
    for name in dict.fromkeys((*names("attacks"), *names("defenses"), *names("methods"), *targets(), *presets())):
        found = explain(name)
        parts = [f"{heading}\n{text}" for heading, text in found.sections if not heading.startswith("values")]
        yield f"explain {name}", "\n".join([found.title, *parts])
    for template in (ROOT / "fdgsec" / "experiments" / "report").glob("*.html"):
        yield template.name, template.read_text()
    for module in sorted((ROOT / "fdgsec").rglob("*.py")):
        yield str(module.relative_to(ROOT)), "\n".join(_strings(module))


def _strings(module: Path) -> Iterator[str]:
    """The strings of a module beside its docstrings: what it prints, raises and writes."""
    tree = ast.parse(module.read_text())
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


@pytest.mark.medium
def test_old_words_are_gone():
    found = []
    for place, text in texts():
        kept = re.sub(KEPT[place], "", text) if KEPT.get(place) else text
        plain = re.sub(r"\s+", " ", kept)
        found += [
            (OLD[old], place, plain[max(0, hit.start() - 40) : hit.end() + 20])
            for old in OLD
            for hit in re.finditer(old, plain, re.IGNORECASE)
        ]

    assert found == []


@pytest.mark.medium
def test_lines_about_what_does_not_apply_name_no_class():
    """Kinds of artifacts are said in words."""
    lines = [
        line
        for place, text in texts()
        for line in re.findall(r"(?:not applicable: |not run: |COULD_NOT_RUN\})[^\n`]*", text)
        if not place.endswith("CHANGELOG.md")
    ]

    assert len(lines) > 5
    assert [line for line in lines if any(re.search(rf"\b{kind}\b", line) for kind in KINDS)] == []


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """A module and its public classes, functions and methods. Properties' setters and overloads need none."""
    yield "", tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                inner = (each for each in node.body if isinstance(each, ast.FunctionDef))
                yield from ((f"{node.name}.{each.name}", each) for each in inner if not each.name.startswith("_"))


@pytest.mark.medium
def test_every_public_name_has_a_docstring():
    named, bare = 0, []
    for module in sorted((ROOT / folder for folder in ("fdgsec", "attacks", "methods", "defenses")), key=str):
        for path in sorted(module.rglob("*.py")):
            for name, node in public(ast.parse(path.read_text())):
                named += 1
                assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                if not ast.get_docstring(node):
                    bare.append(f"{path.relative_to(ROOT)}:{name}")

    assert named > 2000
    assert bare == []
