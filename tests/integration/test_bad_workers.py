"""A real cluster names its slow worker."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from tests.integration.settings_rig import command
from tests.waiting import until

WORKERS = 5
QUICK_SECONDS, SLOW_SECONDS = 0.02, 0.3


def work(chosen: Path) -> None:
    """Sleep, much longer on the worker that ran the first of these tasks."""
    worker = str(os.getppid())
    try:
        with chosen.open("x") as file:
            file.write(worker)
    except FileExistsError:
        # The test depends on this duration.
        time.sleep(SLOW_SECONDS if chosen.read_text() == worker else QUICK_SECONDS)


@pytest.mark.full
def test_slowest_worker_for_the_same_function_is_named_first(tmp_path: Path) -> None:
    with ExitStack() as stack:
        address = stack.enter_context(SchedulerClusterCombo(n_workers=0)).get_address()
        for number in range(WORKERS):
            manager = "scaler_cluster", address, "-n", "1", "-wmi", f"m{number}"
            stack.enter_context(command(*manager, directory=tmp_path))
        client = stack.enter_context(Client(address))
        client.wait_for_workers(WORKERS)

        def slow_workers() -> list[str]:
            for future in [client.submit(work, tmp_path / "slow") for _ in range(100)]:
                future.result()
            return [row.fault for row in client.cluster().workers if row.slowness_heat]

        (fault,) = until(slow_workers, 60)
        assert fault.startswith("tasks of work() take ")
        assert fault.endswith(" other workers")
