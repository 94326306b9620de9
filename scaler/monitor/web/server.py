"""The web server as a process: `scaler_ui`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from scaler.component import Component, run_component
from scaler.config.monitors import WebUiConfig
from scaler.errors import UsageError
from scaler.monitor.connection import WHICH_ADDRESS, MonitorConnection
from scaler.monitor.web.app import WebApp
from scaler.monitor.web.security import is_open_to_others
from scaler.monitor.web.stream import ABORT
from scaler.net.address import cannot_bind

BACKLOG = 256
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 2
"""Longest time of unfinished requests when the server ends."""
WARN_SECONDS = 2.0
"""Time without an answer of the scheduler until a warning."""

_log = logging.getLogger(__name__)


def run(config: WebUiConfig) -> int:
    """Serve the page until the process has to stop, and return the exit code."""

    async def main(component: Component) -> int:
        listening = listen(config.web_host, config.web_port)
        with contextlib.closing(listening):
            await _serve(config, listening, component)
        return 0

    return run_component("web-ui", config, main)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError with the reason."""
    host = host.strip("[]")
    settings = f"web_host {host}, web_port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UsageError(f"{settings}: {host!r} is no name or address of this machine ({error.strerror})") from None
    try:
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        raise UsageError(f"{settings}: {cannot_bind(f'tcp://{shown}:{port}', error.errno or 0)}") from None
    # Connections inherit it: a delta is one small write, which must not wait for the one before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def page_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (these are replaced, not bound)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


async def _serve(config: WebUiConfig, listening: socket.socket, component: Component) -> None:
    if is_open_to_others(config.web_host):
        _log.warning("there is no password: every machine that can reach %s can read everything", config.web_host)

    def changed() -> None:
        app.changed()

    monitor = MonitorConnection(config.monitor_address, changed)
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
