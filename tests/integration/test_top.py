"""`scaler_top` against a real scheduler with a worker: its output and its failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaler import Client
from tests.integration.settings_rig import Command, command
from tests.integration.test_cli_commands import run


def square(value: int) -> int:
    return value * value


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[Command, dict[str, str]]]:
    """Yield a scheduler with a worker and ten finished tasks, and its address."""
    with command("scaler_scheduler", "tcp://127.0.0.1:0", "-sri", "0.1", directory=directory) as scheduler:
        places = scheduler.addresses()
        with command("scaler_cluster", places["scheduler"], "-n", "2", directory=directory) as workers:
            workers.addresses()
            with Client(address=places["scheduler"]) as client:
                assert client.map(square, range(10)) == [value * value for value in range(10)]
                yield scheduler, places


def document(address: str) -> dict[str, Any]:
    done = run("scaler_top", address, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_once_prints_panels_workers_and_counts_as_text_and_json(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (_, places):
        told = document(places["monitor"])
        assert told["totals"]["workers"] == 1
        assert told["messages"]["received"]["Submit"] >= 1
        assert sum(told["tasks"]["ended"].values()) == 10
        done = run("scaler_top", places["monitor"], "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("\n", "").isprintable()
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["scheduler", "|", "tasks", "|", "sent", "|", "received"]
    head = next(place for place, line in enumerate(lines) if line.startswith("worker"))
    assert lines[head - 1] == "Total 1 worker, 2 slots"
    assert "[cpu]" in lines[head]
    assert lines[head + 1].startswith(told["workers"][0]["name"])
    assert any(line.startswith("clients") for line in lines)


def test_gives_up_after_its_timeout_and_says_what_to_change() -> None:
    done = run("scaler_top", "tcp://127.0.0.1:1", "--once", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert "use the monitor address" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_reader_that_stops_early_is_not_an_error(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        told = Path(__file__).parents[2]
        line = f"{sys.executable} -m scaler.cli scaler_top {scheduler.addresses()['monitor']} --once | true"
        done = subprocess.run(
            ["/bin/sh", "-c", line], capture_output=True, text=True, timeout=30, cwd=told, check=False
        )
    assert done.stderr == ""
