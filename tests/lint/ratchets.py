"""Compares measured values of the project with their limits in `.ci/ratchets.toml`, which only go down.

    python tests/lint/ratchets.py          one line for each value above its limit
    python tests/lint/ratchets.py --all    every value beside its limit
    python tests/lint/ratchets.py --lower  lower each limit to the value measured now

Values of a whole run of the tests come from the report that `tests/run.py` leaves in `build/tests.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS = ROOT / ".ci" / "ratchets.toml"
REPORT = ROOT / "build" / "tests.json"
PATH_ROW = re.compile(
    r"^\| (?:client|scheduler|agent|fork server|processor) \| `(?P<file>[\w/]+\.py)` \| (?P<functions>.*) \|$",
    re.MULTILINE,
)
CLOSURES = (
    "scaler.scheduler.core.core",
    "scaler.scheduler.server",
    "scaler.client.client",
    "scaler.worker.agent.core",
    "scaler.worker.processor.main",
)
SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))")
LARGE_MODULE = 450
"""Lines."""
MANY_BRANCHES = 20
BRANCHES = ast.If | ast.For | ast.While | ast.AsyncFor | ast.ExceptHandler | ast.IfExp | ast.Assert | ast.match_case
MARKERS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"\bwhat (is|it|they|was|has|are|the|a)\b",
        r"\bthose (that|of|which)\b",
        r"\b(nobody|somebody|everybody)\b",
        r"\bof which\b",
        r"\bbeside\b",
        r"\b(is|are) to be\b",
        r"\bas (many|long|often)\b(?! as)",
        r"\b(is told|was told|are told|hears?|heard|says)\b",
        r"\bby itself\b",
        r'(^|[.:] |")Of (a|the|one|its|what|those|each|tasks|them|this|these|all)\b',
        r"\bis none\b|\bhas none\b|\bthere is none\b",
        r"\bthat (have|has|had) (come|gone|left|ended|joined)\b",
        r"\bas it (is|was|were|came)\b",
        r"\bwhatever\b",
        r"\bothers\b",
        r", too\b",
        r"\bmeanwhile\b",
    )
)
"""Turns of phrase that a native writer rarely uses; well-kept projects have one in a thousand words."""


@dataclass(frozen=True)
class Module:
    """A module of the product. size: lines."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def size(self) -> int:
        return self.source.count("\n")

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def texts(self) -> Iterator[str]:
        """Yield docstrings, texts under attributes, and comments."""
        for node in ast.walk(self.tree):
            body = getattr(node, "body", None)
            for item in body if isinstance(body, list) else ():
                match item:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield text
        for line in self.source.splitlines():
            if "#" in line:
                yield line[line.index("#") :]


class Project:
    """The product below a root, without `scaler.testing`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def modules(self) -> dict[str, Module]:
        found = {}
        for path in sorted((self.root / "scaler").rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            if parts[1] != "testing":
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                source = path.read_text()
                found[name] = Module(name, path, source, ast.parse(source))
        return found

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        return {name: set(self._imported(module.tree)) & self.modules.keys() for name, module in self.modules.items()}

    def _imported(self, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in self.modules else node.module

    def lines(self, names: Iterable[str]) -> int:
        return sum(self.modules[name].size for name in names)

    def closure(self, start: str) -> set[str]:
        """Return the modules that a module imports, also indirectly, inside functions, or for types only."""
        seen: set[str] = set()
        todo = [start]
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += self.imports[here]
        return seen

    def below(self, packages: Iterable[str]) -> list[str]:
        prefixes = tuple(f"{package}." for package in packages)
        return [name for name in self.modules if f"{name}.".startswith(prefixes)]


def branches(function: ast.AST) -> int:
    """Return 1 and one for each branch, loop, handler, boolean operand, and condition of a comprehension."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def markers_per_1000_words(texts: Iterable[str]) -> float:
    words = hits = 0
    for text in texts:
        words += len(text.split())
        hits += sum(len(marker.findall(text)) for marker in MARKERS)
    return round(1000 * hits / max(1, words), 1)


def measure(project: Project, heart: Iterable[str]) -> dict[str, float]:
    """Return the values of the source, by name."""
    modules = project.modules
    rows = list(PATH_ROW.finditer((project.root / "docs" / "design.md").read_text()))
    pages = [path for pattern in ("*.md", "docs/*.md") for path in project.root.glob(pattern)]
    prose = (re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL) for page in pages)
    return {
        "product_lines": project.lines(modules),
        "heart_lines": project.lines(project.below(heart)),
        **{f"closure.{start}": project.lines(project.closure(start)) for start in CLOSURES if start in modules},
        "task_path_files": len({row["file"] for row in rows}),
        "task_path_functions": sum(row["functions"].count("`") // 2 for row in rows),
        "functions_with_over_20_branches": sum(
            branches(function) > MANY_BRANCHES for module in modules.values() for function in module.functions
        ),
        "modules_over_450_lines": sum(module.size > LARGE_MODULE for module in modules.values()),
        "test_lines": sum(path.read_text().count("\n") for path in (project.root / "tests").rglob("*.py")),
        "sleeps_in_tests": sum(len(SLEEP.findall(path.read_text())) for path in (project.root / "tests").rglob("*.py")),
        "prose_markers_in_code": markers_per_1000_words(text for module in modules.values() for text in module.texts()),
        "prose_markers_in_pages": markers_per_1000_words(prose),
    }


def worse(values: Mapping[str, float], limits: Mapping[str, float], optional: Container[str] = ()) -> list[str]:
    """Return a line for each value above its limit, each value without a limit, and each limit without a value.

    optional: limits whose value may be missing.
    """
    above = {name: value for name, value in values.items() if value > limits.get(name, value)}
    return [
        *(f"{name}: {value:,} > {limits[name]:,}" for name, value in above.items()),
        *(f"{name}: no limit in .ci/ratchets.toml" for name in values if name not in limits),
        *(f"{name}: nothing has this name" for name in limits if name not in values and name not in optional),
    ]


def lowered(text: str, values: Mapping[str, float]) -> str:
    """Return the text of the limits with each one lowered to the value measured now."""

    def lower(found: re.Match[str]) -> str:
        name, limit = found["name"], float(found["limit"])
        return f"{found['key']} = {values[name]}" if values.get(name, limit) < limit else found[0]

    return re.sub(r'^(?P<key>"?(?P<name>[\w.]+)"?) = (?P<limit>[\d.]+)$', lower, text, flags=re.MULTILINE)


def main() -> int:
    """Print what got worse; return 1 when something did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print every value beside its limit")
    parser.add_argument("--lower", action="store_true", help="lower each limit to the value measured now")
    arguments = parser.parse_args()
    text = LIMITS.read_text()
    settings = tomllib.loads(text)
    values = measure(Project(ROOT), settings["heart"])
    limits: dict[str, float] = {**settings["limits"], **settings["runs"]}
    if REPORT.exists():
        values.update(json.loads(REPORT.read_text()))
    if arguments.all:
        print("\n".join(f"{name}: {value:,} (limit {limits.get(name, 'none')})" for name, value in values.items()))
    if arguments.lower:
        LIMITS.write_text(lowered(text, values))
    lines = worse(values, limits, settings["runs"])
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
