"""Limits of the cluster and counted resources on a real cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from scaler.errors import ScalerError
from tests.integration.settings_rig import command
from tests.waiting import until, wait_for_file

SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerClusterCombo]:
    """Two workers with two slots each, which offer one fpga each."""
    home = tmp_path_factory.mktemp("workers")
    with SchedulerClusterCombo(n_workers=0, limits={"db": 2, "licence": 1}) as started, ExitStack() as stack:
        for name in "ab":
            options = "-n", "2", "-wmi", name, "-pwc", "fpga=1"
            stack.enter_context(command("scaler_cluster", started.get_address(), *options, directory=home))
        yield started


@pytest.fixture(scope="module")
def address(cluster: SchedulerClusterCombo) -> str:
    return cluster.get_address()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout_seconds=SECONDS) as connected:
        yield connected


def count(folder: str, item: int) -> int:
    """Return how many such calls run at once."""
    own = Path(folder, f"{os.getpid()}-{item}")
    own.touch()
    running = max(len(list(Path(folder).iterdir())) for _ in range(100))
    own.unlink()
    return running


def hold(started: str, go_on: str) -> int:
    Path(started).write_text(str(os.getpid()))
    wait_for_file(go_on)
    return os.getpid()


def agent_of(client: Client, future: ScalerFuture) -> int:
    """Return the pid of the worker that runs a task."""
    found = re.search(r"it runs on worker .* pid (\d+)", client.explain(future))
    assert found is not None
    return int(found[1])


def nested(folder: str) -> Any:
    with Client() as client:
        return client.submit_verbose(len, (folder,), limits="licence").result()


@pytest.mark.parametrize("option", [{"limits": {"db": 1}}, {"limits": "db"}, {"limits": ["licence"]}], ids=str)
def test_limit_holds_over_all_clients_workers_and_ways_to_submit(
    option: dict[str, Any], address: str, tmp_path: Path
) -> None:
    most = 1 if "licence" in option["limits"] else 2

    def run(number: int) -> list[int]:
        with Client(address, timeout_seconds=SECONDS) as own:
            view = own.options(**option)
            futures = [view.submit(count, str(tmp_path), 100 * number + item) for item in range(20)]
            mapped = view.map(count, [str(tmp_path)] * 20, range(100 * number + 20, 100 * number + 40))
            graph = {item: (count, "folder", 100 * number + 40 + item) for item in range(10)}
            got = own.get({**graph, "folder": str(tmp_path)}, [*graph], **option)
            return [*(future.result() for future in futures), *mapped, *got.values()]

    with ThreadPoolExecutor(3) as threads:
        counts = [each for found in threads.map(run, range(3)) for each in found]
    assert len(counts) == 150
    assert max(counts) <= most


def test_killed_worker_gives_its_limit_back(client: Client, tmp_path: Path) -> None:
    started, go_on = tmp_path / "started", tmp_path / "go on"
    first = client.submit_verbose(hold, (str(started), str(go_on)), limits={"db": 2})
    pid = int(until(lambda: started.exists() and started.read_text()))
    second = client.submit_verbose(pow, (2, 3), limits="db")
    text = "it waits for limit db: 2 of 2 are used by 1 task of hold()"
    until(lambda: text in client.explain(second))
    (row,) = [row for row in client.table("limits") if row.limit == "db"]
    assert (row.used, row.total, row.ready) == (2.0, 2.0, 1)
    started.unlink()
    os.kill(agent_of(client, first), signal.SIGKILL)
    assert second.result(SECONDS) == 8
    until(started.exists)
    assert not first.done()
    go_on.touch()
    assert first.result(SECONDS) != pid


def test_cancelled_and_timed_out_tasks_give_their_limits_back(client: Client, tmp_path: Path) -> None:
    started, never = tmp_path / "started", str(tmp_path / "never")
    late = client.submit_verbose(hold, (str(started), never), limits="licence", timeout_seconds=0.2, retries=0)
    assert late.exception(SECONDS) is not None
    started.unlink()
    cancelled = client.submit_verbose(hold, (str(started), never), limits="licence")
    until(started.exists)
    after = client.submit_verbose(pow, (2, 3), limits="licence")
    cancelled.cancel()
    assert after.result(SECONDS) == 8


def test_unknown_limit_and_large_amount_fail_at_once(client: Client) -> None:
    for limits, text in (("licens", "{'licens': 1}"), ({"db": 3}, "{'db': 3}")):
        error = client.submit_verbose(pow, (2, 3), limits=limits).exception(SECONDS)
        assert isinstance(error, ScalerError)
        assert f"limits={text} is more than this cluster has: its limits are db=2, licence=1" in str(error)


def test_nested_task_that_waits_for_its_parent_is_reported(client: Client) -> None:
    parent = client.submit_verbose(nested, ("abc",), limits="licence")
    rows = until(lambda: [row for row in client.table("limits") if row.ready])
    assert rows[0].used_by == "1 task of nested()"
    parent.cancel()
    assert client.submit_verbose(pow, (2, 3), limits="licence").result(SECONDS) == 8


def test_counted_capability_is_occupied_on_each_worker(client: Client, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"started {number}") for number in range(2)]
    futures = [client.submit_verbose(hold, (path, str(tmp_path / "go on")), resources="fpga") for path in paths]
    until(lambda: all(Path(path).exists() for path in paths))
    assert len({agent_of(client, future) for future in futures}) == 2
    third = client.submit_verbose(pow, (2, 3), resources={"fpga": 1})
    assert "it waits for 1 fpga" in client.explain(third)
    (tmp_path / "go on").touch()
    assert third.result(SECONDS) == 8
    assert [future.result(SECONDS) > 0 for future in futures] == [True, True]


def test_command_shows_limits(cluster: SchedulerClusterCombo) -> None:
    words = [sys.executable, "-m", "scaler", "show", "limits", cluster.get_monitor_address()]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "licence" in shown.stdout, shown.stderr
