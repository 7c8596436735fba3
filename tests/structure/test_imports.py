"""How modules may import one another: in the order of packages, never in a circle, at the top of the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fusewright

ROOT = Path(fusewright.__file__).parent
# A package imports from itself and from those before it. Modules beside the packages (errors, options, …) stand below all; of packages
# they know the machines alone.
ORDER = "target ir ops laws frontend codegen schedule autograd emit host verify bench report driver".split()
DOORS = ("__init__", "__main__")  # of the whole package: they import what is asked for
# What must start before torch is imported, or without it; and what is known already, before all that plans is (a second and a half).
LAZY = re.compile(r"fusewright|fusewright\.driver\.(commands\.\w+|module|optimized)")
MOST_MODULES = 25


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    inside: bool  # a function


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Every import of a module of ours, those for type checkers and those inside functions too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                above = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*above, *filter(None, [child.module])])
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    target = whole if whole in known else base
                    if target in known and target != name:
                        yield Import(name, target, child.lineno, inside)
            elif isinstance(child, ast.Import):
                yield from (Import(name, alias.name, child.lineno, inside) for alias in child.names if alias.name in known)
            yield from walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    return walk(ast.parse(path.read_text(encoding="utf-8")), False)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    known = modules()
    return [found for name, path in known.items() for found in imports_of(name, path, known)]


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / parts[1]).is_dir() else ""


def test_no_module_imports_itself_in_a_circle(imports: list[Import]) -> None:
    graph: dict[str, set[str]] = {}
    for one in imports:
        if one.importer != "fusewright":  # its names are looked up when they are asked for
            graph.setdefault(one.importer, set()).add(one.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_packages_import_in_the_order_of_the_flow(imports: list[Import]) -> None:
    def place(module: str) -> int:
        package = package_of(module)
        return ORDER.index(package) if package else -1

    against = [
        f"{one.importer}:{one.line} imports {one.imported}"
        for one in imports
        if one.importer.rpartition(".")[2] not in (*DOORS, "fusewright")
        and place(one.importer) < place(one.imported)
        and (package_of(one.importer), package_of(one.imported)) != ("", "target")
    ]
    assert not against


def test_imports_stand_at_the_top(imports: list[Import]) -> None:
    assert not [f"{one.importer}:{one.line}" for one in imports if one.inside and not LAZY.fullmatch(one.importer)]


def test_no_folder_is_crowded() -> None:
    folders = [ROOT, *(path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    assert {path.name: count for path in folders if (count := len(list(path.glob("*.py")))) > MOST_MODULES} == {}


def test_every_package_has_its_place() -> None:
    assert sorted(path.parent.name for path in ROOT.glob("*/__init__.py")) == sorted(ORDER)
