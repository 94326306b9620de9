"""Warm capacity of a real worker manager, over bursts of work, a lost unit, and a restart of the scheduler."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from scaler import Client
from tests.integration.settings_rig import Command
from tests.waiting import until, wait_for_file

WAIT_SECONDS = 40.0
FLAGS = "-wmi m -mtc 4 --unit-price 0.2 --minimum-units 1 --warm-units 2 --buffer-units 1"


def agents(manager: Command) -> set[int]:
    return {agent.pid for agent in psutil.Process(manager.pid).children()}


def run_until(path: str) -> None:
    wait_for_file(path)


def manager_row(client: Client) -> tuple[int, int, str]:
    rows = [(row.running, row.kept, row.reason) for row in client.table("managers")]
    return rows[0] if rows else (0, 0, "")


@pytest.mark.timeout(120)
def test_units_follow_the_warm_capacity(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    scheduler = Command("scheduler", (address,), {}, tmp_path)
    manager = Command("worker_manager", ("baremetal_native", address, *FLAGS.split()), {}, tmp_path)
    try:
        scheduler.addresses()
        with Client(address) as client:
            until(lambda: manager_row(client) == (1, 1, "no work; kept: minimum_units=1, 0.20 per hour"), WAIT_SECONDS)
            (first,) = agents(manager)
            psutil.Process(first).kill()
            until(lambda: first not in agents(manager) and manager_row(client)[:2] == (1, 1), WAIT_SECONDS)
            gate = tmp_path / "gate"
            futures = [client.submit(run_until, str(gate)) for _ in range(2)]
            until(lambda: manager_row(client)[0] == 3, WAIT_SECONDS)
            gate.touch()
            for future in futures:
                future.result(WAIT_SECONDS)
            text = "no work; kept: warm_units=2, 0.40 per hour"
            until(lambda: manager_row(client) == (2, 2, text) and len(agents(manager)) == 2, WAIT_SECONDS)
            kept = agents(manager)
        scheduler.process.kill()
        scheduler.process.wait()
        scheduler.close()
        scheduler = Command("scheduler", (address,), {}, tmp_path)
        scheduler.addresses()
        with Client(address) as client:
            until(lambda: manager_row(client) == (2, 2, text), WAIT_SECONDS)
            assert agents(manager) == kept
            assert client.table("costs")[0].kept_per_hour == 0.4
    finally:
        manager.close()
        scheduler.close()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            "--minimum-units 3 -mtc 2",
            "minimum_units (3) must not be more than the 2 units that max_task_concurrency (2) allows",
        ),
        (
            "--warm-units 9 -mtc 2",
            "warm_units (9) must not be more than the 2 units that max_task_concurrency (2) allows",
        ),
        (
            "--warm-units 1 --minimum-units 1 -mtc 2",
            "warm_units (1) has no effect unless it is more than minimum_units (1)",
        ),
        ("--buffer-units 1 --mode fixed", "buffer_units (1) has no effect with mode=fixed"),
        ("--buffer-units=-1", "--buffer-units = '-1': must be greater than or equal to 0"),
    ],
)
def test_impossible_warm_capacity_stops_the_manager_at_its_start(flags: str, text: str, tmp_path: Path) -> None:
    words = ("baremetal_native", "tcp://127.0.0.1:1", "-wmi", "m", *flags.split())
    manager = Command("worker_manager", words, {}, tmp_path)
    try:
        assert manager.process.wait(WAIT_SECONDS) == 2
        assert text in manager.errors()
    finally:
        manager.close()
