"""Measures the web page in Chromium: size, first paint, delay of a task's row, and memory over half an hour.

python benchmarks/page.py [--short]

The delay is measured on a real cluster. For the other figures, a simulated scheduler feeds the real web server.

- weight: bytes of all files of the first page, uncompressed.
- first paint: median with an empty browser cache, as reported by the browser.
- lateness: from a task's end, when its client has the result, to its row in the page, at 1,000 tasks per second with
  default settings. Only rows that the page receives count: an update contains the newest 100 tasks.
- memory: the page's JavaScript heap after a garbage collection, and its number of nodes. Half an hour of reports at
  1,000 tasks per second is simulated in a minute, on five pages.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.tasks import identity
from benchmarks.watched import own, started
from scaler import Client, SchedulerClusterCombo
from tests.browser.conftest import FLAGS, HOW, chromium
from tests.browser.fake_cluster import FUNCTIONS, PROFILE, FakeCluster
from tests.browser.rig import web_server

RATE = 1000
WATCH = """() => {
    window.seen = [];
    const known = new Set();
    new MutationObserver(() => {
        for (const link of document.querySelectorAll("main tbody th a")) {
            const id = link.getAttribute("href").slice(7);
            if (known.has(id)) continue;
            known.add(id);
            window.seen.push([id, Date.now() / 1000]);
        }
    }).observe(document.querySelector("main"), { subtree: true, childList: true, attributes: true });
}"""


def first_view(browser: Browser, url: str, rounds: int) -> tuple[int, float, float]:
    """Return the page's bytes, and the median and longest time to its first paint in milliseconds."""
    paints, weight = [], 0
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(url)
        page.locator(".plot canvas").first.wait_for()
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        weight = page.evaluate(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".reduce((sum, each) => sum + (each.name.endsWith('/events') ? 0 : each.encodedBodySize), 0)"
        )
        context.close()
    return weight, median(paints), max(paints)


def lateness(browser: Browser, seconds: int) -> list[float]:
    """Return the seconds from each task's end to its row in the page."""
    ended_at: dict[str, float] = {}
    stop = threading.Event()

    def feed(client: Client) -> None:
        due = time.monotonic()
        while not stop.is_set():
            due += 0.01
            time.sleep(max(0.0, due - time.monotonic()))
            for number in range(RATE // 100):
                future = client.submit(identity, number)
                future.add_done_callback(lambda done: ended_at.update({done.task_id.hex(): time.time()}))

    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(cluster.get_address()) as client,
        started(own("scaler_ui"), cluster.get_monitor_address(), "--web-port", "0", part="http://") as (_, url),
    ):
        thread = threading.Thread(target=feed, args=(client,))
        thread.start()
        page = browser.new_page()
        try:
            page.goto(f"{url}/#/tasks")
            page.locator("main tbody tr").first.wait_for()
            page.evaluate(WATCH)
            page.wait_for_timeout(1000 * seconds)
            seen: list[tuple[str, float]] = page.evaluate("window.seen")
        finally:
            stop.set()
            thread.join()
            page.close()
    # Excludes rows that the page showed when it opened.
    began = min(at for _, at in seen) + 0.5
    return sorted(at - ended_at[task] for task, at in seen if at > began and task in ended_at)


def memory(browser: Browser, path: str, minutes: int, steps_per_second: float) -> list[tuple[float, int]]:
    """Return a page's heap in megabytes and its nodes, every three simulated minutes."""
    figures = []
    with web_server(interval_seconds=0.05) as server:
        cluster = FakeCluster(workers=200, tasks_per_second=RATE, at=time.time())
        server.monitor.profiles[FUNCTIONS[0]] = {"of": "function", "name": FUNCTIONS[0], **PROFILE}
        server.step(cluster)
        page = browser.new_page()
        page.goto(server.url + path)
        page.locator("main h1").wait_for()
        tool = page.context.new_cdp_session(page)
        for minute in range(minutes):
            began = time.monotonic()
            for step in range(60):
                server.step(cluster)
                page.wait_for_timeout(1000 * max(0.0, began + (step + 1) / steps_per_second - time.monotonic()))
            if minute % 3 == 2:
                tool.send("HeapProfiler.collectGarbage")
                figures.append((heap(tool) / 1e6, nodes(page)))
        page.close()
    return figures


def heap(tool: Any) -> float:
    metrics = tool.send("Runtime.getHeapUsage")
    return float(metrics["usedSize"])


def nodes(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few seconds per figure")
    short = parser.parse_args().short
    executable = chromium()
    if executable is None:
        sys.exit(HOW)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*FLAGS, "--enable-precise-memory-info"])
        with web_server(interval_seconds=0.5) as server:
            cluster = FakeCluster(workers=100, tasks_per_second=RATE, at=time.time() - 60)
            for _ in range(60):
                server.step(cluster)
            weight, typical, longest = first_view(browser, server.url, 3 if short else 11)
        print(f"weight: {weight / 1000:.0f} kB (aim 400)")
        print(f"first paint: {typical:.0f} ms, at most {longest:.0f} (aim 500)")
        late = lateness(browser, 5 if short else 30)
        middle, most = late[len(late) // 2], late[int(len(late) * 0.99)]
        print(f"a task's end to its row: p50 {middle:.2f} s, p99 {most:.2f} s (aim 1), {len(late)} rows seen")
        for path in ("/", "/#/timeline", "/#/tasks", "/#/workers", f"/#/profile?function={FUNCTIONS[0]}"):
            found = memory(browser, path, 3 if short else 30, 30.0)
            story = ", ".join(f"{megabytes:.1f}" for megabytes, _ in found)
            grown = found[-1][0] - found[0][0]
            print(f"heap of {path} every 3 minutes: {story} MB, {grown:+.1f}; {found[0][1]} to {found[-1][1]} nodes")
        browser.close()


if __name__ == "__main__":
    main()
