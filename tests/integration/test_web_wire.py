"""The web server behind a scheduler that says what a test has it say, over real sockets in one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from scaler.cluster.ports import ReservedPorts
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.web.listening import listen, page_of
from scaler.monitor.web.server import WebApp
from scaler.monitor.web.serving import serve
from scaler.net.connection import ListenerEvent, Opened, Resumed
from scaler.net.identity import Identity
from scaler.net.listener import SocketListener
from scaler.protocol.messages import (
    Hello,
    MonitorEvents,
    MonitorStatus,
    Server,
    Welcome,
)
from tests.unit.monitor.web_rig import TASK, Browser, events, status, task, web_config

WAIT_SECONDS = 10.0


class ToldScheduler:
    """The monitor port of a scheduler: sends its last status to every new monitor, and answers no question."""

    def __init__(self, address: str, incarnation: int) -> None:
        self._incarnation = incarnation
        self._peers: list[bytes] = []
        self._listener = SocketListener(
            [address], server_kind=Server.SCHEDULER, admit=self._admit, on_events=self._turn, has_local_listener=True
        )

    def say(self, at: float, *rows: list[Any], **more: Any) -> None:
        for peer in self._peers:
            document = status(at, incarnation=self._incarnation, **more)
            self._listener.send(peer, MonitorStatus(json.dumps(document).encode()))
            self._listener.send(peer, MonitorEvents(json.dumps(events(at, *rows)).encode()))

    def close(self) -> None:
        self._listener.close()

    def _admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome:
        return Welcome(False, self._incarnation, 10.0, 2.0, "")

    def _turn(self, arrived: Sequence[ListenerEvent]) -> None:
        for event in arrived:
            match event:
                case Opened(peer) | Resumed(peer):
                    self._peers.append(peer)
                    self.say(1.0)
                case _:
                    pass


class Watched:
    """The web server at a scheduler's monitor port, and a browser."""

    def __init__(self, monitor: MonitorConnection, client: httpx.AsyncClient) -> None:
        self.monitor = monitor
        self.browser = Browser()
        self._client = client
        self._arrived = asyncio.Event()

    async def get(self, path: str, code: int = 200) -> Any:
        reply = await self._client.get(path)
        assert reply.status_code == code, reply.text
        return reply.json()

    async def until(self, condition: Callable[[Browser], Any]) -> None:
        while not condition(self.browser):
            self._arrived.clear()
            await self._arrived.wait()

    async def browse(self) -> None:
        """Take in events, as a browser does, connecting again when it has to."""
        while True:
            async with self._client.stream("GET", "/events", headers={"Last-Event-ID": self.browser.last_id}) as reply:
                block: list[str] = []
                async for line in reply.aiter_lines():
                    if line:
                        block.append(line)
                        continue
                    self.browser.take_bytes("\n".join(block).encode())
                    self._arrived.set()
                    block = []


@asynccontextmanager
async def watched(address: str) -> AsyncIterator[Watched]:
    app: WebApp | None = None

    def changed() -> None:
        if app is not None:
            app.changed()

    monitor = MonitorConnection(address, changed, timeout_seconds=1.0)
    app = WebApp(monitor, web_config(broadcast_interval_seconds=0.02))
    listening, stop = listen("127.0.0.1", 0), asyncio.Event()
    page = page_of(listening)
    serving = asyncio.ensure_future(serve(app, listening, stop, app.close, None))
    async with httpx.AsyncClient(base_url=page, timeout=WAIT_SECONDS) as client:
        page_open = Watched(monitor, client)
        browsing = asyncio.ensure_future(page_open.browse())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                yield page_open
        finally:
            browsing.cancel()
            with suppress(asyncio.CancelledError):
                await browsing
    stop.set()
    await serving
    monitor.close()


def run(scenario: Callable[[str], Awaitable[None]]) -> None:
    ports = ReservedPorts(1)
    try:
        asyncio.run(scenario(ports.address()))  # type: ignore[arg-type]
    finally:
        ports.release()


def test_a_scheduler_that_is_started_anew_while_browsers_watch_is_another_one() -> None:
    async def scenario(address: str) -> None:
        first = ToldScheduler(address, 1)
        async with watched(address) as page:
            await page.until(lambda browser: browser.connection.get("incarnation") == "1")
            first.say(5.0, task(TASK, "running", ended_at=None), task("e" * 32, ended_at=4.0))
            await page.until(lambda browser: TASK in browser.tasks)
            snapshots = page.browser.kinds.count("snapshot")
            first.close()
            await page.until(lambda browser: not browser.connection["connected"])
            assert (await page.get("/api/status"))["connection"]["trouble"]
            assert (await page.get(f"/api/tasks/{TASK}/explain", 503))["error"]
            second = ToldScheduler(address, 2)
            await page.until(lambda browser: browser.connection["incarnation"] == "2")
            assert page.browser.connection["restarts"] == 1
            assert page.browser.tasks == ["e" * 32]
            assert page.browser.kinds.count("snapshot") == snapshots + 1
            second.say(6.0)
            await page.until(lambda browser: browser.status["at"] == 6.0)
        second.close()

    run(scenario)
