"""The web server's application: pages, live events, JSON and metrics behind one guard."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from scaler._version import __version__
from scaler.monitor.web.api import Monitor, Source, api_routes
from scaler.monitor.web.metrics import Metrics, ModelCollector
from scaler.monitor.web.openapi import openapi
from scaler.monitor.web.replies import answer, refusal
from scaler.monitor.web.security import Guard
from scaler.monitor.web.stream import Broadcast
from scaler.monitor.web.telling import Teller
from scaler.monitor.web.views import View

STATIC = Path(__file__).parent / "static"
REVALIDATE = "no-cache"
"""Files of the page may be kept, but must be asked for: their names do not change when they do."""
CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Not what the machine thinks that they are: browsers run no module of another type."""


@dataclass(frozen=True, slots=True)
class WebSettings:
    """broadcast_interval_seconds: how often, at most, browsers are told what has changed. task_rows: how many of the
    last tasks a page lists. allowed_hosts: names under which browsers may know the server, beside its own.
    """

    broadcast_interval_seconds: float = 0.5
    task_rows: int = 500
    allowed_hosts: tuple[str, ...] = ()


class WebApp:
    """An ASGI application, on the running loop. Whoever makes it calls `changed` when the monitor does."""

    def __init__(self, monitor: Monitor, settings: WebSettings) -> None:
        self._monitor = monitor
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._status = monitor.model.status
        self._told_at = self._loop.time() if self._status.at else None
        self._restarts = 0
        self._broadcast = Broadcast(
            Teller(monitor.model, self.connection, settings.task_rows), settings.broadcast_interval_seconds
        )
        self._app: ASGIApp = Guard(self._routes(), settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def changed(self) -> None:
        """Take note of what the monitor has heard."""
        before, status = self._status, self._monitor.model.status
        if status is not before:
            self._status = status
            self._told_at = self._loop.time()
            self._restarts += bool(before.incarnation) and status.incarnation != before.incarnation
        self._broadcast.changed()

    def readers(self) -> int:
        """Return how many streams of events are open."""
        return self._broadcast.readers

    def close(self) -> None:
        """End all streams."""
        self._broadcast.close()

    def connection(self) -> View:
        """Return what is to be said about the connection to the scheduler."""
        incarnation = self._status.incarnation
        return {
            "connected": self._monitor.connected,
            "address": self._monitor.address,
            "trouble": self._monitor.trouble,
            "incarnation": str(incarnation) if incarnation else "",
            "restarts": self._restarts,
            "age_seconds": self._age_seconds(),
            "interval_seconds": self._settings.broadcast_interval_seconds,
            "task_rows": self._settings.task_rows,
            "version": __version__,
        }

    def _age_seconds(self) -> float | None:
        return None if self._told_at is None else round(self._loop.time() - self._told_at, 3)

    def _routes(self) -> Starlette:
        collector = ModelCollector(self._monitor.model, lambda: self._monitor.connected, self._age_seconds)
        metrics = Metrics(collector)
        return Starlette(
            routes=[
                *api_routes(Source(self._monitor, self.connection)),
                Route("/api/openapi.json", lambda _request: answer(openapi(self.connection()))),
                Route("/metrics", metrics.answer),
                Route("/events", self._broadcast),
                Mount("/", _Files()),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _bug},
        )


class _Files(StaticFiles):
    """The page."""

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


def _bug(_request: Request, _error: Exception) -> Response:
    return refusal(500, "this is a bug in scaler; please report it with the lines of the web server's log")
