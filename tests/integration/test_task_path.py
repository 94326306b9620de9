"""The path of one warm task submitted alone, across all processes, and the page that shows it.

`pytest tests/integration/test_task_path.py --rewrite` writes the measured path into the page's table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import scaler
from tests.integration.task_path.program import WINDOWS

PAGE = Path(__file__).parents[2] / "docs" / "design.md"
pytestmark = pytest.mark.alone  # on a busy machine, functions called by timers also run for nearly every task
BEGIN = "<!-- path of one task: begin -->\n"
END = "<!-- path of one task: end -->\n"
ALWAYS = 0.9
"""A function on the path runs for this share of the tasks; timers cause fewer runs."""

Function = tuple[str, str, str]
"""Process, file below scaler/, qualified name."""


@dataclass(frozen=True)
class TaskPath:
    """Functions that ran for any of the tasks, and functions that ran for nearly every one."""

    any: set[Function]
    always: set[Function]


def process_of(record: dict[str, object]) -> str:
    command = str(record["command"])
    if command.endswith("program.py"):
        return "client"
    if "scaler/worker" in command:
        return "processor" if record["forked"] else "agent"
    return "scheduler"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> TaskPath:
    directory = tmp_path_factory.mktemp("task_path")
    flag, records = directory / "flag", directory / "records"
    flag.write_bytes(b"\0")
    records.mkdir()
    program = Path(__file__).parent / "task_path" / "program.py"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(program.parent), os.environ.get("PYTHONPATH", "")])),
        "TASK_PATH_FLAG": str(flag),
        "TASK_PATH_RECORDS": str(records),
        "TASK_PATH_ROOT": str(Path(scaler.__file__).parent),
    }
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=50)
    windows: dict[Function, int] = defaultdict(int)
    for file in records.glob("*.json"):
        record = json.loads(file.read_text())
        for name, function, count in record["functions"]:
            windows[process_of(record), name, function] += count
    return TaskPath(set(windows), {key for key, count in windows.items() if count >= ALWAYS * WINDOWS})


def documented() -> set[Function]:
    return set(_rows(PAGE.read_text().partition(BEGIN)[2].partition(END)[0]))


def _rows(table: str) -> Iterator[Function]:
    for line in table.splitlines()[2:]:
        process, file, functions = (cell.strip() for cell in line.strip("|").split("|"))
        for function in functions.split(", "):
            yield process, file.strip("`"), function.strip("`")


def table(functions: set[Function]) -> str:
    files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for process, file, function in functions:
        files[process, file].append(function)
    order = ["client", "scheduler", "agent", "processor"]
    rows = sorted(files, key=lambda row: (order.index(row[0]), row[1]))
    lines = [
        f"| {process} | `{file}` | {', '.join(f'`{name}`' for name in sorted(files[process, file]))} |\n"
        for process, file in rows
    ]
    return "| process | file | functions |\n|---|---|---|\n" + "".join(lines)


def test_page_shows_the_path_of_a_task(path: TaskPath, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(path.always) + END + rest.partition(END)[2])
    shown = documented()
    did_not_run, lacking = sorted(shown - path.any), sorted(path.always - shown)
    assert not did_not_run, "the page shows functions that did not run"
    assert not lacking, "the page lacks functions that ran for nearly every task"
