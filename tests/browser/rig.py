"""The real web server over a monitor fed by the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast
from unittest.mock import patch

from scaler.errors import UnreachableError
from scaler.extensions.history.minutes import Row
from scaler.extensions.logs.rows import LogRow
from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.history_rows import ClusterHistory
from scaler.monitor.messages import TaskLog
from scaler.monitor.model import Model
from scaler.monitor.web import server
from scaler.monitor.web.page import listen, page_of
from scaler.monitor.web.server import WebApp
from scaler.monitor.web.serving import serve
from tests.browser.fake_cluster import FakeCluster
from tests.browser.fake_history import answered
from tests.unit.monitor.web_rig import web_config

T = TypeVar("T")

START_SECONDS = 10.0


class FakeMonitor:
    """Replaces a connection to a scheduler."""

    def __init__(self, address: str = "tcp://127.0.0.1:8518") -> None:
        self.address = address
        self.model = Model()
        self.connected = True
        self.explanations: dict[str, str] = {}
        self.logs: dict[str, TaskLog] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        """Documents by function or task."""
        self.lines: list[LogRow] = []
        """Worker logs, newest first."""
        self.noted: dict[str, list[Any]] = {"audit": [], "decisions": [], "incidents": []}
        self.waiting: list[TaskRow] = []
        """Tasks that only the scheduler has."""
        self.past: list[Row] = []
        """Records of the history."""

    @property
    def last_error(self) -> str:
        return "" if self.connected else f"no scheduler answers at {self.address} (connection refused)"

    async def explain(self, task_id: str) -> str:
        self._check()
        return self.explanations.get(task_id, f"no task {task_id} is known: it never was, or ended long ago")

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        self._check()
        if not task_id and not function:
            known = [each for each in self.profiles.values() if each["of"] == "function"]
            return {"of": "", "name": "", "functions": [[each["name"], 40, 4_000_000, each["name"]] for each in known]}
        return self.profiles.get(task_id or function, {"of": "", "name": function})

    async def rows(self, name: str, search: str = "", most: int | None = None) -> list[Any]:
        self._check()
        if name in self.noted:
            return self.noted[name][:most]
        return [row for row in self.lines if search in ("", row.worker, row.worker_id)][:most]

    async def find(self, search: str) -> list[TaskRow]:
        self._check()
        return [row for row in self.waiting if row.id.startswith(search) or search in row.function]

    async def log(self, task_id: str) -> TaskLog:
        self._check()
        return self.logs.get(task_id, TaskLog(bytes.fromhex(task_id), b"", b"", 0))

    async def history(self, since: float, until: float) -> ClusterHistory:
        self._check()
        return answered(self.past, since, until)

    def _check(self) -> None:
        if not self.connected:
            raise UnreachableError(self.last_error)


class WebServer:
    """A web server in a separate thread, which can be restarted at its port."""

    def __init__(
        self,
        monitor: FakeMonitor | None = None,
        interval_seconds: float = 0.1,
        token: str | None = None,
        web_host: str = "127.0.0.1",
    ) -> None:
        """web_host: beyond loopback, the page asks for the token, although it also listens on loopback here."""
        self.monitor = monitor or FakeMonitor()
        self._settings, self._interval_seconds = web_config(web_host=web_host), interval_seconds
        self._token = token
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        listening = listen("127.0.0.1", self._port)
        self._port = listening.getsockname()[1]
        self.url = page_of(listening)
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening, started), daemon=True)
        self._thread.start()
        assert started.wait(START_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive()

    def tell(self, status: dict[str, Any] | None = None, *events: dict[str, Any]) -> None:
        """Feed this message to the monitor, with its consequences."""

        def hear() -> None:
            if status is not None:
                self.monitor.model.apply_status(status)
            for each in events:
                self.monitor.model.apply_events(each)
            self._app.changed()

        self.call(hear)

    def step(self, cluster: FakeCluster, seconds: float = 1.0) -> None:
        """Let time pass in a cluster, and report it."""
        events = cluster.events(seconds)
        self.tell(cluster.status(), events)

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(START_SECONDS)

    def streams(self) -> int:
        """Return the number of open event streams."""
        return self.call(lambda: len(self._app.broadcast.readers))

    def connect(self, connected: bool) -> None:
        """Disconnect or reconnect the scheduler."""

        def change() -> None:
            self.monitor.connected = connected
            self._app.changed()

        self.call(change)

    def _serve(self, listening: socket.socket, started: threading.Event) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            with patch.object(server, "BROADCAST_SECONDS", self._interval_seconds):
                self._app = WebApp(cast("MonitorConnection", self.monitor), self._settings, self._token)
            self._stop = asyncio.Event()
            started.set()
            await serve(self._app, listening, self._stop, self._app.close, None)

        with contextlib.closing(listening):
            asyncio.run(main())


@contextlib.contextmanager
def web_server(interval_seconds: float = 0.1) -> Iterator[WebServer]:
    server = WebServer(interval_seconds=interval_seconds)
    try:
        yield server
    finally:
        server.stop()
