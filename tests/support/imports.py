"""The imports of the product as a graph, drawn by `python -m tests.support.imports`: packages in order, arrows, circles."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("fdgsec", "attacks", "defenses", "methods") for p in sorted((ROOT / folder).rglob("*.py"))
           if not any(part.is_symlink() for part in [p, *p.parents])]  # fmt: skip
ROW = re.compile(r"^\| `(?P<package>\w+)` \| (?P<meaning>[^|]+) \| (?P<below>[^|]+) \|$", re.MULTILINE)


@cache
def law() -> dict[str, set[str]]:
    """The table of docs/design.md: each package, from the top, and the packages that it may import."""
    page = (ROOT / "docs" / "design.md").read_text()
    return {row["package"]: set(re.findall(r"`(\w+)`", row["below"])) for row in ROW.finditer(page)}


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fdgsec" else ("fdgsec", *parts)
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in SOURCES}


@cache
def names_imported(path: Path) -> set[str]:
    """Everything that a file imports anywhere in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return found


@cache
def modules_imported(path: Path) -> set[str]:
    """The modules of fdgsec that a file imports, anywhere in it."""
    found = set()
    for name in names_imported(path):
        module = name if name in MODULES else name.rpartition(".")[0]
        if module in MODULES and module != module_of(path):
            found.add(module)
    return found


def package_of(module: str) -> str:
    """The package of a module; empty for fdgsec itself, as a package and as a command (`python -m fdgsec`)."""
    return module.split(".")[1] if "." in module and module != "fdgsec.__main__" else ""


def folder_of(module: str) -> str:
    """The folder of a package that a module is in, or the module itself where it lies in the package directly."""
    return ".".join(module.split(".")[:3])


def grouped(group: Callable[[str], str]) -> dict[str, set[str]]:
    """The graph of imports between groups of modules."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        graph.setdefault(group(module), set()).update(map(group, modules_imported(path)))
    return graph


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of a graph, from a node back to itself; empty where there is none."""
    try:
        TopologicalSorter({node: set(below) - {node} for node, below in graph.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def drawing() -> str:
    """The packages from the top down, each with its size and with how many imports go to which package."""
    allowed, lines = law(), list[str]()
    order, upward = list(allowed), 0
    arrows = Counter((package_of(m), package_of(n)) for m, path in MODULES.items() for n in modules_imported(path))
    for package in order:
        files = [path for module, path in MODULES.items() if package_of(module) == package]
        size = sum(len(path.read_text().splitlines()) for path in files)
        below = ", ".join(
            f"{other} {arrows[package, other]}" for other in order if arrows[package, other] and other != package
        )
        upward += sum(
            count for (one, other), count in arrows.items() if one == package and other not in {*allowed[one], one, ""}
        )
        lines.append(f"{package:12} {len(files):3} files {size:6} lines -> {below or 'nothing'}")
    circles = [level for level, group in LEVELS.items() if circle_in(grouped(group))]
    return "\n".join(
        [
            *lines,
            f"{upward} upward imports; circles: {', '.join(circles) or 'none'} (looked for between {', '.join(LEVELS)})",
        ]
    )


LEVELS: Mapping[str, Callable[[str], str]] = {"packages": package_of, "folders": folder_of, "modules": str}
"""The levels at which there must be no circle, with the group of a module at each."""

if __name__ == "__main__":
    print(drawing())
