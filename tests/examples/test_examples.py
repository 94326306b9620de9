"""Every program in examples/ runs and prints what its docstring says."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHERS = {"demo", "run_demo", "warehouse"}
"""The demo has a test of its own, and the module is used by another example."""
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OTHERS)


def expected_output(program: Path) -> str:
    docstring = ast.get_docstring(ast.parse(program.read_text()))
    assert docstring is not None
    _, separator, block = docstring.partition("Prints::\n\n")
    assert separator, f"{program.name} does not say what it prints"
    return textwrap.dedent(block).rstrip() + "\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_prints_what_it_says(name: str, tmp_path: Path) -> None:
    program = EXAMPLES / f"{name}.py"
    command = [sys.executable, "-W", "error", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    expected = expected_output(program)
    assert doctest.OutputChecker().check_output(expected, result.stdout, doctest.ELLIPSIS), result.stdout
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir()), "an example leaves no file behind"
