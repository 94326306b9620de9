"""Every program in examples/ runs and prints the output in its docstring."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo
from tests.examples.programs import Programs, Result

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHERS = {"demo", "mpi", "run_demo", "tasks_per_worker", "warehouse"}
"""The demo and MPI have separate tests, and other examples use the modules."""
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OTHERS)
SHARING = re.compile(
    r"(?!.*(get_monitor_address|\.shutdown\())(?=.*SchedulerClusterCombo\(n_workers=[12]\))", re.DOTALL
)
"""Programs that share a cluster of one or two workers, whose start would otherwise dominate."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with SchedulerClusterCombo(n_workers=1) as one, SchedulerClusterCombo(n_workers=2) as two:
        addresses = {1: one.get_address(), 2: two.get_address()}
        programs = Programs(tmp_path_factory.mktemp("outputs"), addresses, dict(os.environ))
        yield programs
        programs.close()


def run_alone(program: Path, directory: Path) -> Result:
    command = [sys.executable, "-W", "error", str(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=directory, check=False)


def expected_lines(program: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse(program.read_text()))
    assert docstring is not None
    _, separator, block = docstring.partition("Prints::\n\n")
    assert separator, f"{program.name} does not say what it prints"
    return textwrap.dedent(block).rstrip().splitlines()


def matches(expected: str, line: str) -> bool:
    return doctest.OutputChecker().check_output(expected, line, doctest.ELLIPSIS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_prints_its_documented_output(name: str, shared: Programs, tmp_path: Path) -> None:
    program = EXAMPLES / f"{name}.py"
    run = shared.run if SHARING.match(program.read_text()) else run_alone
    result = run(program, tmp_path)
    assert not list(tmp_path.iterdir()), "an example leaves no file behind"
    assert result.returncode == 0, result.stderr
    expected, printed = expected_lines(program), result.stdout.splitlines()
    assert len(expected) == len(printed), result.stdout
    assert [pair for pair in zip(expected, printed, strict=True) if not matches(*pair)] == []
    assert "Traceback" not in result.stderr


def test_list_of_examples_names_each_once() -> None:
    listed = re.findall(r"^- \[(\w+\.py)\]\(\1\): \S", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))
