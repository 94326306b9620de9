"""The web server, `scaler_ui`: pages, live events, JSON and metrics behind one guard, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scaler._version import __version__
from scaler.component import Component, run_component
from scaler.config.monitors import WebUiConfig
from scaler.monitor.connection import WHICH_ADDRESS, MonitorConnection
from scaler.monitor.rows import KEYS, page_schema
from scaler.monitor.web.api import Source, api_routes
from scaler.monitor.web.delta import DeltaEncoder
from scaler.monitor.web.listening import inherited, listen, page_of
from scaler.monitor.web.metrics import Metrics
from scaler.monitor.web.openapi import openapi
from scaler.monitor.web.security import Guard, is_open_to_others
from scaler.monitor.web.stream import ABORT, Broadcast
from scaler.monitor.web.views import answer, dump, refusal
from scaler.net.access import Access
from scaler.protocol.messages import Role
from scaler.protocol.monitor_rows import ConnectionRow

STATIC = Path(__file__).parent / "static"
REVALIDATE = "no-cache"
"""Browsers may cache files of the page, but must ask for changes: names stay the same when contents change."""
CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Not the types of the machine's own tables: browsers run no module of another type."""
BUG = "this is a bug in scaler; please report it with the lines of the web server's log"
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 2
"""Longest time of unfinished requests when the server ends."""
WARN_SECONDS = 2.0
"""Time without an answer of the scheduler until a warning."""

_log = logging.getLogger(__name__)


class WebApp:
    """An ASGI application, on the running loop. Its owner calls `changed` when the monitor reports a change."""

    def __init__(self, monitor: MonitorConnection, config: WebUiConfig) -> None:
        self._monitor = monitor
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._status = monitor.model.status
        self._updated_at = self._loop.time() if self._status.at else None
        self._restarts = 0
        self._connected = False
        encoder = DeltaEncoder(monitor.model, self.connection, config.task_log_max_size)
        self.broadcast = Broadcast(encoder, config.broadcast_interval_seconds)
        self._app: ASGIApp = Guard(self._routes(), (config.web_host, *config.allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def changed(self) -> None:
        """Note a change of the model or of the connection, log the latter, and have browsers updated."""
        if self._monitor.connected != self._connected:
            self._connected = self._monitor.connected
            if self._connected:
                _log.info("connected to the scheduler at %s", self._monitor.address)
            else:
                _log.warning("%s; the page shows the last state", self._monitor.last_error)
        before, self._status = self._status, self._monitor.model.status
        if self._status is not before:
            self._updated_at = self._loop.time()
            self._restarts += bool(before.incarnation) and self._status.incarnation != before.incarnation
        self.broadcast.changed()

    def close(self) -> None:
        self.broadcast.close()

    def connection(self) -> ConnectionRow:
        incarnation = self._status.incarnation
        return ConnectionRow(
            connected=self._monitor.connected,
            address=self._monitor.address,
            trouble=self._monitor.last_error,
            incarnation=str(incarnation) if incarnation else "",  # JavaScript has no integers of this size
            restarts=self._restarts,
            age_seconds=None if self._updated_at is None else self._loop.time() - self._updated_at,
            interval_seconds=self._config.broadcast_interval_seconds,
            task_rows=self._config.task_log_max_size,
            version=__version__,
        )

    def _routes(self) -> Starlette:
        return Starlette(
            routes=[
                *api_routes(Source(self._monitor, self.connection)),
                Route("/api/openapi.json", lambda _request: answer(openapi())),
                Route("/metrics", Metrics(self._monitor.model, self.connection).answer),
                Route("/events", self.broadcast),
                Route("/schema.js", _schema),
                Mount("/", _Files()),
            ],
            exception_handlers={HTTPException: _http_error, Exception: lambda _request, _error: refusal(500, BUG)},
        )


def _schema(_request: Request) -> Response:
    """Return the columns of the page's tables, and the keys of their rows, as a module."""
    text = b"export const SCHEMA = %s;\nexport const KEYS = %s;\n" % (dump(page_schema()), dump(KEYS))
    return Response(text, headers={"Cache-Control": REVALIDATE}, media_type=CONTENT_TYPES[".js"])


class _Files(StaticFiles):
    """The files of the page."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = REVALIDATE
        kind = CONTENT_TYPES.get(Path(full_path).suffix)
        if kind is not None and "content-type" in response.headers:
            response.headers["Content-Type"] = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        return response


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"there is no {request.url.path} here" if error.status_code == 404 else error.detail
    return refusal(error.status_code, text, error.headers)


def run(config: WebUiConfig) -> int:
    """Serve the page until the process has to stop, and return the exit code."""

    async def main(component: Component) -> int:
        listening = inherited() or listen(config.web_host, config.web_port)
        with contextlib.closing(listening):
            if config.web_port not in (0, listening.getsockname()[1]):
                page = page_of(listening)
                _log.warning("port %d is in use, so the web page is at %s", config.web_port, page)
            await _serve(config, listening, component)
        return 0

    return run_component("web-ui", config, main)


async def _serve(config: WebUiConfig, listening: socket.socket, component: Component) -> None:
    if is_open_to_others(config.web_host):
        _log.warning("there is no password: every machine that can reach %s can read everything", config.web_host)

    def changed() -> None:
        app.changed()

    monitor = MonitorConnection(config.monitor_address, changed, access=Access.of(config, Role.MONITOR, "web-page"))
    app = WebApp(monitor, config)
    component.ready({"web page": page_of(listening)})

    def warn() -> None:
        if not monitor.connected:
            _log.warning("%s; the page is empty until one does: %s", monitor.last_error, WHICH_ADDRESS)

    warning = asyncio.get_running_loop().call_later(WARN_SECONDS, warn)
    try:
        await serve(app, listening, component.stop)
    finally:
        warning.cancel()
        monitor.close()


async def serve(app: WebApp, listening: socket.socket, stop: asyncio.Event) -> None:
    """Answer requests at a socket until `stop` is set; then end unfinished ones, and close the socket."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)

    async def end() -> None:
        await stop.wait()
        app.close()
        server.should_exit = True

    ending = asyncio.ensure_future(end())
    try:
        await server.serve([listening])
    finally:
        ending.cancel()


class _Connection(H11Protocol):
    """A browser's connection, which the application can close at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}


class _Server(uvicorn.Server):
    """Does not install signal handlers: the component has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
