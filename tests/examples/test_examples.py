"""Every program in examples/ runs and prints what its docstring says."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHERS = {"demo", "run_demo", "tasks_per_worker", "warehouse"}
"""The demo has a test of its own, and the modules are used by other examples."""
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OTHERS)
AT_ONCE = 2
"""An example waits more than it computes, mostly for processes to start and to end."""

Result = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def result_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Result]]:
    """Start the programs of all tests that will run, some at once; returns what waits for the result of one."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    names = [item.callspec.id for item in items if item.function is test_example_prints_what_it_says]

    def run(name: str) -> Result:
        directory = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=directory, check=False)
        assert not list(directory.iterdir()), "an example leaves no file behind"
        return result

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {name: pool.submit(run, name) for name in names}
        yield lambda name: running[name].result()
        pool.shutdown(cancel_futures=True)


def expected_lines(program: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse(program.read_text()))
    assert docstring is not None
    _, separator, block = docstring.partition("Prints::\n\n")
    assert separator, f"{program.name} does not say what it prints"
    return textwrap.dedent(block).rstrip().splitlines()


def matches(expected: str, line: str) -> bool:
    return doctest.OutputChecker().check_output(expected, line, doctest.ELLIPSIS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_prints_what_it_says(name: str, result_of: Callable[[str], Result]) -> None:
    result = result_of(name)
    assert result.returncode == 0, result.stderr
    expected, printed = expected_lines(EXAMPLES / f"{name}.py"), result.stdout.splitlines()
    assert len(expected) == len(printed), result.stdout
    assert [pair for pair in zip(expected, printed, strict=True) if not matches(*pair)] == []
    assert "Traceback" not in result.stderr


def test_the_list_of_examples_names_each_once() -> None:
    listed = re.findall(r"^- \[(\w+\.py)\]\(\1\): \S", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))
