"""The content of each page for eyes, keyboards, and screen readers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from scaler.extensions.audit.rows import AuditRow
from scaler.extensions.logs.rows import LogRow
from scaler.extensions.timeline.lanes import lanes
from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.messages import TaskLog
from tests.browser.conftest import Windows
from tests.browser.fake_cluster import PROFILE, FakeCluster
from tests.browser.fake_history import HOUR, fake_history
from tests.browser.rig import WebServer, web_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

NONE = "\N{EN DASH}"
EVIL = "<img src=x onerror=window.hacked=1>"
PATHS = (
    "/",
    "/#/workers",
    f"/#/worker/{3:032x}",
    "/#/timeline",
    "/#/tasks",
    "/#/task/{failed}",
    "/#/data",
    "/#/failures",
    "/#/clients",
    "/#/network",
    "/#/history",
    "/#/history?at={then}",
    "/#/profile",
    "/#/profile?function=price_swaption",
)
WHY = "no worker offers gpu=2, and no worker manager could start one that does: there is at most gpu=1"
WAITING = {"id": "w", "function": "risk_report", "capabilities": "gpu=2", "tasks": 7, "age_seconds": 9.0, "reason": WHY}
MAX_PAGE_BYTES = 400_000
SORT_EACH_TABLE = """() => [...document.querySelectorAll("main .table")].filter((each) => each.offsetParent)
    .map((each) => {
        const name = each.querySelector("caption").textContent;
        const order = () => [...each.querySelectorAll("tbody tr")].map((row) => row.textContent).join("\\n");
        const given = order();
        const directions = [...each.querySelectorAll("th")].map((head) => head.getAttribute("aria-sort"));
        for (const head of each.querySelectorAll("thead th")) {
            const found = ["", ""].map(() => {
                head.querySelector("button").click();
                return head.getAttribute("aria-sort");
            });
            if (String(found.sort()) !== "ascending,descending")
                throw new Error(`${name} is not sorted by ${head.textContent}: ${found}`);
        }
        if (!directions.includes("ascending") && !directions.includes("descending")) {
            const buttons = each.querySelectorAll("thead button");
            buttons[buttons.length - 1].click();
            if (order() !== given) throw new Error(`${name} does not go back to its order`);
        }
        return name;
    })"""
PHONE = {"width": 360, "height": 740}


class Told:
    """A paused server that has reported five minutes of work."""

    def __init__(self, server: WebServer, cluster: FakeCluster, seconds: int = 300) -> None:
        self.server, self.cluster = server, cluster
        for second in range(seconds):
            events = cluster.events(1.0)
            if second == 100:
                server.monitor.noted["decisions"] = [cluster.decision(24, "412 tasks wait for 20 slots")]
                server.monitor.noted["incidents"] = [cluster.incident("worker_lost", "node-007", "killed by signal 9")]
            if second < seconds - 1:
                server.monitor.model.apply_status(cluster.status())
                server.monitor.model.apply_events(events)
            else:
                server.tell({**cluster.status(), "waiting": [WAITING]}, events)
        self.failed = server.monitor.model.tasks(state="failed", limit=1)[0]
        server.monitor.explanations[self.failed.id] = "It failed in attempt 1: ValueError: no curve for XYZ."
        server.monitor.past = fake_history(cluster.at)
        self.then = int(cluster.at - 2 * HOUR)
        log = TaskLog(bytes.fromhex(self.failed.id), b"pricing trade 4711\n", b"a curve is missing\n", 0)
        server.monitor.logs[self.failed.id] = log
        server.monitor.profiles["price_swaption"] = {"of": "function", "name": "price_swaption", **PROFILE}

    def url(self, path: str) -> str:
        return self.server.url + path.format(failed=self.failed.id, then=self.then)


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with web_server() as server:
        yield Told(server, FakeCluster(workers=24, tasks_per_second=4, at=time.time() - 300))


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def overflow(page: Page) -> int:
    found = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert isinstance(found, int)
    return found


def test_overview_shows_counts_curves_decisions_and_incidents(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    page.get_by_role("heading", name="Overview").wait_for()
    status = told.server.monitor.model.status
    tiles = " ".join(texts(page, ".tile")).replace("\n", " ")
    assert f"Running {status.tasks.running} of 24 slots" in tiles
    assert f"Done {status.tasks.ended['done']:,}" in tiles
    page.locator(".plot canvas").nth(3).wait_for()
    assert re.fullmatch(
        r"Throughput\. tasks/s 4, at most 4; failed/s .*", page.locator(".plot").first.get_attribute("aria-label") or ""
    )
    page.get_by_role("region", name="Last scaling decisions").get_by_text("412 tasks wait for 20 slots").wait_for()
    page.get_by_role("region", name="Incidents").get_by_text("worker lost node-007").wait_for()


CURVE_BEGINS_AT = """canvas => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const isColoured = ([red, green, blue, alpha]) =>
        alpha > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 25;
    for (let x = 0; x < width; x += 1)
        for (let y = 0; y < height; y += 1) {
            const place = 4 * (y * width + x);
            if (isColoured(data.slice(place, place + 4))) return x / width;
        }
    return 1;
}"""
"""The share of the width of a chart that is left of its curves: the axis takes less than a fifth."""


@pytest.mark.parametrize("path", ["", "#/data", "#/network"])
def test_curves_of_a_new_cluster_fill_their_charts(server: WebServer, windows: Windows, path: str) -> None:
    Told(server, FakeCluster(workers=4, at=time.time() - 30), seconds=30)
    page = windows.open(f"{server.url}/{path}")
    canvas = page.locator(".plot canvas").first
    canvas.wait_for()
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert canvas.evaluate(CURVE_BEGINS_AT) < 0.2


def test_data_page_shows_stores_transfers_and_hosts_without_a_route(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/data"))
    stores = page.get_by_role("table", name="Stores").locator("tbody tr")
    stores.first.wait_for()
    assert stores.first.get_by_role("rowheader").inner_text() == "rack-6"
    page.get_by_role("button", name="Host", exact=True).click()
    assert stores.first.get_by_role("rowheader").inner_text() == "object storage"
    assert "rack-2 → rack-5" in page.get_by_role("region", name="Hosts that cannot reach each other").inner_text()
    cells = page.locator("table.matrix tbody tr").nth(2).locator("td")
    assert cells.nth(5).get_attribute("title") == "rack-2 → rack-5: 2.3 GiB, no connection between them"
    page.locator(".plot canvas").wait_for()


def test_worker_logs_are_below_the_table_and_on_each_page(server: WebServer, windows: Windows) -> None:
    windows.expected = ("404",)  # the record's task has ended
    cluster = FakeCluster(workers=3, tasks_per_second=4, at=time.time() - 1)
    server.step(cluster)
    page = windows.open(f"{server.url}/#/workers")
    page.get_by_role("table", name="Workers", exact=True).locator("tbody tr").first.wait_for()
    assert not page.get_by_role("region", name="Worker logs").is_visible()
    texts_of_both = ("the disk is full", f"process 7 died {EVIL}")
    rows = [
        LogRow(2 - place, cluster.at, "ERROR", f"node-00{place}", f"{place:032x}", text, "agent", "ab" * 16)
        for place, text in enumerate(texts_of_both)
    ]
    server.monitor.lines = rows
    lines = page.get_by_role("table", name="Worker logs").locator("tbody tr")
    lines.nth(1).wait_for()
    assert [line.split("\t")[1:4] for line in lines.all_inner_texts()] == [
        ["ERROR", f"node-00{place}", text] for place, text in enumerate(texts_of_both)
    ]
    lines.nth(1).get_by_role("link", name="node-001").click()
    page.get_by_role("region", name="Its log").get_by_text("process 7 died").wait_for()
    assert lines.count() == 1
    lines.get_by_role("link", name="abab").click()
    page.get_by_role("heading", name="Task abab").wait_for()


def test_every_table_sorts_by_every_column_and_restores_its_order(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    sorted_tables = set()
    for path in PATHS:
        page.goto(told.url(path))
        page.locator("main h1").wait_for()
        sorted_tables |= set(page.evaluate(SORT_EACH_TABLE))
    assert {"Workers", "Worker managers", "Tasks", "Processors", "Failures", "Clients", "Functions"} <= sorted_tables


def test_tasks_are_filtered_with_the_filters_in_the_url(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/tasks"))
    page.get_by_label("State").select_option("failed")
    page.get_by_text(re.compile(r"\d+ found in the last")).wait_for()
    assert set(texts(page, "td.state-cell")) == {"✕ failed"}
    page.get_by_label("Search").fill("calib")
    page.wait_for_function("() => location.hash === '#/tasks?search=calib&state=failed'")
    page.reload()
    page.get_by_text(re.compile(r"\d+ found among live tasks and the last")).wait_for()
    assert page.get_by_label("Search").input_value() == "calib"
    assert {row.split("\t")[2] for row in texts(page, "[aria-label=Tasks] tbody tr")} == {"calibrate"}
    page.get_by_label("Search").fill("nothing of the kind")
    page.get_by_role("heading", name="No task matches").wait_for()
    page.get_by_role("link", name="Clear").click()
    page.get_by_text("500 most recent").wait_for()


def test_task_shows_its_history_error_traceback_and_log(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/task/{failed}"))
    page.get_by_text("It failed in attempt 1").wait_for()
    page.get_by_text("pricing trade 4711").wait_for()
    main = page.get_by_role("main").inner_text()
    for text in (
        "✕ failed",
        "ValueError: no curve for XYZ",
        'File "book.py", line 41',
        "a curve is missing",
        "190 MiB",
    ):
        assert text in main


def test_waiting_tasks_are_listed_with_reasons_and_found_by_search(windows: Windows) -> None:
    reason = "no worker offers gpu=2, and no worker manager could start one that does: they offer no gpu"
    waiting = {"function": "train", "capabilities": "gpu=2", "tasks": 4, "ready": 4, "oldest": "7" * 32}
    rows = [
        {"id": "train gpu=2 0", "age_seconds": 7.5, "reason": reason, **waiting},
        {"id": "combine  0", "function": "combine", "tasks": 12, "age_seconds": 99.0, "reason": "it needs 1 result"},
    ]
    cluster = FakeCluster(workers=2)
    with web_server() as server:
        server.tell({**cluster.status(), "waiting": rows}, cluster.events(1.0))
        server.monitor.waiting = [TaskRow(digit * 32, "ready", "train") for digit in "78"]
        server.monitor.explanations["7" * 32] = reason
        page = windows.open(f"{server.url}/#/tasks")
        lines = page.get_by_role("table", name="Waiting tasks").locator("tbody tr")
        lines.nth(1).wait_for()
        assert [line.split("\t")[0] for line in lines.all_inner_texts()] == ["combine", "train"]
        assert lines.nth(1).inner_text().split("\t") == ["train", "gpu=2", NONE, "4", "4", "7.50 s", reason]
        rows[1] |= {"age_seconds": 100.0, "tasks": 11}
        cluster.events(1.0)
        server.tell({**cluster.status(), "waiting": rows})
        page.get_by_role("cell", name="11", exact=True).wait_for()

        page.get_by_role("link", name="train").click()
        page.wait_for_function("() => location.hash === '#/tasks?search=train'")
        found = page.get_by_role("table", name="Tasks", exact=True).locator("tbody tr")
        page.get_by_text(re.compile("2 found among live tasks")).wait_for()
        assert [line.split("\t")[1] for line in found.all_inner_texts()] == ["○ ready"] * 2
        page.get_by_label("Search").fill("7777")
        page.get_by_text(re.compile("1 found among live tasks")).wait_for()
        found.get_by_role("link").click()
        page.get_by_text("no worker offers gpu=2").wait_for()
        page.get_by_text("○ ready").wait_for()
        assert page.locator("dl.facts div", has_text="Started").inner_text().split("\n") == ["Started", NONE]
        cluster.events(1.0)
        server.tell({**cluster.status(), "waiting": []})
        page.goto(f"{server.url}/#/tasks")
        page.get_by_role("heading", name="Tasks", exact=True).wait_for()
        page.get_by_role("heading", name="Waiting tasks").wait_for(state="hidden")


def test_clients_and_functions_link_to_their_tasks(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/clients"))
    clients = page.get_by_role("table", name="Clients").locator("tbody tr")
    clients.first.wait_for()
    assert clients.count() == 2
    page.get_by_role("table", name="Clients").get_by_role("link", name="risk-desk").click()
    page.wait_for_function("() => location.hash === '#/tasks?client=risk-desk'")
    page.get_by_text(re.compile("found in the last")).wait_for()
    assert {row.split("\t")[4] for row in texts(page, "[aria-label=Tasks] tbody tr")} == {"risk-desk"}
    page.go_back()
    page.get_by_role("table", name="Functions").get_by_role("link", name="load_market").click()
    page.wait_for_function("() => location.hash === '#/tasks?function=load_market'")
    page.get_by_text(re.compile("found in the last")).wait_for()
    assert {row.split("\t")[2] for row in texts(page, "[aria-label=Tasks] tbody tr")} == {"load_market"}


def test_timeline_bar_describes_and_opens_its_task(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/timeline"))
    page.locator(".functions button").first.wait_for()
    canvas = page.locator("main canvas")
    canvas.wait_for()
    bars = lanes(told.server.monitor.model, time.time() - 200)["node-000", 1]
    bar = max(bars, key=lambda bar: bar.end - bar.start)
    box = canvas.bounding_box()
    assert box is not None
    width = page.evaluate("document.querySelector('.lanes').clientWidth")
    now = told.server.monitor.model.status.at
    x = 200 + ((bar.start + bar.end) / 2 - now + 300) / 300 * (width - 206)
    page.mouse.move(box["x"] + x, box["y"] + 24 + 10)
    assert bar.function in page.locator(".tip").inner_text()
    page.mouse.click(box["x"] + x, box["y"] + 24 + 10)
    page.wait_for_function(f"() => location.hash === '#/task/{bar.task}'")


def test_trace_is_downloaded_for_the_displayed_time(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/timeline"))
    page.locator(".functions button").first.wait_for()
    page.get_by_role("button", name="30 min").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download trace").click()
    assert download.value.url.endswith("/api/trace?seconds=1800")
    assert json.loads(download.value.path().read_text())["traceEvents"]


def shows(page: Page, part: str) -> None:
    """Wait until the timeline shows this time range."""
    page.locator(".part", has_text=re.compile(f"^{re.escape(part)}")).wait_for()


def test_timeline_zooms_at_the_pointer_from_hours_to_microseconds(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/timeline"))
    page.locator(".functions button").first.wait_for()
    bars = lanes(told.server.monitor.model, time.time() - 200)["node-000", 1]
    bar = max(bars, key=lambda bar: bar.end - bar.start)
    box = page.locator("main canvas").bounding_box()
    assert box is not None
    width = page.evaluate("document.querySelector('.lanes').clientWidth")
    x = 200 + ((bar.start + bar.end) / 2 - told.server.monitor.model.now + 300) / 300 * (width - 206)
    page.mouse.move(box["x"] + x, box["y"] + 34)
    shows(page, "The last 5 min 00 s.")
    for _ in range(5):
        for _ in range(6):
            page.mouse.wheel(0, -300)
        page.mouse.move(box["x"] + x + 1, box["y"] + 34)
        page.mouse.move(box["x"] + x, box["y"] + 34)
        assert bar.function in page.locator(".tip").inner_text()  # the bar under the pointer does not move
    shows(page, "50 µs until ")
    for _ in range(80):
        page.mouse.wheel(0, 300)
    shows(page, "The last 1 d 0 h.")
    page.get_by_role("button", name="Reset").click()
    shows(page, "The last 5 min 00 s.")


def test_timeline_is_dragged_and_moved_by_keys(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/#/timeline"))
    page.locator(".functions button").first.wait_for()
    box = page.locator("main canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    with page.expect_request(lambda request: "since=" in request.url):
        page.mouse.move(box["x"] + 900, box["y"] + 60, steps=5)
        page.mouse.up()
    assert page.evaluate("location.hash") == "#/timeline"  # a drag opens no task
    shows(page, "5 min 00 s until ")
    page.get_by_role("application").focus()
    page.keyboard.press("+")
    shows(page, "2 min 30 s until ")
    for _ in range(6):
        page.keyboard.press("Shift+ArrowRight")
    shows(page, "The last 2 min 30 s.")
    page.keyboard.press("0")
    shows(page, "The last 5 min 00 s.")


def test_timeline_counts_omitted_tasks(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=1, tasks_per_second=1, at=time.time())
    server.tell(cluster.status(), {**cluster.events(0.0), "dropped": 9_876})
    windows.open(server.url + "/#/timeline").get_by_text("9,876 tasks ended too quickly to be listed").wait_for()


def test_worker_map_shows_unknown_values(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=1, tasks_per_second=0, at=time.time())
    server.tell(cluster.status(), cluster.events(0.0))
    page = windows.open(server.url + "/#/workers")
    page.get_by_role("heading", name="Unknown with fewer than 4 workers").wait_for()
    assert "worse than the others" not in page.locator("main").inner_text()


def test_menu_and_connection_state_fit_any_width(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    page.locator("main h1").wait_for()
    for width in (390, 700, 740, 960, 1000, 1120, 1160, 1280):
        page.set_viewport_size({"width": width, "height": 700})
        for each in page.locator("header a, header button, header [role=status]").all():
            box = each.bounding_box()
            assert box is None or box["x"] + box["width"] <= width, (width, each.inner_text())


def test_every_page_fits_a_phone(told: Told, windows: Windows) -> None:
    page = windows.open(told.server.url, viewport=PHONE)
    for path in PATHS:
        page.goto(told.url(path))
        page.locator("main h1").wait_for()
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert overflow(page) <= 0, path
        links = page.get_by_role("navigation").get_by_role("link").all()
        assert [link.is_visible() for link in links] == [True] * 9


def test_keys_navigate_the_pages(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    page.locator("main h1").wait_for()
    for key, heading in (
        ("2", "Workers"),
        ("3", "Timeline"),
        ("4", "Tasks"),
        ("5", "Data"),
        ("6", "Failures"),
        ("7", "Clients and functions"),
        ("8", "Network"),
        ("1", "Overview"),
    ):
        page.keyboard.press(key)
        page.locator("main h1", has_text=heading).wait_for()
        assert page.evaluate("document.activeElement.tagName") == "H1"
    page.keyboard.press("4")
    page.locator("main h1", has_text="Tasks").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("15p")  # letters in a field are no shortcuts
    assert page.get_by_label("Search").input_value() == "15p"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Keys").wait_for(state="hidden")


def test_markup_in_names_is_shown_as_text_on_every_page(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(
        workers=2,
        at=time.time() - 20,
        functions=(EVIL,),
        worker_name=EVIL + "{}",
        client_names=(EVIL,),
        host_name=EVIL + "{}",
    )
    evil = Told(server, cluster, seconds=20)
    server.monitor.past = fake_history(cluster.at, name=EVIL)
    server.monitor.explanations[evil.failed.id] = EVIL
    server.monitor.profiles["price_swaption"] |= {"name": EVIL, "frames": [EVIL, "a", "b", "c"]}
    server.monitor.logs[evil.failed.id] = TaskLog(bytes.fromhex(evil.failed.id), EVIL.encode(), EVIL.encode(), 0)
    events = cluster.events(1.0)
    server.monitor.noted = {
        "incidents": [cluster.incident(EVIL, EVIL, EVIL)],
        "decisions": [cluster.decision(1, EVIL, manager=EVIL)],
        "audit": [AuditRow(cluster.at, "refused", EVIL, host=EVIL, text=EVIL)],
    }
    server.tell(cluster.status(), events)
    page = windows.open(server.url)
    for path in (*(path for path in PATHS if "worker/" not in path), f"/#/worker/{1:032x}"):
        page.goto(evil.url(path))
        page.locator("main h1").wait_for()
        page.get_by_text(EVIL).first.wait_for(state="attached")
        assert page.locator("main img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_page_is_small_and_loads_only_from_this_server(told: Told, windows: Windows) -> None:
    page = windows.open(told.url("/"))
    page.locator(".plot canvas").first.wait_for()
    files = page.evaluate(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".filter(each => !each.name.endsWith('/events')).map(each => [each.name, each.encodedBodySize])"
    )
    assert all(url.startswith(told.server.url) for url, _ in files)
    assert {"/app.js", "/style.css", "/vendor/uPlot.js"} <= {url.removeprefix(told.server.url) for url, _ in files}
    assert 100_000 < sum(size for _, size in dict(map(tuple, files)).items()) < MAX_PAGE_BYTES
