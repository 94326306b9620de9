"""Mutation tests for the pure cores: change one expression of a core, and check whether a test fails.

    python tests/mutants.py [--sample 20] [--jobs 2] [--core scheduler]

Prints every survivor, which is a mutant that no test detects, then the share of killed mutants per core and overall. A
survivor shows a missing test or a change without effect. Mutants are created when their module is imported: `-p
tests.mutants` loads this file as a pytest plugin, which reads the mutant from MUTANT. No file changes.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 120.0
"""Time limit for a mutant's tests. A mutant that exceeds it hangs, and counts as killed."""

CORES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: the modules, and the tests that should detect mutants
    "scheduler": (("scaler/scheduler/core/*.py",), ("tests/unit/scheduler", "tests/scenarios")),
    "session": (("scaler/protocol/session.py",), ("tests/unit/protocol", "tests/properties/test_session_delivery.py")),
    "net": (
        ("scaler/net/connector_core.py", "scaler/net/listener_core.py", "scaler/net/transport.py"),
        ("tests/unit/net", "tests/properties/test_session_network.py"),
    ),
    "storage": (
        ("scaler/object_storage/core.py",),
        ("tests/unit/object_storage", "tests/properties/test_object_storage_core.py"),
    ),
    "worker": (
        ("scaler/worker/agent/core.py", "scaler/worker/agent/pool.py", "scaler/offload/calls.py"),
        (
            "tests/unit/worker/test_agent_core.py",
            "tests/extensions/resources/test_memory_limits.py",
            "tests/unit/worker_manager/test_offload_core.py",
            "tests/properties/test_worker_core.py",
        ),
    ),
    "reconcile": (
        ("scaler/worker_manager/reconcile.py",),
        ("tests/unit/worker_manager/test_reconcile_steps.py", "tests/properties/test_reconcile.py"),
    ),
}

_PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
)
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {**dict(_PAIRS), **{after: before for before, after in _PAIRS}}


def _mutated(node: Any) -> ast.AST | None:
    """Return the replacement of a node, or None if the node cannot be mutated."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in _SWAPS:
            return ast.Compare(left, [_SWAPS[type(operator)]()], right)  # type: ignore[list-item]
        case ast.BoolOp(operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _SWAPS:
            return type(node)(**{**vars(node), "op": _SWAPS[type(operator)]()})
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Expr(ast.Call()):
            return ast.Pass()
        case _:
            return None


class _Sites(ast.NodeTransformer):
    """Counts the mutable nodes in function bodies, and replaces the chosen one."""

    def __init__(self, chosen: int = -1) -> None:
        self.found: list[ast.stmt | ast.expr] = []
        self._chosen = chosen
        self._depth = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.FunctionDef):
            self._depth += 1
            node.body = [self.visit(statement) for statement in node.body]
            self._depth -= 1
            return node
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise):
            return node  # texts, and checks that must not fail
        changed = _mutated(node) if self._depth else None
        if changed is not None and isinstance(node, ast.stmt | ast.expr):
            self.found.append(node)
            if len(self.found) - 1 == self._chosen:
                return ast.copy_location(changed, node)
        self.generic_visit(node)
        return node


@dataclass(frozen=True)
class Mutant:
    path: str
    index: int

    def __str__(self) -> str:
        sites = _Sites()
        sites.visit(ast.parse((ROOT / self.path).read_text()))
        before = sites.found[self.index]
        return f"{self.path}:{before.lineno}: {ast.unparse(before)!r} -> {ast.unparse(_mutated(before) or before)!r}"


class _Finder(MetaPathFinder, SourceFileLoader):  # type: ignore[misc]
    """Finds and loads a mutant's module. Other modules are found as usual."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.path.removesuffix(".py").replace("/", "."), str(ROOT / mutant.path))
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        del path, target
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        tree = _Sites(self._mutant.index).visit(ast.parse(Path(self.path).read_text()))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def mutants(core: str) -> list[Mutant]:
    """Return all mutants of a core."""
    found: list[Mutant] = []
    for pattern in CORES[core][0]:
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"{pattern} matches no module: update CORES"
        for path in paths:
            sites = _Sites()
            sites.visit(ast.parse(path.read_text()))
            found += [Mutant(str(path.relative_to(ROOT)), index) for index in range(len(sites.found))]
    return found


def survives(core: str, mutant: Mutant | None) -> bool:
    """Return whether a core's tests pass with this mutant. None: without a mutant."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants"]
    environment = {**os.environ, "MUTANT": f"{mutant.path} {mutant.index}" if mutant is not None else ""}
    with TemporaryDirectory() as directory:
        command += ["--basetemp", directory, *CORES[core][1]]
        try:
            subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
    return True


def run(core: str, sample: int, jobs: int) -> tuple[int, int]:
    """Try a sample of a core's mutants. Returns the numbers of killed and of tried mutants."""
    everything = mutants(core)
    chosen = random.Random(core).sample(everything, min(sample, len(everything)))  # the same sample in every run
    with ThreadPoolExecutor(jobs) as pool:
        survived = list(pool.map(lambda mutant: survives(core, mutant), chosen))
    for mutant, is_alive in zip(chosen, survived, strict=True):
        if is_alive:
            print(f"survives: {mutant}")
    return len(chosen) - sum(survived), len(chosen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=20, help="mutants per core (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="parallel mutants (default: %(default)s)")
    parser.add_argument("--core", choices=CORES, help="try only this core")
    options = parser.parse_args()
    results: dict[str, tuple[int, int]] = {}
    for core in [options.core] if options.core else CORES:
        if not survives(core, None):
            print(f"{core}: its tests fail without a mutant")
            return 1
        results[core] = run(core, options.sample, options.jobs)
    results["overall"] = (sum(killed for killed, _ in results.values()), sum(tried for _, tried in results.values()))
    for name, (killed, tried) in results.items():
        print(f"{name:>12}: {killed} of {tried} mutants killed, {killed / tried:.0%}")
    return 0


if os.environ.get("MUTANT"):
    _path, _index = os.environ["MUTANT"].split()
    sys.meta_path.insert(0, _Finder(Mutant(_path, int(_index))))

if __name__ == "__main__":
    sys.exit(main())
