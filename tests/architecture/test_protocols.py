"""A protocol that is checked at run time has an implementer: a renamed method would switch a mechanism off unseen."""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

from tests.support.imports import SOURCES

PLUG_INS = {"DeclaresPresentation", "StagedEncoder"}
"""Protocols that no bundled class implements, only classes of other packages."""


def members(node: ast.ClassDef) -> set[str]:
    named = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    typed = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    plain = {
        name.id
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    return named | typed | plain


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


@lru_cache(maxsize=1)
def implementers() -> list[tuple[str, set[str]]]:
    """The classes that are no protocols, with the names of their members."""
    every = [node for path in SOURCES for node in classes_of(path)]
    return [
        (node.name, members(node)) for node in every if not any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


CHECKED = [
    node
    for path in SOURCES
    if "runtime_checkable" in path.read_text()
    for node in classes_of(path)
    if any("runtime_checkable" in ast.unparse(each) for each in node.decorator_list)
]


@pytest.mark.parametrize("protocol", CHECKED, ids=lambda node: node.name)
@pytest.mark.medium
def test_some_class_has_all_members_of_a_protocol(protocol: ast.ClassDef):
    found = [name for name, known in implementers() if members(protocol) <= known]

    assert bool(found) != (protocol.name in PLUG_INS)
