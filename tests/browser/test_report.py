"""A report in a browser: the page in one file, without a server."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from scaler import Client, SchedulerClusterCombo
from tests.browser.conftest import Windows
from tests.waiting import until

REPORT = "import sys; from scaler.cli import scaler; sys.exit(scaler())"


def crash(text: str) -> None:
    print("before the crash")
    raise ValueError(text)


def compute(seconds: float) -> int:
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
    return rounds


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the address of a report as a file's, and the id of the failed task in it."""
    path = tmp_path_factory.mktemp("reports") / "report.html"
    with SchedulerClusterCombo(n_workers=1, web_port=None) as combo, Client(combo.get_address()) as client:
        assert client.map(abs, range(20)) == list(range(20))
        client.submit(compute, 1.5).result()
        until(lambda: client.profile("compute").samples)
        future = client.submit(crash, "</script><b>bold</b>")
        with pytest.raises(ValueError, match="bold"):
            future.result()
        until_told = ("report", str(path), combo.get_monitor_address())
        done = subprocess.run([sys.executable, "-c", REPORT, *until_told], capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"wrote \d+ tasks to {path}: open it in a browser\n", done.stdout), done
    return path.as_uri(), future.task_id.hex()


def test_a_report_opens_without_a_server_and_says_when_it_was_made(written: tuple[str, str], windows: Windows) -> None:
    page = windows.open(written[0])
    page.locator("#state", has_text="Report of").wait_for()
    page.locator(".tile-workers", has_text="1 slot").wait_for()
    assert not page.locator("#pause").is_visible()
    page.keyboard.press("2")
    page.get_by_role("table", name="Workers").locator("tbody tr").first.wait_for()


def test_the_tasks_of_a_report_are_found_by_its_filters(written: tuple[str, str], windows: Windows) -> None:
    page = windows.open(f"{written[0]}#/tasks?state=failed")
    rows = page.get_by_role("table", name="Tasks").locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 1
    page.get_by_label("Search").fill("nothing has this name")
    page.get_by_text("No task fits").wait_for()


def test_a_failed_task_of_a_report_has_its_output_traceback_and_explanation(
    written: tuple[str, str], windows: Windows
) -> None:
    page = windows.open(f"{written[0]}#/task/{written[1]}")
    page.get_by_text("before the crash").wait_for()
    page.get_by_label("Traceback").get_by_text("ValueError: </script><b>bold</b>").wait_for()
    page.locator(".explained", has_text="ValueError").wait_for()
    page.goto(f"{written[0]}#/failures")
    page.get_by_role("table", name="Failures").locator("tbody tr").first.wait_for()
    page.get_by_role("link", name="History").click()
    page.get_by_role("table", name="Failures of this time").locator("tbody tr").first.wait_for()
    assert not page.get_by_role("button", name="Earlier").is_visible()


def test_a_report_has_the_flame_graphs_of_functions(written: tuple[str, str], windows: Windows) -> None:
    page = windows.open(f"{written[0]}#/profile")
    page.get_by_role("link", name="compute").click()
    page.get_by_role("application", name="Flame graph of compute").wait_for()
    page.get_by_role("table", name="Hottest frames").locator("tbody tr").first.wait_for()
    page.goto(f"{written[0]}#/profile?task={written[1]}")
    page.get_by_text("The report has profiles of functions only").wait_for()
