"""The pages of the Python reference: one for each package that others build on, read from docstrings without imports.

mkdocstrings replaces each line `::: NAME` by what the docstrings of NAME say."""

import ast
from pathlib import Path

from fdgsec.runtime.registry import ATTACKS, DEFENSES, METHODS

ROOT = Path(__file__).parents[2]
TESTING = "fdgsec.testing"


def pages() -> dict[str, str]:
    """The pages by their paths in the site; `fdgsec` itself, its packages, and the bundled classes."""
    found = {"reference/python.md": _page("fdgsec", "Python interface", [_verbs_first()])}
    for package in packages():
        path = f"reference/packages/{package.removeprefix('fdgsec.')}.md"
        found[path] = _page(package, package, _imported(package) if package == TESTING else [package])
    for kind in ("methods", "attacks", "defenses"):
        classes = _classes(kind)
        found[f"reference/{kind}.md"] = _page(f"fdgsec.{kind}", f"Bundled {kind}: options", classes)
    return found


def _verbs_first() -> str:
    """`fdgsec` with its functions, which are what most readers look for, before its types."""
    body = ast.parse((ROOT / "fdgsec" / "__init__.py").read_text()).body
    public = next(
        ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    names = sorted(public, key=lambda name: (name[0].isupper(), name))
    return f"fdgsec\n    options:\n      members: [{', '.join(names)}]"


def packages() -> list[str]:
    """The packages with public names: those whose `__init__` lists them."""
    faces = [
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in sorted((ROOT / "fdgsec").rglob("__init__.py"))
        if "lazy_names" in path.read_text()
    ]
    return [*faces, TESTING]


def _imported(package: str) -> list[str]:
    """The names that an `__init__` imports, by where they are defined."""
    tree = ast.parse((ROOT / Path(*package.split(".")) / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in imports for alias in node.names]


def _classes(kind: str) -> list[str]:
    """The bundled classes of a kind, from the registry of names."""
    return [
        place.replace(":", ".")
        for place in {"methods": METHODS, "attacks": ATTACKS, "defenses": DEFENSES}[kind].values()
    ]


def _page(name: str, title: str, shown: list[str]) -> str:
    """A title, what a package says of itself where its parts are shown one by one, and what mkdocstrings replaces."""
    said = ast.get_docstring(ast.parse((ROOT / Path(*name.split(".")) / "__init__.py").read_text())) or ""
    lead = "" if shown[0].startswith(f"{name}\n") or shown == [name] else f"{said.splitlines()[0]}\n\n"
    return f"# {title}\n\n{lead}" + "\n".join(f"::: {each}\n" for each in shown)
