"""Serves HTTP on a socket with limits on connections, waiting times, and request sizes.

A request has `HEADER_SECONDS` until the application admits it. At the connection limit (at most half of the file
descriptors), a new connection replaces one without an admitted request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from scaler.monitor.web.security import LIMIT, SAME_USER, is_same_user
from scaler.monitor.web.stream import ABORT

MAX_CONNECTIONS = 256
"""Maximum connections. With TLS, each takes 256 KiB in asyncio."""
MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 2
"""Maximum time for unfinished requests when the server stops."""


async def serve(
    app: ASGIApp, listening: socket.socket, stop: asyncio.Event, on_stop: Callable[[], None], tls: ssl.SSLContext | None
) -> None:
    """Serve requests until `stop` is set. Then call `on_stop`, end the remaining requests, and close the socket."""
    config = uvicorn.Config(
        app,
        http="h11",
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, tls)

    async def end() -> None:
        await stop.wait()
        on_stop()
        server.should_exit = True

    ending = asyncio.ensure_future(end())
    try:
        await server.serve([listening])
    finally:
        ending.cancel()


class _Connection(H11Protocol):
    """A browser connection with a time limit, which the application can close immediately."""

    def __init__(self, server: _Server) -> None:
        state: dict[str, object] = {}
        super().__init__(server.config, server.server_state, state)
        self._state = state
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.waits = True
        """Whether the connection has no admitted request."""
        self.is_stream = False
        """The application has lifted the time limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._server.add(self)
        client, server = (transport.get_extra_info(end)[:2] for end in ("peername", "sockname"))
        is_same = functools.cache(lambda: is_same_user(client, server))
        self._state.update({ABORT: transport.abort, LIMIT: self._admit, SAME_USER: is_same})
        self._limit(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        self._server.open.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.waits and self._timer is None:
            self._limit(HEADER_SECONDS)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.waits, self.is_stream = True, False
        self._limit(None)  # uvicorn has its own timer for idle connections
        super().on_response_complete()

    def _admit(self, seconds: float | None) -> None:
        self.waits, self.is_stream = False, seconds is None
        self._limit(seconds)

    def _limit(self, seconds: float | None) -> None:
        """Close the connection after this time unless a response ends first. None: no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _Server(uvicorn.Server):
    """Installs no signal handlers, because the component has its own."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        self.open: dict[_Connection, None] = {}
        """All connections, oldest first, once TLS is established."""
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = None if self._tls is None else HEADER_SECONDS
        self.servers = [
            await asyncio.get_running_loop().create_server(
                lambda: _Connection(self), sock=listening, ssl=self._tls, ssl_handshake_timeout=seconds
            )
            for listening in sockets or ()
        ]
        self.started = True

    def add(self, connection: _Connection) -> None:
        """Register a new connection. At the limit, close the oldest without an admitted request, otherwise the oldest
        that is not an event stream, otherwise the oldest."""
        if len(self.open) >= self._most:
            closed = min(self.open, key=lambda each: (each.is_stream, not each.waits))  # the oldest of its kind
            del self.open[closed]
            closed.transport.abort()
        self.open[connection] = None
