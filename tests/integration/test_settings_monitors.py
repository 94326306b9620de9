"""Settings of the web server and of `scaler_top`, by what a browser and a terminal see of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scaler import Client
from scaler.cli import run_command
from tests.integration.settings_rig import Command, command
from tests.integration.test_web_ui import Page

TASKS = 10


@pytest.fixture(scope="module")
def monitor_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a scheduler that has run some tasks serves its monitors."""
    directory = tmp_path_factory.mktemp("watched")
    with command("scaler_scheduler", f"ipc://{directory}/s", "-sri", "0.1", directory=directory) as scheduler:
        places = scheduler.addresses()
        with (
            command("scaler_cluster", places["scheduler"], "-n", "1", directory=directory),
            Client(places["scheduler"]) as client,
        ):
            assert client.map(abs, range(TASKS), chunk_size=1) == list(range(TASKS))
            yield places["monitor"]


@contextmanager
def web_ui(address: str, directory: Path, *flags: str) -> Iterator[tuple[Command, Page]]:
    with command("scaler_ui", address, "--web-port", "0", *flags, directory=directory) as running:
        page = Page(running.addresses()["web page"])
        try:
            yield running, page
        finally:
            page.close()


def test_a_page_lists_as_many_of_the_last_tasks_as_it_was_told_to(monitor_address: str, tmp_path: Path) -> None:
    with web_ui(monitor_address, tmp_path, "--task-log-max-size", "3") as (_, page):
        page.until("/api/tasks", lambda found: len(found["tasks"]) == TASKS)
        with page.events() as read_until:
            assert len(read_until(lambda browser: browser.kinds).tasks) == 3


def test_browsers_are_told_no_more_often_than_the_interval(monitor_address: str, tmp_path: Path) -> None:
    with web_ui(monitor_address, tmp_path, "--broadcast-interval-seconds", "1.5") as (_, page):
        began = time.monotonic()
        with page.events() as read_until:
            read_until(lambda browser: browser.kinds[1:].count("delta") >= 2)
        assert time.monotonic() - began > 1.4, "an interval lies between two differences"


def test_browsers_may_know_the_server_by_the_names_it_was_told(tmp_path: Path) -> None:
    with web_ui(f"ipc://{tmp_path}/nobody", tmp_path, "--allowed-hosts", "proxy.example", "other.example") as (_, page):
        answers = {
            host: httpx.get(f"{page.address}/api/status", headers={"Host": host}).status_code
            for host in ("proxy.example", "other.example", "third.example")
        }
    assert answers == {"proxy.example": 401, "other.example": 401, "third.example": 403}, "the first two may log in"


def test_the_older_address_of_the_page_is_its_host_and_port(tmp_path: Path) -> None:
    flags = (f"ipc://{tmp_path}/nobody", "--gui-address", "localhost:0")
    with command("scaler_gui", *flags, directory=tmp_path) as running:
        assert running.addresses()["web page"].startswith("http://127.0.0.1:")
        assert "web_port" not in running.errors()


def test_the_web_server_writes_its_log_where_it_was_told_in_the_format_and_from_the_level_on(tmp_path: Path) -> None:
    files = {level: tmp_path / level for level in ("DEBUG", "CRITICAL")}
    for level, file in files.items():
        flags = ("-ll", level, "--logging-format", "json", "-lp", str(file))
        with web_ui(f"ipc://{tmp_path}/nobody", tmp_path, *flags) as (running, _):
            assert running.output() == ""
    assert files["CRITICAL"].read_text() == ""
    entries = [json.loads(line) for line in files["DEBUG"].read_text().splitlines()]
    assert any(entry["message"].startswith("ready") for entry in entries)


def test_the_web_server_writes_its_log_as_the_file_of_a_logging_configuration_says(tmp_path: Path) -> None:
    log, config = tmp_path / "log", tmp_path / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(log), "formatter": "mine"}
    told = {
        "version": 1,
        "formatters": {"mine": {"format": "mine %(name)s %(message)s"}},
        "handlers": {"file": handler},
        "root": {"level": "DEBUG", "handlers": ["file"]},
    }
    config.write_text(json.dumps(told))
    with web_ui(f"ipc://{tmp_path}/nobody", tmp_path, "-lcf", str(config)):
        pass
    assert "mine scaler.component ready" in log.read_text()


@pytest.mark.parametrize("flag", ["-t", "--timeout-seconds", "--timeout"])
def test_the_terminal_monitor_waits_for_its_timeout_and_no_longer(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"ipc://{tmp_path}/nobody"
    began = time.monotonic()
    assert run_command("scaler_top", [address, "--once", flag, "0.2"]) == 1
    assert 0.2 <= time.monotonic() - began < 5, "less than the default"
    assert f"no scheduler answers at {address}" in capsys.readouterr().err
