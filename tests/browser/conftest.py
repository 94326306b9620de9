"""A real Chromium, and pages that fail their test on any error inside them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.fake_cluster import FakeCluster
from tests.browser.rig import WebServer, web_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOW = "the pages are tested in Chromium: apt-get install -y chromium, and pip install playwright"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--renderer-process-limit=2",
]
WAIT_MILLISECONDS = 10_000


def chromium() -> str | None:
    """Return the path of Chromium, which CHROMIUM may set, or None if it is missing."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return found or ("/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason=HOW)
    executable = chromium()
    if executable is None:
        pytest.skip(HOW)
    with api.sync_playwright() as playwright:
        # Chromium leaves lock files behind, which the check ignores.
        environment = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("chromium"))}
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=FLAGS,
            env=environment,
            ignore_default_args=["--disable-back-forward-cache"],  # real browsers keep pages after leaving them
        )
        browser.new_context().new_page()  # keeps the window open: most pages are its tabs, at half the cost
        yield browser
        browser.close()


class Windows:
    """Opens windows and collects their errors."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.troubles: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of permitted messages, because a browser reports every refused connection."""

    def open(self, url: str, viewport: dict[str, int] | None = None, **settings: Any) -> Page:
        """Open an address in a tab, or in a separate context and window if there are settings."""
        context = self._browser.new_context(**settings) if settings else self._browser.contexts[0]
        context.set_default_timeout(WAIT_MILLISECONDS)
        page = context.new_page()
        width, height = (viewport or {"width": 1280, "height": 860}).values()
        page.set_viewport_size({"width": width, "height": height})
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(url)
        return page

    def close(self) -> None:
        shared, *own = self._browser.contexts
        for each in (*own, *shared.pages[1:]):
            each.close()
        shared.clear_cookies()
        bad = [each for each in self.troubles if not any(part in each for part in self.expected)]
        assert not bad, f"the browser reports: {bad}"


@pytest.fixture
def windows(browser: Browser) -> Iterator[Windows]:
    windows = Windows(browser)
    yield windows
    windows.close()


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@contextmanager
def under_load(server: WebServer, cluster: FakeCluster, seconds: float = 0.1) -> Iterator[None]:
    """Feed the server with a cluster's steps in real time, each taking this many seconds."""
    ended = threading.Event()
    troubles: list[BaseException] = []

    def feed() -> None:
        try:
            while not ended.wait(seconds):
                server.step(cluster, seconds)
        except BaseException as trouble:  # noqa: BLE001 (raised below, in the test's thread)
            troubles.append(trouble)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not troubles, troubles
