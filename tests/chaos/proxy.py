"""A TCP proxy between peers and a server that breaks connections, delays and reorders them, and damages bytes.

It runs in a separate thread. Each fault is a call from another thread, and `heal` ends lasting faults.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from random import Random

_READ_BYTES = 64 * 1024
HALF_OPEN_SECONDS = 20.0
"""Time that the server's side of a half-open connection remains open."""
LATE_SECONDS = 0.5
"""Delay of the last bytes of a reordered connection after the next connection."""
_RESET = struct.pack("ii", 1, 0)


class _Connection:
    """A peer's connection, and the corresponding one to the server."""

    def __init__(self, peer: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.peer, self.server = peer, server
        self.held: list[bytes] | None = None
        """Bytes from the peer that the server receives late, or None while bytes pass directly."""
        self.flows: list[asyncio.Task[None]] = []


class Proxy:
    """Listens on a free loopback port and forwards to another loopback port."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = 0
        self._target = port
        self._random = Random(seed)
        self._delay_seconds = 0.0
        self._damages = 0
        self._connections: set[_Connection] = set()
        self._all: list[_Connection] = []
        self._reordered: list[_Connection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait(10)

    def reset(self) -> None:
        """Reset all connections on both sides."""
        self._do(lambda: self._each(_reset))

    def half_open(self) -> None:
        """Reset the peers' sides; the server's sides remain open and silent."""
        self._do(lambda: self._each(self._halve))

    def reorder(self) -> None:
        """Reset the peers' sides. The server receives the last bytes of each only after the peer has reconnected."""

        def hold() -> None:
            for connection in self._connections:
                connection.held = []
            self._loop.call_later(0.3, lambda: self._each(self._reordered.append, lambda each: _abort(each.peer)))

        self._do(hold)

    def damage(self, reads: int) -> None:
        """Flip one bit in each of the next reads, for connections without encryption or checksums."""
        self._damages = reads

    @property
    def damages_left(self) -> int:
        """Number of reads still to be damaged."""
        return self._damages

    def black_hole(self) -> None:
        """Accept bytes and new connections but deliver nothing until `heal`. Existing connections remain."""
        self._do(self._open.clear)

    def delay(self, seconds: float) -> None:
        """Deliver everything with this delay until `heal`."""
        self._delay_seconds = seconds

    def heal(self) -> None:
        self._delay_seconds = 0.0
        self._do(self._open.set)

    def close(self) -> None:
        def close() -> None:
            for connection in self._all:
                _reset(connection)
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._do(close)
        self._thread.join()

    # -- in the thread

    def _do(self, action: Callable[[], object]) -> None:
        if self._loop.is_closed():
            return
        done = Future[object]()
        self._loop.call_soon_threadsafe(lambda: done.set_result(action()))  # in one step: `close` ends the loop
        done.result(10)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        if cancelled := asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(asyncio.wait(cancelled))
        self._loop.close()

    async def _serve(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        async with server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _abort(writer)
            return
        connection = _Connection(writer, server_writer)
        connection.flows = [
            asyncio.ensure_future(self._pass(reader, server_writer, connection)),
            asyncio.ensure_future(self._pass(server_reader, writer, None)),
        ]
        self._connections.add(connection)
        self._all = [each for each in self._all if not each.server.is_closing()] + [connection]
        late, self._reordered = self._reordered, []
        for each in late:
            self._loop.call_later(LATE_SECONDS, _release, each)
        with suppress(asyncio.CancelledError):
            await asyncio.wait(connection.flows, return_when=asyncio.FIRST_COMPLETED)
        if connection in self._connections:  # otherwise, a fault has taken over this connection
            self._connections.discard(connection)
            _stop(connection)
            writer.close()
            server_writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection | None
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(_READ_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)  # the fault is a delay
                await self._open.wait()
                if self._damages:
                    self._damages -= 1
                    data = self._damaged(data)
                if connection is not None and connection.held is not None:
                    connection.held.append(data)
                    continue
                writer.write(data)
                await writer.drain()

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _each(self, *strikes: Callable[[_Connection], object]) -> None:
        connections, self._connections = self._connections, set()
        for connection in connections:
            _stop(connection)
            for strike in strikes:
                strike(connection)

    def _halve(self, connection: _Connection) -> None:
        _abort(connection.peer)
        self._loop.call_later(HALF_OPEN_SECONDS, connection.server.close)


def _stop(connection: _Connection) -> None:
    for flow in connection.flows:
        flow.cancel()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an orderly end. Ignores a connection that has already ended."""
    if writer.transport.is_closing():
        return
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _reset(connection: _Connection) -> None:
    _abort(connection.peer)
    _abort(connection.server)


def _release(connection: _Connection) -> None:
    connection.server.write(b"".join(connection.held or ()))
    connection.server.close()
