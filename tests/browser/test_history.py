"""The page of the history."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Windows
from tests.browser.fake_cluster import FakeCluster
from tests.browser.fake_history import HOUR
from tests.browser.rig import web_server
from tests.browser.test_pages import Told

if TYPE_CHECKING:
    from playwright.sync_api import Page

NOW = time.time()


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with web_server() as server:
        yield Told(server, FakeCluster(workers=6, tasks_per_second=1, at=NOW - 110), seconds=110)


def at(hours_ago: float) -> int:
    return int(NOW - hours_ago * HOUR)


def local(hours_ago: float, form: str) -> str:
    return time.strftime(form, time.localtime(at(hours_ago)))


COLOURED = """canvas => {
    const { width, height } = canvas;
    const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    const span = (place, colours = data.slice(place, place + 3)) => Math.max(...colours) - Math.min(...colours);
    const isColoured = (place) => data[place + 3] > 40 && span(place) > 40;
    const column = (x) => [...Array(height).keys()].filter((y) => isColoured(4 * (y * width + x))).length;
    return [...Array(width).keys()].map(column);
}"""


def drawn(page: Page, chart: str) -> list[int]:
    """Return for each column of a chart's canvas, from left to right, how many pixels of lines it has."""
    canvas = page.get_by_role("region", name=chart, exact=True).locator("canvas")
    canvas.wait_for()
    found: list[int] = canvas.evaluate(COLOURED)
    return found


def test_history_has_charts_runs_decisions_incidents_failures_and_functions(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("h")
    page.get_by_role("heading", name="History", level=1).wait_for()
    page.locator(".plot canvas").nth(5).wait_for()
    assert page.get_by_role("button", name="24 h").get_attribute("aria-pressed") == "true"
    runs = page.get_by_role("region", name="Runs and decisions")
    runs.get_by_text("scheduler ended").wait_for()
    assert "412 tasks wait for" in runs.inner_text()
    assert "no heartbeat for 60 s" in page.get_by_role("region", name="Incidents, workers, and managers").inner_text()
    failures = page.get_by_role("table", name="Failures in this period").locator("tbody tr")
    assert "no curve for XYZ" in failures.first.inner_text()
    functions = page.get_by_role("table", name="Functions in this period").locator("tbody tr")
    assert sorted(row.split()[0] for row in functions.all_inner_texts()) == ["load_market", "price_swaption"]
    page.get_by_role("button", name="1 h").click()
    page.wait_for_url("**range=3600*")
    page.get_by_role("button", name="Earlier").click()
    page.wait_for_url(re.compile("at="))


def test_scheduler_downtime_is_a_gap_in_the_charts(told: Told, windows: Windows) -> None:
    page = windows.open(told.url(f"/#/history?range=21600&at={at(4.5)}"))
    page.locator("main [role=status]", has_text="tasks done").wait_for()
    columns = drawn(page, "Memory of scheduler and workers")
    left = round(len(columns) * 0.12)  # without the axis
    shown = columns[left:]
    # Six hours around the middle of the gap, which is an hour long.
    middle = len(shown) // 2
    part = len(shown) // 6
    assert not any(shown[middle - part // 4 : middle + part // 4])
    assert all(shown[part : part + part // 2])


def test_history_shows_a_chosen_time(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/"))
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("t")
    dialog = page.get_by_role("dialog", name="Show another time")
    dialog.wait_for()
    dialog.get_by_label("Day and time").fill(local(7.0, "%Y-%m-%dT%H:%M"))
    dialog.get_by_role("button", name="Show").click()
    page.get_by_role("heading", name="History", level=1).wait_for()
    page.wait_for_url(re.compile(f"at={at(7.0) // 60 * 60}"))
    page.get_by_role("region", name="Runs and decisions").get_by_text("412 tasks wait").first.wait_for()
    page.goto(told.url(f"/#/history?at={at(80)}"))
    page.get_by_text("The history begins at").wait_for()
