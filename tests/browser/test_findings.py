"""Findings on the first page, shown while any exist."""

from __future__ import annotations

from tests.browser.conftest import Windows
from tests.browser.rig import WebServer
from tests.unit.monitor.synthetic_run import Load, Run

EVIL = "<img src=x onerror=window.hacked=1>"
BAD = Run([Load(EVIL, 20, 0.2, running=4)], bad_worker=2, stored_share=0.95)


def test_findings_are_on_the_first_page_with_evidence_and_advice(server: WebServer, windows: Windows) -> None:
    server.call(lambda: BAD.fill(server.monitor.model))
    page = windows.open(server.url + "/", viewport={"width": 390, "height": 800})
    rows = page.get_by_role("region", name="What to change").locator("li")
    rows.first.wait_for()
    first, second = rows.all_inner_texts()
    assert "The object storage uses 973 MiB of 1.0 GiB" in first
    assert "client.clear()" in first
    assert "See docs/memory.md#object-storage-limit" in first
    assert f"Worker grid-2: 100% of its tasks of {EVIL}() fail." in second
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
