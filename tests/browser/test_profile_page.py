"""The flame graph: frames, keys, zoom, and the equivalent table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Windows
from tests.browser.fake_cluster import PROFILE, FakeCluster
from tests.browser.rig import WebServer, web_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

TASK = "ab" * 16


def document(of: str, scale: int = 1) -> dict[str, Any]:
    stacks = [[scale * us, *numbers] for us, *numbers in PROFILE["stacks"]]
    return {"of": of, "name": "price_swaption", **PROFILE, "samples": scale * PROFILE["samples"], "stacks": stacks}


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        server.step(FakeCluster(workers=3, tasks_per_second=4, at=time.time() - 1))
        server.monitor.profiles = {"price_swaption": document("function"), TASK: document("task")}
        yield server


def details(page: Page) -> str:
    return page.locator("#chosen-frame").inner_text()


def test_frames_are_selected_and_zoomed_by_keys(server: WebServer, windows: Windows) -> None:
    page = windows.open(f"{server.url}/#/profile?function=price_swaption")
    canvas = page.get_by_role("application", name="Flame graph of price_swaption")
    canvas.focus()
    for key, said in (
        ("ArrowDown", "all samples · 100 % of the time, 4.00 s"),
        ("ArrowDown", "price_swaption (book.py:41) · 100 % of the time, 4.00 s · own time 0 %, 0 s"),
        ("ArrowDown", "price (model.py:87) · 90 % of the time, 3.60 s · own time 25 %, 1.00 s"),
        ("ArrowLeft", "curve (market.py:12) · 10 % of the time, 400 ms"),
        ("ArrowRight", "price (model.py:87)"),
        ("ArrowUp", "price_swaption (book.py:41)"),
    ):
        page.keyboard.press(key)
        assert details(page).startswith(said), (key, details(page))
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    back = page.get_by_role("button", name="Show everything")
    assert not back.is_visible()
    page.keyboard.press("Enter")
    back.wait_for()
    assert details(page).startswith("step (model.py:120) · 65 %")
    page.keyboard.press("Escape")
    back.wait_for(state="hidden")


def test_click_zooms_to_a_frame_and_second_click_to_its_caller(server: WebServer, windows: Windows) -> None:
    page = windows.open(f"{server.url}/#/profile?function=price_swaption")
    canvas = page.get_by_role("application", name="Flame graph of price_swaption")
    box = canvas.bounding_box()
    assert box
    canvas.click(position={"x": box["width"] * 0.05, "y": 21 * 2 + 8})
    page.get_by_role("button", name="Show everything").wait_for()
    assert details(page).startswith("curve (market.py:12)")
    canvas.click(position={"x": box["width"] * 0.9, "y": 21 * 2 + 8})  # now as wide as the graph
    page.wait_for_function("document.querySelector('#chosen-frame').textContent.startsWith('price_swaption')")


def test_table_has_self_and_total_shares_and_counts_recursion_once(server: WebServer, windows: Windows) -> None:
    page = windows.open(f"{server.url}/#/profile?function=price_swaption")
    rows = page.get_by_role("table", name="Hottest frames").locator("tbody tr")
    rows.first.wait_for()
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    assert cells[0] == ["step (model.py:120)", "65 %", "65 %", "2.60 s", "2.60 s"]
    assert cells[-1] == ["price_swaption (book.py:41)", "0 %", "100 %", "0 s", "4.00 s"]


def test_from_now_on_shows_only_later_entries(server: WebServer, windows: Windows) -> None:
    page = windows.open(f"{server.url}/#/profile?task={TASK}")
    page.get_by_text("price_swaption · 40 samples, 4.00 s").wait_for()
    page.get_by_role("button", name="From now on").click()
    page.get_by_text("no samples since then yet").wait_for()
    server.monitor.profiles[TASK] = document("task", 3)
    page.get_by_text("price_swaption · 80 samples, 8.00 s").wait_for()


def test_running_tasks_workers_and_functions_link_to_flame_graphs(server: WebServer, windows: Windows) -> None:
    page = windows.open(f"{server.url}/#/clients")
    page.get_by_role("link", name="Profiles").click()
    page.get_by_role("link", name="price_swaption").click()
    page.get_by_role("heading", name="Profile of price_swaption").wait_for()
    page.goto(f"{server.url}/#/worker/{1:032x}")
    page.get_by_role("table", name="Processors").get_by_role("link", name="flame graph").click()
    page.get_by_role("heading", name="Profile of").wait_for()
    assert "/#/profile?task=" in page.url
    assert page.locator("nav a[aria-current]").inner_text() == "Tasks"
    page.goto(f"{server.url}/#/workers")
    runs = page.get_by_role("table", name="Workers", exact=True).locator("tbody tr").first.locator("a").nth(1)
    assert (runs.get_attribute("href") or "").startswith("#/profile?task=")
