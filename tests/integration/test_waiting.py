"""Waiting tasks of a real cluster: their groups, reasons, and searches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from scaler import Client, SchedulerClusterCombo
from scaler.monitor.cluster_rows import WaitingRow
from scaler.monitor.connection import MonitorConnection
from tests.integration.settings_rig import WAIT_SECONDS
from tests.integration.test_cli_commands import run
from tests.waiting import wait_for_file


def hold(file: str) -> int:
    wait_for_file(file)
    return 1


def simulate(_number: int) -> int:
    return 1


def train(_number: int) -> int:
    return 1


def combine(*parts: int) -> int:
    return sum(parts)


async def groups(address: str, condition: Callable[[dict[str, WaitingRow]], bool]) -> dict[str, WaitingRow]:
    changed = asyncio.Event()
    connection = MonitorConnection(address, changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                rows = {row.function: row for row in connection.model.status.waiting}
                if condition(rows):
                    return rows
                await changed.wait()
                changed.clear()
    finally:
        connection.close()


def test_groups_explain_why_tasks_wait_and_single_tasks_are_found(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with (
        SchedulerClusterCombo(n_workers=1, per_worker_task_queue_size=1) as cluster,
        Client(cluster.get_address(), name="risk-desk") as client,
    ):
        held = client.submit_verbose(hold, (str(file),), retries=0)
        combined = [client.submit(combine, held, number) for number in range(3)]
        gpu = [client.submit_verbose(train, (number,), capabilities={"gpu": 2}) for number in range(4)]
        simulated = [client.submit(simulate, number) for number in range(2_000)]
        monitor = cluster.get_monitor_address()
        found = asyncio.run(groups(monitor, lambda rows: len(rows) == 3 and rows["simulate"].tasks >= 1_990))
        assert (found["train"].tasks, found["train"].ready, found["train"].capabilities) == (4, 4, "gpu=2")
        assert found["train"].reason.startswith("no worker offers gpu=2")
        assert (found["combine"].tasks, found["combine"].ready) == (3, 0)
        assert "hold()" in found["combine"].reason
        assert found["simulate"].reason.startswith("no slot is free; 1 slot can run such tasks")
        assert all(0 < row.age_seconds < 60 for row in found.values())

        explained = run("scaler", "explain", gpu[2].task_id.hex()[:31], monitor)
        assert explained.returncode == 2, "several ids begin with these digits"
        assert f"{gpu[2].task_id.hex()} ready     train\n" in explained.stdout
        listed = run("scaler", "explain", "COMBIN", monitor)
        assert listed.stdout.splitlines() == [f"{future.task_id.hex()} waiting   combine" for future in combined]
        assert listed.stderr == "scaler explain: 3 tasks match 'COMBIN': use a full id\n"
        single = run("scaler", "explain", "hold", monitor)
        assert (single.returncode, single.stderr) == (0, "")
        assert single.stdout.startswith("it runs on worker")
        last = run("scaler", "explain", simulated[-1].task_id.hex(), monitor)
        assert "before it" in last.stdout
        file.touch()
        assert combined[0].result() == 1
        assert asyncio.run(groups(monitor, lambda rows: rows.keys() == {"train"}))
        done = run("scaler", "explain", "hold", monitor)
        assert done.stdout.startswith("it ended"), done.stderr
        for future in gpu:
            future.cancel()


def test_name_of_a_running_cluster_alone_is_not_a_task() -> None:
    with SchedulerClusterCombo(n_workers=1, name="test-waiting"):
        for command in ("explain", "logs"):
            named = run("scaler", command, "test-waiting")
            assert named.returncode == 0, named.stderr
        task = run("scaler", "explain", "simulate", "test-waiting")
        assert "no known task has an id that starts with 'simulate'" in task.stderr
