"""Names that a package offers without loading its modules: `from fdgsec.federation import Method` loads one module.

A package lists them as imports under `if TYPE_CHECKING:`, where type checkers find exact types, and in `__all__`; in
the `else` branch it sets `__getattr__ = lazy_names(__name__, __file__)` (PEP 562). Importing it loads nothing."""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path


def lazy_names(package: str, file: str) -> Callable[[str], object]:
    """Make the `__getattr__` of a package from the imports under `if TYPE_CHECKING:` in its `file`."""
    modules = _guarded_imports(Path(file).read_text())

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up finds it at once
        return value

    return __getattr__


def _guarded_imports(source: str) -> Mapping[str, str]:
    """The module of each name that is imported under `if TYPE_CHECKING:`."""
    guarded = [
        statement
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
    ]
    imports = [statement for statement in guarded if isinstance(statement, ast.ImportFrom)]
    return {alias.name: str(statement.module) for statement in imports for alias in statement.names}
