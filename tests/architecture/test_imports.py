"""The law of imports: thirteen packages in one order, each importing those below it, and no circles at any level.

The table of docs/design.md is the law; these tests read it, and every import of the product, those inside functions too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import (
    LEVELS,
    MODULES,
    ROOT,
    SOURCES,
    circle_in,
    drawing,
    folder_of,
    grouped,
    law,
    module_of,
    modules_imported,
    names_imported,
    package_of,
)


def test_the_table_of_the_design_names_every_package():
    assert set(law()) == {package_of(module) for module in MODULES} - {""}


def test_the_table_lists_packages_from_the_top_down():
    order = list(law())

    assert all(order.index(below) > order.index(package) for package, belows in law().items() for below in belows)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
@pytest.mark.medium
def test_a_module_imports_only_packages_below_its_own(path: Path):
    package, packages = package_of(module_of(path)), {package_of(module) for module in modules_imported(path)}

    if package:  # fdgsec/__init__.py is the face of all: what it offers is loaded when it is asked for
        assert packages - {package} <= law()[package]


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "packages"])
@pytest.mark.medium
def test_nothing_imports_itself_in_a_circle(level: str):
    assert circle_in({name: below for name, below in grouped(LEVELS[level]).items() if name != "fdgsec"}) == []


def test_a_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "c", "b", "a"]


def test_no_import_escapes_the_law():
    """Relative imports, and modules loaded by a string, but where names become classes when they are asked for."""
    loading = {"fdgsec", "fdgsec.cli.app", "fdgsec.data.hub", "fdgsec.runtime.lazy_imports", "fdgsec.runtime.registry"}
    relative = [module for module, path in MODULES.items() if any(name[0] == "." for name in names_imported(path))]
    by_string = {module for module, path in MODULES.items() if re.search(r"import_module|__import__", path.read_text())}

    assert relative == []
    assert by_string == loading


def test_the_drawing_says_what_there_is():
    *packages, summary = drawing().splitlines()

    assert [line.split()[0] for line in packages] == list(law())
    assert summary.startswith("0 upward imports; circles: none")


def test_the_package_has_no_loose_files():
    loose = {path.name for path in (ROOT / "fdgsec").iterdir() if path.is_file()}

    assert loose == {"__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if module_of(path).startswith("fdgsec.attacks.")], ids=module_of
)
def test_an_attack_family_imports_no_other(path: Path):
    others = {folder_of(module) for module in modules_imported(path) if package_of(module) == "attacks"}

    assert others <= {folder_of(module_of(path)), "fdgsec.attacks.statistics", "fdgsec.attacks"}


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


@pytest.mark.medium
def test_neither_the_package_nor_its_command_line_loads_flower():
    code = (
        "import sys, fdgsec, fdgsec.cli.app; fdgsec.cli.app.main(['list', 'methods']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'flwr', 'ray', 'grpc', 'cryptography'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.medium
def test_what_a_run_may_not_need_is_loaded_when_it_does():
    """Every command and worker process pays for what is imported first: Opacus takes as long as half of torch."""
    slow = ["lpips", "matplotlib", "opacus", "pandas", "sklearn", "torchmetrics", "torchvision"]
    code = (
        "import sys, fdgsec.experiments.flower.engine_choice; "
        f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & {set(slow)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.medium
def test_nothing_can_execute_code_on_load():
    forbidden = re.compile(r"\bimport pickle\b|\beval\(|\bexec\(|torch\.load\((?![^)]*weights_only=True)")
    offenders = [str(path) for path in SOURCES if forbidden.search(path.read_text().replace(".eval(", ""))]

    assert offenders == []


def test_every_package_is_listed_for_the_wheel():
    listed = set(re.findall(r'"(fdgsec(?:\.\w+)*)"', (ROOT / "pyproject.toml").read_text()))
    found = {module_of(path) for path in SOURCES if path.name == "__init__.py"}

    assert found <= listed
