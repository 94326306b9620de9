"""Live events for browsers, with a queue for each browser.

A browser that falls behind is disconnected, reconnects, and starts over with a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scaler.monitor.web.delta import DeltaEncoder, Update
from scaler.monitor.web.routes import dump, refusal
from scaler.monitor.web.security import LIMIT

MAX_STREAMS = 100
MAX_WAITING_EVENTS = 60
"""Maximum events queued for a browser. All browsers share the bytes of an event."""
QUIET_SECONDS = 5.0
"""Maximum time between two events."""
GATHER_SECONDS = 0.02
"""Delay of the first event after a change, because the scheduler reports in two messages."""
RETRY_MILLISECONDS = 1000
EVENT_STREAM = "text/event-stream"

ABORT = "abort"
"""Connection state key of a function that aborts the connection."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Reader:
    """One browser. events: empty bytes end the stream."""

    abort: Callable[[], None]
    events: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)


class Broadcast:
    """An ASGI application for `/events`, on the running loop."""

    def __init__(self, encoder: DeltaEncoder, interval_seconds: float) -> None:
        """interval_seconds: minimum time between two events."""
        self._encoder = encoder
        self._interval_seconds = interval_seconds
        self._loop = asyncio.get_running_loop()
        self.readers: set[_Reader] = set()
        self._sent_at = self._loop.time()
        self._changed = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        """Writes events while there are readers."""
        self._closed = False

    def changed(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        for reader in self.readers:
            reader.events.put_nowait(b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if len(self.readers) >= MAX_STREAMS or self._closed:
            text = f"{MAX_STREAMS} pages are already open: close some" if not self._closed else "the server ends"
            await refusal(503, text)(scope, receive, send)
            return
        headers = {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            await Response(None, headers=headers, media_type=EVENT_STREAM)(scope, receive, send)
            return
        with self._reading(request) as reader:
            events = _events_of(reader)
            await StreamingResponse(events, headers=headers, media_type=EVENT_STREAM)(scope, receive, send)

    @contextlib.contextmanager
    def _reading(self, request: Request) -> Iterator[_Reader]:
        state = request.scope.get("state", {})
        state.get(LIMIT, lambda _seconds: None)(None)
        reader = _Reader(state.get(ABORT, lambda: None))
        if self.readers:
            self._update()  # sends the snapshot's data to earlier readers
        first = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        reader.events.put_nowait(first + _encoded(("snapshot", self._encoder.snapshot())))
        self.readers.add(reader)
        if self._writing is None:
            self._sent_at = self._loop.time()
            self._writing = self._loop.create_task(self._write())
        try:
            yield reader
        finally:
            self.readers.discard(reader)
            if not self.readers and self._writing is not None:
                self._writing.cancel()
                self._writing = None

    async def _write(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._sent_at + QUIET_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(max(GATHER_SECONDS, self._sent_at + self._interval_seconds - self._loop.time()))
            self._update()

    def _update(self) -> None:
        self._changed.clear()
        self._sent_at = self._loop.time()
        event = _encoded(self._encoder.update())
        for reader in [*self.readers]:
            if reader.events.qsize() < MAX_WAITING_EVENTS:
                reader.events.put_nowait(event)
            else:
                _log.info("disconnecting a slow browser, which will reconnect")
                self.readers.discard(reader)
                reader.abort()


async def _events_of(reader: _Reader) -> AsyncIterator[bytes]:
    while event := await reader.events.get():
        yield event


def _encoded(update: Update) -> bytes:
    kind, document = update
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), dump(document))
