"""The web server's application without a socket, a monitor without a scheduler, and a browser's view of events."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scaler.config.monitors import WebUiConfig
from scaler.errors import UnreachableError
from scaler.extensions.audit.rows import AuditRow
from scaler.extensions.logs.rows import LogRow
from scaler.extensions.resources import LimitRow
from scaler.extensions.sharing.rows import ShareRow
from scaler.ids import task_id_of
from scaler.monitor.cluster_rows import DecisionRow, FailureRow, IncidentRow, TaskRow
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.data_rows import ObjectRow
from scaler.monitor.history_rows import ClusterHistory, EventRow, FunctionTimesRow, PointRow
from scaler.monitor.messages import TaskLog
from scaler.monitor.model import Model
from scaler.monitor.rows import KEYS
from scaler.monitor.web.security import SAME_USER
from scaler.monitor.web.server import WebApp

COLUMNS = [
    "id", "state", "function", "client", "worker", "attempt",
    "ended_at", "duration_us", "cpu_us", "peak_bytes", "text", "traceback", "lane", "started_at",
]  # fmt: skip
TASK = "0123456789abcdef" * 2
NASTY = "<img onerror=alert(1)> \ud800 \x1b[31m"
"""Markup, half of a surrogate pair, and a control sequence."""

R = TypeVar("R")


def worker(name: str, **more: Any) -> dict[str, Any]:
    processor = {"pid": 7, "cpu_percent": 12.5, "running": TASK, "running_seconds": 2.0, "function": "work"}
    row = {"id": f"{name}-id", "name": name, "manager": "here", "slots": 2, "agent_cpu_percent": 1.0}
    return {**row, "processors": [processor], **more}


def status(at: float, *, incarnation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "at": at,
        "incarnation": incarnation,
        "scheduler": {
            "cpu_percent": 50.0, "rss_bytes": 1000, "uptime_seconds": 10.0, "step_seconds_max": 0.25,
            "insecure_no_auth": True, "journal_bytes": 2048, "disk_failure": "no space",
        },
        "storage": {
            "address": "tcp://h:1", "objects": 3, "bytes": 4096, "limit_bytes": 8192,
            "spilled_bytes": 512, "state_bytes": 256, "disk_failure": "",
        },
        "tasks": {"waiting": 1, "ready": 2, "assigned": 5, "running": 3, "ended": {"done": 7, "exception": 2}},
        "messages": {"sent": {"Submit": 5}, "received": {"Finished": 6}},
        "totals": {
            "workers": 1, "slots": 2, "clients": 1, "managers": 1, "functions": 1, "stores": 3, "unreachable": 1,
        },
        "workers": [worker("w")],
        "clients": [{"id": "c1", "name": "alice", "tasks": 4}],
        "managers": [{"id": "here", "kind": "native", "desired": 2, "running": 1, "pending": 1, "reason": "because"}],
        "stores": [
            {"id": "0", "host": "object storage", "objects": 3, "bytes": 4096, "limit_bytes": 8192},
            {"id": "1", "host": "alpha", "bytes": 1000, "limit_bytes": 4000, "hits": 3, "received_bytes": 70},
            {"id": "2", "host": "alpha", "bytes": 1, "hits": 1, "misses": 2, "received_bytes": 5, "sent_bytes": 9},
        ],
        "objects": [{"id": "ab" * 16, "size_bytes": 2**20, "function": "work", "task": TASK, "holders": "alpha"}],
        "pairs": [
            {"id": "0-1", "source": "object storage", "target": "alpha", "bytes": 70},
            {"id": "1-2", "source": "alpha", "target": "alpha", "bytes": 5, "unreachable": True},
        ],
        "functions": [{"name": "work", "queued": 1, "running": 3, "ended": 9, "failed": 2, "seconds_total": 4.5,
                       "p50_seconds": 0.25, "p95_seconds": 1.5, "max_seconds": 2.0}],
        **more,
    }  # fmt: skip


def task(name: str, state: str = "done", *, ended_at: float | None = 9.5, **more: Any) -> list[Any]:
    row = {"id": name, "state": state, "function": "work", "client": "alice", "worker": "w", "attempt": 1}
    row |= {"ended_at": ended_at, "duration_us": 500_000, "text": "", "traceback": "", **more}
    row |= {"lane": 1, "started_at": (ended_at or 10.0) - 0.5}
    return [row.get(column, 0) for column in COLUMNS]


def events(at: float, *tasks: list[Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "at": at, "dropped": 0, "tasks": {"columns": COLUMNS, "rows": list(tasks)}, **more}


def filled_model() -> Model:
    model = Model()
    model.apply_status(status(10.0))
    model.apply_events(events(10.5, task(TASK), task("f" * 32, "exception", text=NASTY, traceback="Traceback ...")))
    return model


class PreparedMonitor(MonitorConnection):
    """A monitor with a given model, and with the explanation and log of one task."""

    connected = True
    last_error = ""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model or Model()
        self.address = "tcp://127.0.0.1:8518"
        self.found: list[TaskRow] = []
        """The scheduler's result for any search."""

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        stacks = {"samples": 2, "frames": ["main", "hot"], "stacks": [[3000, 0, 1], [1000, 0]]}
        if task_id or function:
            return {"of": "task" if task_id else "function", "name": function or "work", **stacks}
        return {"of": "", "name": "", "functions": [["work", 2, 4000, "hot"]]}

    async def history(self, since: float, until: float) -> ClusterHistory:
        points = (PointRow(since, 60.0, 5, 1), PointRow(until - 60.0, 60.0, 7))
        happened = EventRow(since, "lost", "worker", NASTY)
        failure = FailureRow("", 1, NASTY, "work", since, since)
        return ClusterHistory(
            since, until, 1.0, 0, points, (happened,), (failure,), (FunctionTimesRow(since, 300.0, "work", 6),)
        )

    async def find(self, search: str) -> list[TaskRow]:
        return self.found

    async def objects(self, most: int) -> list[ObjectRow]:
        return [*self.model.status.objects[:most]]

    async def rows(self, name: str, search: str = "", most: int | None = None) -> list[Any]:
        if name == "decisions":
            return [DecisionRow(10.1, "here", 2, 0, NASTY)]
        if name == "incidents":
            return [IncidentRow(10.2, "lost", "w", NASTY)]
        if name == "audit":
            return [AuditRow(9.0, "refused", "bob", text=NASTY)]
        if name == "shares":
            return [ShareRow("desk", NASTY, "", 2.0, 3, 2.5, 3, 9, 7.25, 60.5, 1.25)]
        if name == "limits":
            return [LimitRow("db", 10.0, 10.0, 3, NASTY)]
        rows = [LogRow(2, 9.0, "WARNING", "w", "w-id", NASTY, "agent"), LogRow(1, 8.0, "ERROR", "v", "v-id", "late")]
        return [row for row in rows if search in ("", row.worker)][:most]

    async def explain(self, task_id: str) -> str:
        self._check(task_id)
        return f"it waits for {NASTY}"

    async def log(self, task_id: str) -> TaskLog:
        self._check(task_id)
        return TaskLog(task_id_of(task_id), b"a\tb\r\n\x1b[31mred\xff\n", b"", 5)

    def _check(self, task_id: str) -> None:
        if task_id != TASK:
            raise UnreachableError(f"{self.address} did not answer within 5 s")


def web_config(**values: Any) -> WebUiConfig:
    return WebUiConfig(monitor_address="tcp://127.0.0.1:1", **values)


def run(scenario: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine; fail if it takes long."""

    async def limited() -> R:
        async with asyncio.timeout(10):
            return await scenario

    return asyncio.run(limited())


class Jumping(selectors.SelectSelector):
    """Waits no time: the clock of its loop jumps to the next timer instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left to wait for"
        found = super().select(0)
        self.now += 0.0 if found else timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets and threads, whose time passes only while all tasks wait."""

    def __init__(self) -> None:
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_jumping(scenario: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in time that jumps from timer to timer; fail after a day."""

    async def limited() -> R:
        async with asyncio.timeout(86_400):
            return await scenario

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(limited())


def of_connection(app: ASGIApp, *, is_same_user: bool = True) -> ASGIApp:
    """Return the application as seen through a connection."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {SAME_USER: lambda: is_same_user}}, receive, send)

    return asked


def ask(
    path: str, monitor: PreparedMonitor | None = None, *, method: str = "GET", headers: Mapping[str, str] | None = None,
    settings: WebUiConfig | None = None, is_same_user: bool = True,
) -> httpx.Response:  # fmt: skip
    """Return the application's answer to one request."""

    async def scenario() -> httpx.Response:
        app = WebApp(monitor or PreparedMonitor(filled_model()), settings or web_config())
        transport = httpx.ASGITransport(of_connection(app, is_same_user=is_same_user))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:50001") as client:
            return await client.request(method, path, headers=headers)

    return run(scenario())


class Browser:
    """The state of a page, from the events that it has received."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, dict[str, Any]]] = {}
        self.status: dict[str, Any] = {}
        self.connection: dict[str, Any] = {}
        self.tasks: list[str] = []
        self.left_out = 0
        self.points: list[float] = []
        self.kinds: list[str] = []

    def take(self, kind: str, told: dict[str, Any]) -> None:
        self.kinds.append(kind)
        self.connection = told["connection"]
        self.status = told.get("status", self.status)
        if kind == "snapshot":
            self.tables = {name: {row[key]: dict(row) for row in told[name]} for name, key in KEYS.items()}
            self.tasks = [row["id"] for row in reversed(told["tasks"])]
            self.points = told["series"]["at"]
            return
        for name, key in KEYS.items():
            changes = told.get(name, {"changed": [], "gone": []})
            for row in changes["changed"]:
                self.tables[name].setdefault(row[key], {}).update(row)
            for gone in changes["gone"]:
                del self.tables[name][gone]
        self.tasks += [row["id"] for row in told.get("tasks", {}).get("rows", [])]
        self.left_out += told.get("tasks", {}).get("left_out", 0)
        self.points = self.points + told.get("series", {}).get("at", [])

    def take_bytes(self, event: bytes) -> None:
        """Process one event of a stream, or the line with the reconnection delay."""
        fields = dict(line.split(": ", 1) for line in event.decode().strip().splitlines())
        if "data" in fields:
            self.take(fields["event"], json.loads(fields["data"]))


class Stream:
    """One browser at `/events`, without a socket. `frozen` ones do not read."""

    def __init__(self, app: ASGIApp, *, method: str = "GET", frozen: bool = False) -> None:
        headers = [(b"host", b"localhost:50001")]
        self._app = app
        self._scope = {
            "type": "http", "method": method, "path": "/events", "raw_path": b"/events", "root_path": "",
            "query_string": b"", "headers": headers, "server": ("127.0.0.1", 50001), "scheme": "http",
            "http_version": "1.1", "state": {"abort": self._abort, SAME_USER: lambda: True},
        }  # fmt: skip
        self._gone = asyncio.Event()
        self._reads = asyncio.Event()
        if not frozen:
            self._reads.set()
        self._asked = False
        self._rest = b""
        self._arrived = asyncio.Event()
        self.browser = Browser()
        self.start: Message = {}
        self.body = b""
        self.ended = False
        self.aborted = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone.set()
        await self._task

    async def until(self, condition: Callable[[Browser], bool]) -> Browser:
        """Wait until the received events satisfy the condition."""
        while not condition(self.browser):
            self._arrived.clear()
            await self._arrived.wait()
        return self.browser

    async def over(self) -> None:
        """Wait until the application has ended the stream."""
        await asyncio.shield(self._task)

    def _abort(self) -> None:
        self.aborted = True
        self._gone.set()
        self._reads.set()

    async def _receive(self) -> Message:
        if self._asked:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        await self._reads.wait()
        if self.aborted:
            return
        self.body += message["body"]
        *whole, self._rest = (self._rest + message["body"]).split(b"\n\n")
        for event in whole:
            self.browser.take_bytes(event)
        self.ended = not message.get("more_body", False)
        self._arrived.set()
