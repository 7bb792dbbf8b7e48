"""Every benchmark that is a command reads its arguments, so that `--help` never starts a job of hours."""

import ast
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(Path(benchmarks.__file__).parent.glob("*.py"))
COMMANDS = [path for path in MODULES if '__name__ == "__main__"' in path.read_text()]


def test_commands_are_found():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_parses_its_arguments(path: Path):
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]

    assert {"parse_args", "parse_known_args"} & {each.attr for each in called if isinstance(each, ast.Attribute)}
