"""What the page knows of real work."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.ports import ReservedPorts
from tests.integration.settings_rig import command
from tests.integration.test_web_ui import WAIT_SECONDS, scheduler, web_ui


def work(number: int) -> int:
    print(f"working on {number}")
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def test_a_task_is_told_with_its_failure_and_why(ports: ReservedPorts, tmp_path: Path) -> None:
    with (
        scheduler(ports, tmp_path),
        command("cluster", ports.address(), "-n", "2", directory=tmp_path),
        web_ui(ports, tmp_path) as page,
        page.events() as read_until,
        Client(ports.address()) as client,
    ):
        futures = [client.submit(work, number) for number in [*range(20), -1]]
        with pytest.raises(ValueError, match="-1 is negative"):
            futures[-1].result(WAIT_SECONDS)
        failed = futures[-1].task_id.hex()
        read_until(lambda browser: failed in browser.tasks)
        found = page.until("/api/status", lambda found: found["status"]["tasks"]["ended_total"] == 21)
        assert found["status"]["tasks"]["ended"]["done"] == 20
        assert found["status"]["tasks"]["failed_total"] == 1
        (row,) = page.json("/api/tasks?state=failed")["tasks"]
        assert (row["id"], row["function"]) == (failed, "work")
        assert "-1 is negative" in row["text"]
        assert "in work" in page.json(f"/api/tasks/{failed}")["task"]["traceback"]
        assert "-1 is negative" in page.json(f"/api/tasks/{failed}/explain")["text"]
        assert page.json(f"/api/tasks/{failed}/log")["stdout"] == "working on -1\n"
        assert page.json(f"/api/tasks/{futures[7].task_id.hex()}/log")["stdout"] == "working on 7\n"
        lanes = page.json("/api/timeline")["lanes"]
        assert sum(len(lane["bars"]) for lane in lanes) == 21
        (function,) = page.json("/api/functions")["functions"]
        assert (function["name"], function["ended"], function["failed"]) == ("work", 21, 1)
        assert 'scaler_function_duration_seconds_count{function="work"} 21.0' in page.get("/metrics").text
