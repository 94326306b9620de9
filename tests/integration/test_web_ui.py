"""The web server over real sockets, beside a real scheduler with workers and work."""

from __future__ import annotations

import asyncio
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

from scaler.cluster.ports import ReservedPorts
from scaler.config.monitors import WebUiConfig
from scaler.monitor.model import Model
from scaler.monitor.web import stream as stream_module
from scaler.monitor.web.listening import listen, page_of
from scaler.monitor.web.server import WebApp
from scaler.monitor.web.serving import serve
from tests.integration.settings_rig import Command, command
from tests.unit.monitor.web_rig import Browser, PreparedMonitor, status, web_config, worker
from tests.waiting import soon, until, within

WAIT_SECONDS = 10.0
FAST = ("-sri", "0.1")


class Page:
    """What a browser does with the server at an address."""

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
        """Ask until the answer is as it should be."""

        def found() -> list[Any]:
            answer = self.json(path)
            return [answer] if condition(answer) else []

        return until(found, WAIT_SECONDS)[0]

    @contextmanager
    def events(self) -> Iterator[Callable[[Callable[[Browser], Any]], Browser]]:
        """Yield what reads events until a condition is true."""
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
    with command("scheduler", ports.address(), *FAST, directory=directory) as running:
        running.addresses()
        yield running


@contextmanager
def web_ui(ports: ReservedPorts, directory: Path, *more: str) -> Iterator[Page]:
    flags = ("--port", "0", "--broadcast-interval-seconds", "0.05", *more)
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


def test_a_file_with_a_section_for_it_starts_it_and_says_where(ports: ReservedPorts, tmp_path: Path) -> None:
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


def test_a_taken_port_is_named_and_the_page_is_at_a_port_after_it(ports: ReservedPorts, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command("ui", ports.address(2), "--port", str(port), directory=tmp_path) as running:
            address = running.addresses()["web page"]
            assert int(address.rpartition(":")[2]) != port
            assert httpx.get(f"{address}/api/status").status_code == 200
            assert within(
                WAIT_SECONDS,
                lambda: f"port {port} is in use, so the web page is at {address}" in running.output(),
            )


def test_a_page_open_to_others_asks_for_a_token_and_warns_where_it_is_not_encrypted(
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


def test_a_terminal_shows_a_link_that_logs_in(ports: ReservedPorts, tmp_path: Path) -> None:
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


class Served:
    """The application with a prepared model, at a socket."""

    def __init__(self, settings: WebUiConfig) -> None:
        self.monitor = PreparedMonitor(Model())
        self.app = WebApp(self.monitor, settings)
        self.stop = asyncio.Event()
        listening = listen("127.0.0.1", 0)
        self.port: int = listening.getsockname()[1]
        self.page = page_of(listening)
        self.serving = asyncio.ensure_future(serve(self.app, listening, self.stop, self.app.close, None))

    async def close(self) -> None:
        self.stop.set()
        await self.serving


def test_a_browser_that_freezes_is_cut_off_and_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_LOG_EVENTS", 3)

    async def scenario() -> None:
        served = Served(web_config(broadcast_interval_seconds=0.01))
        frozen = socket.socket()
        frozen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frozen.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(frozen, ("127.0.0.1", served.port))
        await loop.sock_sendall(frozen, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with httpx.AsyncClient(base_url=served.page, timeout=WAIT_SECONDS) as client:
            at = 0.0
            await soon(lambda: served.app.broadcast.readers)
            while served.app.broadcast.readers > 0:
                at += 1.0
                large = [worker(f"w{number}", capabilities=f"{at}" * 300) for number in range(500)]
                served.monitor.model.apply_status(status(at, workers=large))
                served.app.changed()
                await asyncio.sleep(0.02)  # the pace of reports
            assert (await client.get("/api/status")).status_code == 200
        frozen.close()
        await served.close()

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def test_a_thousand_tasks_a_second_and_five_hundred_workers_are_small_events() -> None:
    async def scenario() -> list[int]:
        served = Served(web_config(broadcast_interval_seconds=0.01))
        sizes: list[int] = []
        served.monitor.model.apply_status(status(1.0, workers=[worker(f"w{n}") for n in range(500)]))
        async with (
            httpx.AsyncClient(base_url=served.page, timeout=WAIT_SECONDS) as client,
            client.stream("GET", "/events") as reply,
        ):
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    sizes.append(len(line))
                    if len(sizes) == 5:
                        break
                    at = 1.0 + len(sizes)
                    moved = [worker(f"w{n}", free=len(sizes), assigned=n) for n in range(500)]
                    served.monitor.model.apply_status(status(at, workers=moved))
                    rows = [[f"{n:032x}", "done", "work", "c", "w1", 1, at, 1000] for n in range(1000)]
                    columns = ["id", "state", "function", "client", "worker", "attempt", "ended_at", "duration_us"]
                    served.monitor.model.apply_events(
                        {"at": at, "tasks": {"columns": columns, "rows": rows}, "dropped": 0}
                    )
                    served.app.changed()
        await served.close()
        return sizes

    snapshot, *deltas = asyncio.run(scenario())
    assert snapshot < 512 * 1024
    assert max(deltas) < 128 * 1024
