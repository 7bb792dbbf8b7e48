"""A protocol that is checked at run time has an implementer: a renamed method would switch a mechanism off unseen."""

import ast

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


CLASSES = [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
CHECKED = [node for node in CLASSES if any("runtime_checkable" in ast.unparse(each) for each in node.decorator_list)]
OTHERS = [node for node in CLASSES if not any("Protocol" in ast.unparse(base) for base in node.bases)]


@pytest.mark.parametrize("protocol", CHECKED, ids=lambda node: node.name)
def test_some_class_has_all_members_of_a_protocol(protocol: ast.ClassDef):
    implementers = [node.name for node in OTHERS if members(protocol) <= members(node)]

    assert bool(implementers) != (protocol.name in PLUG_INS)
