"""Failures on the page, by function and message with their tasks, however many tasks succeed later."""

from __future__ import annotations

import re

from scaler.monitor.messages import TaskLog
from scaler.monitor.model import MAX_TASKS
from tests.browser.conftest import Windows
from tests.browser.rig import WebServer
from tests.unit.monitor.web_rig import events, status, task

SMILES = [
    task(
        f"{number:032x}", "exception", text=f"ValueError: smile {number}", function="calibrate", ended_at=10.0 + number
    )
    for number in range(1, 32)
]
LAST = f"{31:032x}"


def told(server: WebServer) -> None:
    """31 failures of one kind and one of another, then more successes than a monitor retains."""
    disk = task("d" * 32, "exception", text="OSError: no disk", function="load", ended_at=5.0)
    successes = (
        events(60.0, *(task(f"{batch:016x}{number:016x}", ended_at=60.0) for number in range(1000)))
        for batch in range(1, MAX_TASKS // 1000 + 2)
    )
    server.tell(status(100.0), events(50.0, disk, *SMILES), *successes)
    log = TaskLog(bytes.fromhex(LAST), b"", b"no smile here\n", 0, b"Traceback: in calibrate")
    server.monitor.logs[LAST] = log


def test_failure_groups_link_to_tasks_tracebacks_output_and_replay(server: WebServer, windows: Windows) -> None:
    told(server)
    page = windows.open(server.url + "/")
    page.get_by_role("navigation").get_by_role("link", name="Failures").click()
    rows = page.get_by_role("table", name="Failures").locator("tbody tr")
    rows.first.wait_for()
    assert [row.split("\t")[:3] for row in rows.all_inner_texts()] == [
        ["31", "ValueError: smile …", "calibrate"],
        ["1", "OSError: no disk", "load"],
    ]
    page.get_by_role("link", name="ValueError: smile …").click()
    page.get_by_role("heading", name=re.compile("31 . ValueError: smile …")).wait_for()
    tasks = page.get_by_role("table", name="Failed tasks").locator("tbody tr")
    tasks.nth(30).wait_for()
    assert "ValueError: smile 31" in tasks.first.inner_text()
    tasks.first.get_by_role("link").first.click()
    page.get_by_text("Traceback: in calibrate").wait_for()
    page.get_by_text("no smile here").wait_for()
    assert f'client.replay("{LAST}", pdb=True)' in page.get_by_role("region", name="Replay").inner_text()


def test_rerun_task_explains_how_earlier_attempts_ended(server: WebServer, windows: Windows) -> None:
    document = events(50.0)
    document["tasks"]["columns"] = [*document["tasks"]["columns"], "failures", "losses"]
    document["tasks"]["rows"] = [[*SMILES[-1], 2, 1]]
    server.tell(status(100.0), document)
    page = windows.open(server.url + f"/#/task/{LAST}")
    page.locator(".facts").get_by_text("Earlier attempts").wait_for()
    text = page.locator(".facts").inner_text()
    assert "2 raised an exception in retry_on, 1 lost with their process or worker" in text
