"""Pages viewed while events arrive."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.browser.conftest import Windows, under_load
from tests.browser.fake_cluster import FakeCluster
from tests.browser.rig import WebServer
from tests.unit.monitor.web_rig import status
from tests.unit.scheduler.test_outlook import SENTENCES, no_manager, scaled_to_zero
from tests.unit.scheduler.test_status import encoded

LISTENS = re.compile(r"Live|No updates for \d+ s")
"""The content of a page that receives events, even if its cluster is paused."""
SMOOTH_SECONDS = 0.05
"""CPU time per frame, which is independent of other programs on a busy machine."""
FRAMES = 60
SCROLL = """async (frames) => {
    const lanes = document.querySelector(".lanes");
    for (let frame = 0; frame < frames; frame += 1) {
        lanes.scrollTop += 150;
        await new Promise(requestAnimationFrame);
    }
    return lanes.scrollTop;
}"""


@pytest.mark.parametrize(
    ("path", "moving"),
    [
        ("/", ".tile-done .value"),
        ("/#/workers", "main [aria-label=Workers] tbody tr:nth-child(2)"),
        ("/#/timeline", ".functions"),
        ("/#/tasks", "main tbody tr:first-child th"),
    ],
)
def test_page_keeps_up_with_a_thousand_tasks_a_second(
    server: WebServer, windows: Windows, path: str, moving: str
) -> None:
    cluster = FakeCluster(workers=100, tasks_per_second=1000, at=time.time())
    with under_load(server, cluster):
        page = windows.open(server.url + path)
        page.locator(moving).first.wait_for()
        if path == "/#/timeline":
            page.locator(".functions button").first.wait_for()
            return
        before = page.locator(moving).first.inner_text()
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector)?.innerText !== before", arg=[moving, before]
        )


def test_killed_worker_leaves_the_table_and_its_page_reports_the_loss(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=5, at=time.time())
    server.step(cluster)
    table = windows.open(server.url + "/#/workers")
    table.get_by_role("link", name="node-002").wait_for()
    own = windows.open(server.url + f"/#/worker/{2:032x}")
    own.get_by_role("heading", name="node-002").wait_for()
    overview = windows.open(server.url)
    overview.locator(".tile-workers", has_text="5 slots").wait_for()
    cluster.dead.add(2)
    events = cluster.events(1.0)
    server.monitor.noted["incidents"] = [cluster.incident("lost", "node-002", "killed by signal 9")]
    server.tell(cluster.status(), events)
    table.get_by_role("link", name="node-002").wait_for(state="detached")
    assert table.get_by_role("table", name="Workers", exact=True).locator("tbody tr").count() == 4
    own.get_by_role("heading", name="This worker is no longer listed").wait_for()
    overview.get_by_text("killed by signal 9").wait_for()
    overview.locator(".tile-workers", has_text="4 slots").wait_for()


def test_page_reports_a_lost_server_and_resumes(server: WebServer, windows: Windows) -> None:
    windows.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    cluster = FakeCluster(workers=3, at=time.time())
    server.step(cluster)
    page = windows.open(server.url + "/#/workers")
    page.locator("#state", has_text=LISTENS).wait_for()
    server.stop()
    page.locator("#state", has_text=re.compile(r"Connection lost, last update \d+ s ago")).wait_for()
    page.locator("#state", has_text=re.compile(r"last update [1-9]\d* s ago")).wait_for()
    assert page.locator("#announce").inner_text() == "Connection lost"
    assert page.get_by_role("link", name="node-001").is_visible()  # earlier data is still there
    cluster.dead.add(1)
    server.monitor.model.apply_status({**cluster.status(), "at": cluster.at + 5})
    server.start()
    page.locator("#state", has_text=LISTENS).wait_for()
    server.step(cluster)
    page.get_by_role("link", name="node-001").wait_for(state="detached")
    page.locator("#state", has_text="Live").wait_for()
    assert page.locator("#announce").inner_text() == "Reconnected"
    assert page.locator("#banner").is_hidden()


def test_five_hundred_workers_are_listed_and_scroll_smoothly(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=500, tasks_per_second=30, at=time.time() - 300)
    for _ in range(300):
        server.monitor.model.apply_events(cluster.events(1.0))
    server.step(cluster)
    page = windows.open(server.url + "/#/workers")
    page.get_by_role("button", name="Show all 500 rows").click()
    assert page.get_by_role("table", name="Workers", exact=True).locator("tbody tr").count() == 500
    page.keyboard.press("3")
    page.locator(".functions button").first.wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    with under_load(server, cluster, 0.5):
        assert page.evaluate(SCROLL, FRAMES) > 5000
    seconds = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    assert seconds["TaskDuration"] / FRAMES < SMOOTH_SECONDS


def test_leaving_a_page_closes_its_stream(server: WebServer, windows: Windows) -> None:
    server.step(FakeCluster(workers=3, at=time.time()))
    page = windows.open("data:text/html,<p>elsewhere")
    for _ in range(8):  # a browser has six connections per server, and keeps pages alive for a while after leaving
        page.goto(server.url)
        page.locator("#state", has_text=LISTENS).wait_for()
        page.goto("data:text/html,<p>elsewhere")
    page.evaluate("() => void setTimeout(() => history.back())")  # after the answer to the old page
    page.locator("#state", has_text=LISTENS).wait_for()
    server.step(FakeCluster(workers=2, at=time.time() + 5))
    page.locator(".tile-workers", has_text="2 slots").wait_for()
    assert server.streams() == 1


def test_page_without_workers_explains_how_to_start_some_if_nothing_else_will(
    server: WebServer, windows: Windows
) -> None:
    page = windows.open(server.url)
    for make, text in SENTENCES.items():
        document = json.loads(encoded(make()))
        server.tell(document)
        title, _, rest = text.partition(": ")
        others = (("/#/workers", "#main"), ("/#/timeline", "#main")) if make in (no_manager, scaled_to_zero) else ()
        for path, part in (*others, ("/#/", ".panel.empty")):
            page.goto(server.url + path)
            told = page.locator(part)
            told.get_by_role("heading", name=title, exact=True).wait_for()
            told.get_by_text(f"{rest[0].upper()}{rest[1:]}.", exact=True).wait_for()
            assert "No workers yet" not in page.inner_text("body")
            advice = told.locator("pre", has_text="scaler_cluster").count()
            assert advice == (0 if document["totals"]["managers"] else 1), make.__name__


def test_paused_page_catches_up_later(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=3, tasks_per_second=10, at=time.time())
    server.step(cluster)
    page = windows.open(server.url + "/#/tasks")
    first = page.locator("main tbody tr:first-child th")
    first.wait_for()
    page.keyboard.press("p")
    page.locator("#state", has_text="Paused").wait_for()
    before = first.inner_text()
    server.step(cluster)
    page.evaluate("() => new Promise(done => setTimeout(done, 600))")  # twice the usual delay of updates
    assert first.inner_text() == before
    page.get_by_role("button", name="Resume").click()
    page.wait_for_function("before => document.querySelector('main tbody th').innerText !== before", arg=before)


def test_pages_of_inactive_extensions_are_not_in_the_menu(server: WebServer, windows: Windows) -> None:
    document = status(100.0)
    document["scheduler"]["extensions"] = "calls failures"
    server.tell(document)
    page = windows.open(server.url + "/#/timeline")
    page.locator("main h1", has_text="Overview").wait_for()
    names = page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert "Failures" in names
    assert "Timeline" not in names
    page.keyboard.press("3")
    page.locator("main h1", has_text="Tasks").wait_for()
