"""What packages offer by one import line: every name is there, of its exact type, and nothing is loaded before it is asked for."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACES = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in sorted((ROOT / "fdgsec").rglob("__init__.py"))
    if "lazy_names" in path.read_text()
]


def home_of(package: str) -> dict[str, str]:
    """The module that the face of a package names for each name."""
    source = (ROOT / Path(*package.split(".")) / "__init__.py").read_text()
    (guarded,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_package_that_others_build_on_has_a_face():
    packages = {"runtime", "data", "nn", "metrics", "privacy", "federation", "threats"}

    assert {name.split(".")[1] for name in FACES} == packages
    assert len(FACES) == 10


@pytest.mark.parametrize("package", FACES)
def test_a_face_offers_what_its_modules_define(package: str):
    face, homes = import_module(package), home_of(package)

    assert set(face.__all__) == set(homes)
    for name, module in homes.items():
        found = getattr(face, name)
        assert found is getattr(import_module(module), name)
        assert getattr(found, "__module__", module) in {module, "typing", "collections.abc", "types"}


@pytest.mark.parametrize("package", FACES)
def test_no_offered_name_is_hidden_by_a_module_of_the_package(package: str):
    folder = ROOT / Path(*package.split("."))

    assert not {path.stem for path in folder.iterdir()} & set(import_module(package).__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'fdgsec\.federation' has no attribute 'Methodd'"):
        import_module("fdgsec.federation").Methodd  # noqa: B018


@pytest.mark.medium
def test_faces_load_nothing_until_a_name_is_asked_for():
    code = (
        f"import sys, importlib; [importlib.import_module(name) for name in {FACES!r}]; import fdgsec.runtime.errors; "
        "print([name for name in ('torch', 'numpy', 'scipy', 'flwr', 'matplotlib') if name in sys.modules]); "
        "from fdgsec.federation import Method; print(Method.__module__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.splitlines() == ["[]", "fdgsec.federation.method True"]
