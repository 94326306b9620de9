"""An extension installed next to Scaler: its settings, table, and exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.extensions.installed import EXAMPLE, install, write_entry_points
from tests.integration.settings_rig import command
from tests.waiting import until

PROGRAM = """
import sys, time
from scaler import Client
with Client(sys.argv[1]) as client:
    client.map(time.sleep, [0.06, 0.001])
    rows = [row for row in client.table("slow_tasks") if row.function == "sleep"]
    print(rows[0]._asdict() if rows else None, client.table("slow_tasks", function="other"))
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@contextmanager
def cluster(folder: Path, directory: Path, *flags: str) -> Iterator[tuple[str, str]]:
    """Run a scheduler and a worker with the packages of a folder; yield the addresses for clients and monitors."""
    path = {"PYTHONPATH": str(folder)}
    with command("scaler_scheduler", *flags, f"ipc://{directory}/s", directory=directory, **path) as scheduler:
        found = scheduler.addresses()
        with command("scaler_cluster", "-n", "1", found["scheduler"], directory=directory, **path):
            yield found["scheduler"], found["monitor"]


def test_installed_extension_has_its_setting_table_and_route(tmp_path: Path) -> None:
    folder = install(EXAMPLE, tmp_path / "site")
    with cluster(folder, tmp_path, "--extensions", "slow_tasks", "--slow-seconds", "0.05") as (address, monitor):
        done = python(folder, "-c", PROGRAM, address)
        assert done.stdout.startswith("{'function': 'sleep', 'tasks': 1, 'longest_seconds': 0."), done.stderr
        assert done.stdout.endswith(" ()\n")
        shown = python(folder, "-m", "scaler.cli", "scaler", "show", "slow_tasks", monitor)
        head, row = shown.stdout.splitlines()
        assert (head.split(), row.split()[:2]) == (["function", "slow", "tasks", "longest"], ["sleep", "1"])
        told = python(folder, "-m", "scaler.cli", "scaler", "show", "slow_tasks", monitor, "--json", "--function", "x")
        assert (told.returncode, told.stdout) == (0, "")
        with command("scaler_ui", monitor, "--web-port", "0", directory=tmp_path, PYTHONPATH=str(folder)) as web:
            url = next(iter(web.addresses().values()))
            rows = until(lambda: httpx.get(f"{url}/api/slow_tasks").json().get("slow_tasks"))
            assert [(row["function"], row["tasks"]) for row in rows] == [("sleep", 1)]
            assert 'slow_tasks_longest_seconds{function="sleep"} 0.' in httpx.get(f"{url}/metrics").text
            assert '"slow_tasks": {"extension"' in httpx.get(f"{url}/schema.js").text.replace(":{", ": {")
            assert "/api/slow_tasks" in httpx.get(f"{url}/api/openapi.json").json()["paths"]


FAILING = """
from scaler.extensions.changes import Opened
from scaler.extensions.interface import SchedulerPart
from scaler.plugins import Extension, FoundTable

EXTENSION = Extension(
    "failing",
    scheduler="failing:Part",
    found=(FoundTable("failing", "Nothing", "scaler.extensions.logs.rows:LogRow", most=10),),
)

class Part(SchedulerPart):
    changes = (Opened,)

    def __init__(self, config):
        self.calls = 0

    def on_changes(self, changes, now):
        self.calls += 1
        raise KeyError("never again")

    def rows(self, table, search, most, client, state):
        return []
"""
ASKING = """
import sys
from scaler import Client
from scaler.errors import RefusedError
with Client(sys.argv[1]) as client:
    print(client.submit(abs, -1).result())
    print([(row.kind, row.subject, row.text.partition(" (")[0]) for row in client.table("incidents")])
    try:
        client.table("failing")
    except RefusedError as error:
        print(error)
"""


def test_failing_extension_is_disabled_and_the_cluster_continues(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_entry_points(folder, "failing", {"failing": "failing:EXTENSION", "broken": "nowhere:EXTENSION"})
    (folder / "failing.py").write_text(FAILING)
    with cluster(folder, tmp_path, "--extensions=failing") as (address, _monitor):
        done = python(folder, "-c", ASKING, address)
    lines = done.stdout.splitlines()
    assert lines[0] == "1", done.stderr
    assert "('extension', 'the extension failing', \"on_changes raised KeyError: 'never again'\")" in lines[1]
    assert "the extension failing is switched off: on_changes raised KeyError" in lines[2]
    assert "the tables of the extension 'broken' are not shown" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--extensions", "slow_task"], "no extension 'slow_task' is installed; did you mean 'slow_tasks'"),
        (["--slow-seconds", "1"], "unknown flag --slow-seconds"),
        (["--extensions", "slow_tasks", "--slow-seconds", "-1"], "slow-seconds"),
    ],
)
def test_error_in_an_installed_extension_is_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    folder = install(EXAMPLE, tmp_path / "site")
    done = python(folder, "-m", "scaler.cli", "scaler_scheduler", f"ipc://{tmp_path}/s", *flags)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert said in done.stderr
