"""The login page, and the page of a cluster that everyone may access."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Windows
from tests.browser.fake_cluster import FakeCluster
from tests.browser.rig import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "a-token-of-this-test-1"
PHONE = {"width": 390, "height": 760}


@pytest.fixture
def closed() -> Iterator[WebServer]:
    """Yield a server that requires a token."""
    server = WebServer(token=TOKEN, web_host="0.0.0.0")
    server.step(FakeCluster(workers=3, tasks_per_second=5, at=time.time()))
    yield server
    server.stop()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_form_leads_to_the_page_and_explains_errors(closed: WebServer, windows: Windows) -> None:
    windows.expected = ("401",)
    page = windows.open(closed.url, viewport=PHONE)
    assert page.evaluate("document.activeElement.id") == "token"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    log_in(page, "wrong")
    page.get_by_role("alert").get_by_text("This token is wrong").wait_for()
    log_in(page, TOKEN)
    page.locator(".tile-done").wait_for()
    assert page.url == f"{closed.url}/"
    page.reload()
    page.locator(".tile-done").wait_for()


def test_login_works_without_scripts(closed: WebServer, windows: Windows) -> None:
    windows.expected = ("401",)
    page = windows.open(closed.url, java_script_enabled=False)
    log_in(page, TOKEN)
    page.get_by_role("link", name="Metrics", exact=True).wait_for()


def test_terminal_link_logs_in_and_leaves_no_token_behind(closed: WebServer, windows: Windows) -> None:
    page = windows.open(f"{closed.url}/?token={TOKEN}")
    page.locator(".tile-done").wait_for()
    assert page.url == f"{closed.url}/"
    assert page.evaluate("document.cookie") == "", "no script reads it"
    assert TOKEN not in page.evaluate("document.referrer + JSON.stringify(history.state) + localStorage.length")


def test_expired_session_redirects_the_page_to_the_login(closed: WebServer, windows: Windows) -> None:
    windows.expected = ("401", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    page = windows.open(f"{closed.url}/?token={TOKEN}")
    page.locator(".tile-done").wait_for()
    page.context.clear_cookies()
    closed.stop()
    closed.start()
    page.get_by_label("Token").wait_for()


def test_every_page_warns_about_missing_authentication(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=3, tasks_per_second=5, at=time.time())
    status = cluster.status()
    server.tell({**status, "scheduler": {**status["scheduler"], "insecure_no_auth": True}})
    page = windows.open(f"{server.url}/#/workers")
    page.locator("#banner").get_by_text("any process that can connect can run code").wait_for()
    server.tell(cluster.status())
    page.locator("#banner").wait_for(state="hidden")


def test_every_page_shows_a_full_disk_and_how_to_free_it(server: WebServer, windows: Windows) -> None:
    cluster = FakeCluster(workers=3, tasks_per_second=5, at=time.time())
    status = cluster.status()
    text = "state_directory: cannot write to /state/scheduler: No space left on device; free <b>64 MiB</b> there"
    server.tell({**status, "scheduler": {**status["scheduler"], "disk_failure": text, "insecure_no_auth": True}})
    page = windows.open(f"{server.url}/#/workers")
    page.locator("#banner").get_by_text(text).wait_for()
    page.locator("#banner").get_by_text("any process that can connect can run code").wait_for()
    server.tell({**status, "storage": {**status["storage"], "disk_failure": text}})
    page.locator("#banner").get_by_text("every process").wait_for(state="hidden")
    page.locator("#banner").get_by_text(text).wait_for()
    server.tell(cluster.status())
    page.locator("#banner").wait_for(state="hidden")
