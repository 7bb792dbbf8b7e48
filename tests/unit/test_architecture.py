import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("fdgsec", "attacks", "defenses", "methods") for p in sorted((ROOT / folder).rglob("*.py"))
           if not any(part.is_symlink() for part in [p, *p.parents])]  # fmt: skip
LEAVES = ("fdgsec.attacks", "fdgsec.defenses", "fdgsec.methods")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fdgsec" else ("fdgsec", *parts)
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    return {name for name in all_imports_of(path) if name.startswith("fdgsec")}


def all_imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_downwards_only(path: Path):
    module, imports = module_of(path), imports_of(path)
    upper = ("fdgsec.cli", "fdgsec.experiments", "fdgsec.tables", "fdgsec.listings", "fdgsec.html")

    if under(module, *LEAVES):
        own = next(leaf for leaf in LEAVES if under(module, leaf))
        foreign = [name for name in imports if under(name, *LEAVES) and not under(name, own)]
        siblings = {".".join(name.split(".")[:3]) for name in imports if under(name, own)} - {own, module}
        assert foreign == []
        if own == "fdgsec.methods":  # FedAvg, and one method that it extends
            assert len(siblings - {"fdgsec.methods.fedavg"}) <= 1
        else:
            assert siblings == set()
        assert not [name for name in imports if under(name, *upper)]
    elif module != "fdgsec" and not under(module, *upper):  # the package itself is the facade: lazy imports only
        assert not [name for name in imports if under(name, *LEAVES, *upper)]
    elif under(module, "fdgsec.experiments"):
        assert not [name for name in imports if under(name, *LEAVES, "fdgsec.cli")]
    else:
        assert not [name for name in imports if under(name, *LEAVES)]


def test_flower_is_imported_by_its_engine_and_its_apps_alone():
    places = ("fdgsec.engines.flower", "fdgsec.experiments.flower_apps")
    offenders = {module_of(path) for path in SOURCES if not under(module_of(path), *places)
                 and any(under(name, "flwr", "ray", "cryptography") for name in all_imports_of(path))}  # fmt: skip

    assert offenders == set()


def test_neither_the_package_nor_its_command_line_loads_flower():
    code = (
        "import sys, fdgsec, fdgsec.cli.app; fdgsec.cli.app.main(['list', 'methods']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'flwr', 'ray', 'grpc', 'cryptography'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.splitlines()[-1] == "[]"


def test_metrics_know_nothing_of_experiments_or_engines():
    for path in SOURCES:
        if under(module_of(path), "fdgsec.metrics"):
            assert not [
                n for n in imports_of(path) if under(n, "fdgsec.engines", "fdgsec.federation", "fdgsec.training")
            ]


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=module_of)
def test_no_file_outgrows_its_limit(path: Path):
    limit = 450 if under(module_of(path), "fdgsec.methods") else 300

    assert len(path.read_text().splitlines()) <= limit


def test_nothing_can_execute_code_on_load():
    forbidden = re.compile(r"\bimport pickle\b|\beval\(|\bexec\(|torch\.load\((?![^)]*weights_only=True)")
    offenders = [str(path) for path in SOURCES if forbidden.search(path.read_text().replace(".eval(", ""))]

    assert offenders == []


def test_every_package_is_listed_for_the_wheel():
    listed = set(re.findall(r'"(fdgsec(?:\.\w+)*)"', (ROOT / "pyproject.toml").read_text()))
    found = {module_of(path) for path in SOURCES if path.name == "__init__.py"}

    assert found <= listed
