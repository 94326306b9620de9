"""The page with a real scheduler, workers, and tasks, while parts of the cluster are killed."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cluster.supervisor import ReservedPorts
from tests.browser.conftest import Windows
from tests.integration.settings_rig import command

FAST = ("-sri", "0.1")


def test_notices_a_scheduler_that_restarts(ports: ReservedPorts, windows: Windows, tmp_path: Path) -> None:
    windows.expected = ("ERR_",)  # the server is closed before the window
    with command("ui", ports.address(2), "--port", "0", directory=tmp_path) as ui:
        with command("scheduler", ports.address(), *FAST, directory=tmp_path):
            page = windows.open(ui.addresses()["web page"])
            page.locator("#state", has_text="Live").wait_for()
        page.locator("#state", has_text=re.compile(r"No scheduler, last update \d+ s ago")).wait_for()
        page.locator("#banner", has_text="no scheduler answers").wait_for()
        with command("scheduler", ports.address(), *FAST, directory=tmp_path) as scheduler:
            page.locator("#state", has_text="Live").wait_for()
            scheduler.process.send_signal(signal.SIGSTOP)
            try:
                page.locator("#state", has_text=re.compile("No updates for [2-4] s")).wait_for()
            finally:
                scheduler.process.send_signal(signal.SIGCONT)
            page.locator("#state", has_text="Live").wait_for()


def fail(text: str) -> None:
    print(text)
    raise ValueError(text)


def test_names_cannot_reverse_or_hide_text_in_a_real_browser(windows: Windows) -> None:
    windows.expected = ("ERR_",)  # the server is closed before the window
    evil = "<img src=x onerror=window.hacked=1>\u202etxt.exe\u2066\u200b\x1b[2J"
    fail.__qualname__ = fail.__name__ = evil
    with SchedulerClusterCombo(n_workers=1, web_port=0) as combo, Client(combo.get_address(), name=evil) as client:
        future = client.submit(fail, evil)
        with pytest.raises(ValueError, match="txt"):
            future.result()
        page = windows.open(combo.get_page())
        for path in ("/#/tasks", f"/#/task/{future.task_id.hex()}", "/#/failures", "/#/timeline", "/#/clients"):
            page.goto(f"{combo.get_page()}{path}")
            page.locator("main h1").wait_for()
            page.get_by_text("\\u202etxt.exe\\u2066\\u200b\\x1b[2J").first.wait_for(state="attached")
            assert not set("\u202e\u2066\u200b\x1b") & set(page.locator("html").inner_text() + page.title())
            assert page.locator("main img").count() == 0
        assert page.evaluate("window.hacked") is None
