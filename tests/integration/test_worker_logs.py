"""Warnings of a worker's own log reach the client, the API and `scaler logs`."""

from __future__ import annotations

import os
import signal

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.waiting import until


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_worker_logs_about_a_dead_process_is_read_by_the_client(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        future = client.submit_verbose(die, retries=0)
        assert future.exception() is not None
        row = until(lambda: next((row for row in client.logs() if row.task == future.task_id.hex()), None))
        assert row.level == "WARNING"
        assert "killed by signal 9" in row.text
        assert row in client.logs(worker=row.worker)
        assert row in client.logs(worker=row.worker_id)
        assert not client.logs(worker="stranger-1")
        assert client.logs(future).stdout == ""
        with pytest.raises(UsageError, match="a future or a worker"):
            client.logs(future, worker="local-1")  # type: ignore[call-overload]
