"""Serves HTTP on a socket with limits on connections, waiting times, and request sizes.

A request has `HEADER_SECONDS` until the application admits it. At the connection limit (at most half of the file
descriptors), a new connection replaces one without an admitted request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
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
"""With TLS, an open connection takes 256 KiB in asyncio."""
MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 2
"""Maximum time for unfinished requests when the server stops."""
PAUSE_SECONDS = 0.5
"""Pause after failing to accept a connection."""

_log = logging.getLogger(__name__)


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
    server = _Server(config, listening, tls)

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
    """A browser connection with a time limit, which the application can close at once."""

    def __init__(self, server: _Server) -> None:
        state: dict[str, object] = {}
        super().__init__(server.config, server.server_state, state)
        self._state = state
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.waits = True
        """The connection has no admitted request."""
        self.is_stream = False
        """The application has lifted the time limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        client, server = (transport.get_extra_info(end)[:2] for end in ("peername", "sockname"))
        is_same = functools.cache(lambda: is_same_user(client, server))
        self._state.update({ABORT: transport.abort, LIMIT: self._admit, SAME_USER: is_same})
        self._limit(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        self._server.forget(self)
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
    """Accepts connections itself. Installs no signal handlers, because the component has its own."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._listening = listening
        self._tls = tls
        self._open: dict[_Connection, asyncio.Task[None]] = {}
        """All connections, oldest first, with the tasks that open them. With TLS, opening takes a while."""
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 (uvicorn's method)
        self.servers = []
        self._listening.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await super().shutdown(sockets)

    def forget(self, connection: _Connection) -> None:
        self._open.pop(connection, None)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if len(self._open) >= self._most:
                self._make_room()
            connection = _Connection(self)
            self._open[connection] = loop.create_task(self._connect(accepted, connection))
            await asyncio.sleep(0)  # `sock_accept` does not yield while more connections are pending

    async def _connect(self, accepted: socket.socket, connection: _Connection) -> None:
        seconds = None if self._tls is None else HEADER_SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # broken connection, or no TLS
            accepted.close()
            self.forget(connection)

    def _make_room(self) -> None:
        """Close the oldest connection without an admitted request, otherwise the oldest that is not an event stream."""
        others = [connection for connection in self._open if not connection.is_stream]
        closed = next((connection for connection in others if connection.waits), others[0])
        opening = self._open.pop(closed)
        if closed.transport is None:
            opening.cancel()
        else:
            closed.transport.abort()
