"""The web server over real sockets, with a real scheduler, workers, and tasks."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scaler.cluster.supervisor import ReservedPorts
from tests.integration.settings_rig import Command, command
from tests.unit.monitor.web_rig import Browser
from tests.waiting import until, within

WAIT_SECONDS = 10.0


class Page:
    """A browser's requests to the server at an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = httpx.Client(base_url=address, timeout=WAIT_SECONDS)

    def json(self, path: str) -> Any:
        reply = self._client.get(path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def get(self, path: str) -> httpx.Response:
        return self._client.get(path)

    def until(self, path: str, condition: Callable[[Any], Any]) -> Any:
        """Repeat a request until the answer is as expected."""

        def found() -> list[Any]:
            answer = self.json(path)
            return [answer] if condition(answer) else []

        return until(found, WAIT_SECONDS)[0]

    @contextmanager
    def events(self) -> Iterator[Callable[[Callable[[Browser], Any]], Browser]]:
        """Yield a reader of events until a condition is true."""
        browser = Browser()
        with self._client.stream("GET", "/events") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = reply.iter_lines()

            def read_until(condition: Callable[[Browser], Any]) -> Browser:
                deadline = time.monotonic() + WAIT_SECONDS
                block: list[str] = []
                while not condition(browser):
                    assert time.monotonic() < deadline, browser.connection
                    line = next(lines)
                    if line:
                        block.append(line)
                        continue
                    browser.take_bytes("\n".join(block).encode())
                    block = []
                return browser

            yield read_until

    def close(self) -> None:
        self._client.close()


@contextmanager
def scheduler(ports: ReservedPorts, directory: Path) -> Iterator[Command]:
    with command("scheduler", ports.address(), directory=directory) as running:
        running.addresses()
        yield running


@contextmanager
def web_ui(ports: ReservedPorts, directory: Path, *more: str) -> Iterator[Page]:
    flags = ("--port", "0", *more)
    with command("ui", ports.address(2), *flags, directory=directory) as running:
        page = Page(running.addresses()["web page"])
        try:
            yield page
        finally:
            page.close()


def work(number: int) -> int:
    print(f"working on {number}")
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def test_section_in_a_file_starts_it_and_prints_its_address(ports: ReservedPorts, tmp_path: Path) -> None:
    file = tmp_path / "stack.toml"
    file.write_text(f'[scheduler]\nbind_address = "{ports.address()}"\n[gui]\nport = 0\n')
    with command("scaler", str(file), directory=tmp_path) as launcher:
        launcher.addresses()
        until(lambda: "web page http" in launcher.output())
        line = next(line for line in launcher.output().splitlines() if "connect with" in line)
        page = Page(line.partition("web page ")[2])
        page.until("/api/status", lambda found: found["connection"]["connected"])
        with page.events() as read_until:
            read_until(lambda browser: browser.kinds)
            assert launcher.stop() == 0
        page.close()


def test_taken_port_is_reported_and_the_page_uses_a_later_one(ports: ReservedPorts, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command("ui", ports.address(2), "--port", str(port), directory=tmp_path) as running:
            address = running.addresses()["web page"]
            assert int(address.rpartition(":")[2]) != port
            assert httpx.get(f"{address}/api/status").status_code == 200
            assert within(
                WAIT_SECONDS, lambda: f"port {port} is in use, so the web page is at {address}" in running.output()
            )


def test_public_page_requires_a_token_and_warns_without_encryption(
    ports: ReservedPorts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with command("ui", ports.address(2), "--web-host", "0.0.0.0", "--port", "0", directory=tmp_path) as running:
        address = running.addresses()["web page"]
        assert address.startswith("http://127.0.0.1:")
        assert within(WAIT_SECONDS, lambda: "the page at 0.0.0.0 is not encrypted" in running.output())
        assert httpx.get(f"{address}/api/status").status_code == 401
        file = tmp_path / "scaler" / "web-token"
        assert f"the web page asks for the token in {file}" in running.output()
        token = file.read_text().strip()
        assert httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        assert token not in running.output() + running.errors()
        assert token not in Path(f"/proc/{running.pid}/environ").read_text()


def test_terminal_shows_a_login_link(ports: ReservedPorts, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test-1\n")
    token.chmod(0o600)
    flags = ("--web-host", "0.0.0.0", "--web-port", "0", "--web-token-file", str(token))
    shown = ""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "scaler.cli", "ui", ports.address(2), *flags])
    try:
        while "/?token=a-token-of-this-test-1\r\n" not in shown:
            assert select.select([terminal], [], [], WAIT_SECONDS)[0], shown
            shown += os.read(terminal, 4096).decode()
        link = re.search(r"web-ui: log in with (\S+)", shown)
        assert link is not None
        with httpx.Client() as browser:
            assert browser.get(link[1]).status_code == 200
            assert browser.get(link[1].partition("?")[0] + "api/status").status_code == 200
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(terminal)


# -- a server in this process
