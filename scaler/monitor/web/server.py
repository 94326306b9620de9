"""The `scaler_ui` web server and its process: page files, live events, JSON, and metrics behind one guard."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import mimetypes
import secrets
import socket
import sys
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from scaler._version import __version__
from scaler.component import Component, run_component
from scaler.config.addresses import is_open_to_others
from scaler.config.monitors import WebUiConfig
from scaler.errors import UsageError
from scaler.logs import RateLimitedLog
from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.connection import WHICH_ADDRESS, MonitorConnection
from scaler.monitor.rows import KEYS, page_schema
from scaler.monitor.tables import ADDED
from scaler.monitor.web.api import api_routes, openapi
from scaler.monitor.web.delta import DeltaEncoder
from scaler.monitor.web.metrics import Metrics
from scaler.monitor.web.page import inherited, keep_token, link_to_show, listen, load_token, page_of, tls_of
from scaler.monitor.web.routes import Source, answer, dump, refusal
from scaler.monitor.web.security import Guard, Login
from scaler.monitor.web.serving import serve
from scaler.monitor.web.stream import Broadcast
from scaler.net.access import Access
from scaler.plugins import known_extensions, part_of
from scaler.protocol.messages import Role

STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Fixed, because browsers reject modules with another type, and the machine's own tables may be wrong."""
for suffix, content_type in CONTENT_TYPES.items():
    mimetypes.add_type(content_type, suffix)


def schema_module() -> bytes:
    asked = {
        found.name: {"extension": each.name, "title": found.title, "page": found.page}
        for each in known_extensions()
        for found in each.found
        if found.page
    }
    added = page_schema({table.name: table.kind for table in ADDED})
    tables = {"SCHEMA": added, "KEYS": KEYS, "ASKED": asked}
    return b"".join(b"export const %s = %s;\n" % (name.encode(), dump(each)) for name, each in tables.items())


def extensions_module() -> bytes:
    """Return a generated module that lists the `extension` of each extension's module, with its name."""
    modules = [(each.name, each.page.partition(":")[2]) for each in known_extensions() if each.page]
    lines = [f'import {{ extension as e{place} }} from "./{module}.js";' for place, (_, module) in enumerate(modules)]
    listed = ", ".join(f'{{ name: "{name}", ...e{place} }}' for place, (name, _) in enumerate(modules))
    return "\n".join([*lines, f"export const EXTENSIONS = [{listed}];\n"]).encode()


MADE = {"schema": schema_module, "extensions": extensions_module}


def made(request: Request) -> Response:
    text = MADE[request.url.path.strip("/").removesuffix(".js")]()
    return Response(text, headers={"Cache-Control": "no-cache"}, media_type=CONTENT_TYPES[".js"])


class Files(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)
        packages = [importlib.import_module(each.page.partition(":")[0]) for each in known_extensions() if each.page]
        self.all_directories = [STATIC, *(Path(package.__path__[0], "page") for package in packages)]


BUG = "this is a bug in scaler; please report it with the lines of the web server's log"
BROADCAST_SECONDS = 0.5
"""Minimum interval between updates to browsers."""
TASK_ROWS = 500
"""Recent tasks on the page."""
WARN_SECONDS = 2.0
"""Time without an answer from the scheduler before a warning."""

_log = logging.getLogger(__name__)


class WebApp:
    """An ASGI application, on the running loop. Its owner calls `changed` when the monitor reports a change."""

    def __init__(self, monitor: MonitorConnection, config: WebUiConfig, token: str | None = None) -> None:
        """token: login token. None: only this user on this machine may read."""
        self._monitor = monitor
        self._loop = asyncio.get_running_loop()
        self._status = monitor.model.status
        self._updated_at = self._loop.time() if self._status.at else None
        self._connected = False
        encoder = DeltaEncoder(monitor.model, self.connection, TASK_ROWS)
        self.broadcast = Broadcast(encoder, BROADCAST_SECONDS)
        wrong = RateLimitedLog(_log, logging.WARNING, self._loop)
        login = Login(
            token or secrets.token_urlsafe(),
            lambda address: wrong.add(f"wrong web page token from {address}"),
            trusts_user=not is_open_to_others(config.web_host),
        )
        names = (config.web_host, *config.allowed_hosts)
        self.metrics = Metrics(monitor, self.connection)
        self._app: ASGIApp = Guard(self._routes(), None if config.insecure_no_auth else login, names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def changed(self) -> None:
        """Process a change to the model or the connection: update browsers, and log connection changes."""
        if self._monitor.connected != self._connected:
            self._connected = self._monitor.connected
            if self._connected:
                _log.info("connected to the scheduler at %s", self._monitor.address)
            else:
                _log.warning("%s; the page shows the last state", self._monitor.last_error)
        if self._status is not self._monitor.model.status:
            self._status = self._monitor.model.status
            self._updated_at = self._loop.time()
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
            age_seconds=None if self._updated_at is None else self._loop.time() - self._updated_at,
            interval_seconds=BROADCAST_SECONDS,
            task_rows=TASK_ROWS,
            version=__version__,
        )

    def _routes(self) -> Starlette:
        return Starlette(
            routes=[
                *api_routes(Source(self._monitor, self.connection)),
                Route("/api/openapi.json", lambda _request: answer(openapi())),
                Route("/metrics", self.metrics.answer),
                Route("/events", self.broadcast),
                *(Route(f"/{name}.js", made) for name in MADE),
                Mount("/", Files()),
            ],
            exception_handlers={HTTPException: _http_error, Exception: lambda _request, _error: refusal(500, BUG)},
        )


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"there is no {request.url.path} here" if error.status_code == 404 else error.detail
    return refusal(error.status_code, text, error.headers)


def run(config: WebUiConfig) -> int:
    async def main(component: Component) -> int:
        listening = inherited() or listen(config.web_host, config.web_port)
        with contextlib.closing(listening):
            if config.web_port not in (0, listening.getsockname()[1]):
                page = page_of(listening, is_encrypted=config.web_certificate_file is not None)
                _log.warning("port %d is in use, so the web page is at %s", config.web_port, page)
            await _serve(config, listening, component)
        return 0

    return run_component("web-ui", config, main)


async def _serve(config: WebUiConfig, listening: socket.socket, component: Component) -> None:
    tls = tls_of(config)
    page = page_of(listening, is_encrypted=tls is not None)
    token = _token(config, page)
    if tls is None and is_open_to_others(config.web_host):
        _log.warning(
            "the page at %s is not encrypted: the token and all contents can be read in transit; "
            "set web_certificate_file and web_key_file, or use a TLS proxy",
            config.web_host,
        )

    def changed() -> None:
        app.changed()

    access = Access.of(config.credentials, config.insecure_no_auth, Role.MONITOR, "web-page", config.compression)
    monitor = MonitorConnection(config.monitor_address, changed, access=access)
    app = WebApp(monitor, config, token)
    component.ready({"web page": page})

    def warn() -> None:
        if not monitor.connected:
            _log.warning("%s; the page is empty until one does: %s", monitor.last_error, WHICH_ADDRESS)

    warning = asyncio.get_running_loop().call_later(WARN_SECONDS, warn)
    running = []
    if token is not None and config.web_token_file is None:
        running.append(asyncio.create_task(keep_token(token)))
    if config.telemetry_endpoint:
        send = part_of("telemetry", "metrics", "telemetry_endpoint")
        running.append(asyncio.create_task(send(app.metrics, config.telemetry_endpoint)))
    try:
        await serve(app, listening, component.stop, app.close, tls)
    finally:
        warning.cancel()
        for each in running:
            each.cancel()
        monitor.close()


def _token(config: WebUiConfig, page: str) -> str | None:
    """Return the login token, and log where users find it. None if no login is needed or the token cannot be stored."""
    is_open = is_open_to_others(config.web_host)
    if config.insecure_no_auth:
        if is_open:
            _log.warning("insecure_no_auth: any process that can reach %s can read everything", config.web_host)
        return None
    try:
        token, file = load_token(config.web_token_file)
    except UsageError as error:
        if is_open or config.web_token_file is not None:
            raise
        _log.info("other users cannot log in to the web page: %s", error)
        return None
    if is_open:
        _log.info("the web page asks for the token in %s", file)
        if (link := link_to_show(config, page)) != page:
            sys.stdout.write(f"web-ui: log in with {link}\n")
            sys.stdout.flush()
    return token
