"""The law of imports: twelve packages in one order, each importing those below it, and no circles at any level.

The table of docs/design.md is the law; this file reads it, and every import of the product, those inside functions too."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("fdgsec", "attacks", "defenses", "methods") for p in sorted((ROOT / folder).rglob("*.py"))
           if not any(part.is_symlink() for part in [p, *p.parents])]  # fmt: skip
ROW = re.compile(r"^\| `(?P<package>\w+)` \| (?P<meaning>[^|]+) \| (?P<below>[^|]+) \|$", re.MULTILINE)


def law() -> dict[str, set[str]]:
    """The table of docs/design.md: each package, and the packages that it may import."""
    page = (ROOT / "docs" / "design.md").read_text()
    return {row["package"]: set(re.findall(r"`(\w+)`", row["below"])) for row in ROW.finditer(page)}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fdgsec" else ("fdgsec", *parts)
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in SOURCES}


def names_imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules_imported(path: Path) -> set[str]:
    """The modules of fdgsec that a file imports, anywhere in it."""
    found = set()
    for name in names_imported(path):
        module = name if name in MODULES else name.rpartition(".")[0]
        if module in MODULES and module != module_of(path):
            found.add(module)
    return found


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def room_of(module: str) -> str:
    """A package's folder that a module is in, or the module itself where it lies in the package directly."""
    return ".".join(module.split(".")[:3])


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        TopologicalSorter({node: set(below) - {node} for node, below in graph.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_table_of_the_design_names_every_package():
    assert set(law()) == {package_of(module) for module in MODULES} - {""}


def test_the_table_itself_has_no_circle():
    assert circle_in(law()) == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_a_module_imports_only_packages_below_its_own(path: Path):
    package = package_of(module_of(path))
    packages = {package_of(module) for module in modules_imported(path)}

    if not package:  # fdgsec/__init__.py is the face of all: what it offers is loaded when it is asked for
        return
    assert packages - {package, ""} <= law()[package]
    assert module_of(path) == "fdgsec" or "" not in packages


def test_no_modules_import_each_other_in_a_circle():
    assert circle_in({module: modules_imported(path) for module, path in MODULES.items()}) == []


def test_no_folders_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        graph.setdefault(room_of(module), set()).update(map(room_of, modules_imported(path)))

    assert circle_in(graph) == []


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if module_of(path).startswith("fdgsec.attacks.")], ids=module_of
)
def test_an_attack_family_imports_no_other(path: Path):
    others = {room_of(module) for module in modules_imported(path) if package_of(module) == "attacks"}

    assert others <= {room_of(module_of(path)), "fdgsec.attacks.statistics", "fdgsec.attacks"}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if module_of(path).startswith("fdgsec.methods.")], ids=module_of
)
def test_a_method_imports_fedavg_and_the_one_that_it_extends(path: Path):
    others = {module for module in modules_imported(path) if package_of(module) == "methods"}

    assert len(others - {"fdgsec.methods.fedavg"}) <= 1


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if module_of(path).startswith("fdgsec.defenses.")], ids=module_of
)
def test_a_defense_imports_no_other(path: Path):
    assert not [module for module in modules_imported(path) if package_of(module) == "defenses"]


def test_flower_is_imported_by_its_engine_and_its_apps_alone():
    places = ("fdgsec.federation.engines.flower.", "fdgsec.experiments.flower.apps")
    offenders = {
        module
        for module, path in MODULES.items()
        if not module.startswith(places)
        and {name.partition(".")[0] for name in names_imported(path)} & {"flwr", "ray", "cryptography"}
    }

    assert offenders == set()


def test_neither_the_package_nor_its_command_line_loads_flower():
    code = (
        "import sys, fdgsec, fdgsec.cli.app; fdgsec.cli.app.main(['list', 'methods']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'flwr', 'ray', 'grpc', 'cryptography'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.splitlines()[-1] == "[]"


def test_nothing_can_execute_code_on_load():
    forbidden = re.compile(r"\bimport pickle\b|\beval\(|\bexec\(|torch\.load\((?![^)]*weights_only=True)")
    offenders = [str(path) for path in SOURCES if forbidden.search(path.read_text().replace(".eval(", ""))]

    assert offenders == []


def test_every_package_is_listed_for_the_wheel():
    listed = set(re.findall(r'"(fdgsec(?:\.\w+)*)"', (ROOT / "pyproject.toml").read_text()))
    found = {module_of(path) for path in SOURCES if path.name == "__init__.py"}

    assert found <= listed
