"""A spend limit in a real cluster: paid workers exit in order, and a restart keeps the spending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from tests.integration.settings_rig import command
from tests.integration.test_scaling import SCHEDULER, WAIT_SECONDS, dynamic, scheduler
from tests.waiting import wait_for_file, within

LIMIT = 100.0


def wait_for(path: str) -> str:
    wait_for_file(path)
    return "done"


def costs(monitor: str, directory: Path) -> Any:
    with command("scaler", "costs", monitor, "--json", directory=directory) as told:
        assert told.process.wait(WAIT_SECONDS) == 0
        return json.loads(told.output())


@pytest.mark.full
def test_at_the_limit_paid_workers_drain_and_a_restart_keeps_the_spending(tmp_path: Path) -> None:
    flags = ("--spend-limit", f"{LIMIT:g}/run", "--state-directory", str(tmp_path / "state"))
    paid, burner, mark = ("--unit-price", "3600"), ("--unit-price", "3600000"), tmp_path / "mark"
    with (
        scheduler(tmp_path, *flags) as (running, address),
        command(*dynamic(address, 2, "paid"), *paid, directory=tmp_path) as manager,
        Client(address) as client,
    ):
        manager.addresses()
        first = client.submit_verbose(wait_for, (str(mark),), capabilities={"paid": None})
        assert within(WAIT_SECONDS, first.running)
        # A fixed manager is also charged. It quickly spends the rest.
        with command(*dynamic(address, 1, "burner"), "--mode", "fixed", *burner, directory=tmp_path):
            second = client.submit_verbose(abs, (-1,), capabilities={"paid": None})
            assert within(WAIT_SECONDS, lambda: "starts no more units: spend_limit: " in client.explain(second))
            assert within(WAIT_SECONDS, lambda: "paid units drain" in running.output())
        assert not first.done()
        mark.touch()
        assert first.result(WAIT_SECONDS) == "done"
        assert within(WAIT_SECONDS, lambda: "ended" in manager.output())
        assert not second.done()
    with command(*SCHEDULER, *flags, directory=tmp_path) as running:
        found = costs(running.addresses()["monitor"], tmp_path)
        assert found["run"] >= found["run_limit"] == LIMIT
