"""Warnings in a worker's log reach the client, the API, and `scaler logs`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.waiting import until


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


HOOK = """
import logging

def warm_up():
    logging.getLogger("licences").info("found")
    logging.getLogger("licences").warning("only %d left", 3)
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("licences").exception("no price")
"""


def test_client_receives_warnings_of_a_preload_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook_that_warns.py").write_text(HOOK)
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        SchedulerClusterCombo(
            n_workers=1, preload="hook_that_warns:warm_up()", logging_paths=[str(tmp_path / "log")]
        ) as combo,
        Client(combo.get_address()) as client,
    ):
        rows = until(lambda: len(client.logs()) >= 2 and client.logs())
        assert [(row.level, row.text, row.task) for row in reversed(rows)] == [
            ("WARNING", "only 3 left", ""),
            ("ERROR", "no price: ZeroDivisionError: division by zero", ""),
        ]
        assert all(row.worker.startswith("local-1 ") for row in rows)


def test_client_receives_the_workers_log_about_a_dead_process(cluster: SchedulerClusterCombo) -> None:
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
        with pytest.raises(UsageError, match="pass a future for a task's output"):
            client.logs(future, worker="local-1")  # type: ignore[call-overload]
