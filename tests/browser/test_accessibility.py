"""axe-core finds no violations on any page, in light and dark mode, on desktop and phone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Windows
from tests.browser.fake_cluster import FakeCluster
from tests.browser.rig import web_server
from tests.browser.test_pages import PATHS, Told

if TYPE_CHECKING:
    from playwright.sync_api import Page

DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Rules whose result depends on the color scheme or the window size.
OF_COLOURS_AND_SIZES = ["color-contrast", "link-in-text-block", "target-size", "scrollable-region-focusable"]
WINDOWS = [("light", DESK, RULES), ("dark", PHONE, OF_COLOURS_AND_SIZES)]


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with web_server() as server:
        yield Told(server, FakeCluster(workers=6, tasks_per_second=0.6, at=time.time() - 110), seconds=110)


def violations(page: Page, rules: list[str]) -> list[str]:
    """Return a line for each element that violates these axe-core rules or groups of rules."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    found = axe.Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response["violations"]
    return [
        f"{page.url.partition('#')[2]} {rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("window", WINDOWS, ids=["light-desk", "dark-phone"])
def test_axe_core_finds_nothing_on_any_page(told: Told, windows: Windows, window: tuple[str, Any, list[str]]) -> None:
    scheme, viewport, rules = window
    page = windows.open(told.url("/"), color_scheme=scheme, viewport=viewport, bypass_csp=True)
    found = []
    for path in PATHS:
        page.goto(told.url(path))
        page.get_by_role("heading", level=1).wait_for()
        found += violations(page, rules)
    assert not found, "\n".join(found)
