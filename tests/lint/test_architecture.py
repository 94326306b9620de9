"""Rules for the product's source as a whole: names, pure modules, imports."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "scaler"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all product modules by dotted name."""
    return {name_of(path): ast.parse(path.read_text()) for path in sorted(PRODUCT.rglob("*.py"))}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the product modules that a module imports anywhere, including inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other in a cycle."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for each in graph[waiting.pop()] - found:
                found.add(each)
                waiting.append(each)
        return found

    reach = {name: reached(name) for name in graph}
    groups = {frozenset({name, *(each for each in reach[name] if name in reach[each])}) for name in graph}
    return [set(group) for group in groups if len(group) > 1]


def test_each_public_class_name_is_unique() -> None:
    places = defaultdict(list)
    for module, tree in modules().items():
        if module.startswith("scaler.testing.soamapi"):  # names of another product's API
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_modules_declared_pure_are_under_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each["name"] == "Pure modules decide, and do nothing"]
    listed = tuple(contract["source_modules"])
    pure = [
        name
        for name, tree in modules().items()
        if re.search(r"\b[Pp]ure\b", ast.get_docstring(tree) or "") and not is_package(name)
    ]
    assert pure, "no module calls itself pure"
    assert [name for name in pure if not f"{name}.".startswith(tuple(f"{each}." for each in listed))] == []
    assert [name for name in listed if name not in modules()] == []


def test_modules_have_no_import_cycles() -> None:
    graph = {
        name: {each for each in imported(tree) if each in modules() and each != name and not is_package(each)}
        for name, tree in modules().items()
        if not is_package(name)
    }
    assert circles(graph) == []


def is_package(name: str) -> bool:
    return (ROOT / Path(*name.split("."))).is_dir()
