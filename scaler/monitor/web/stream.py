"""Live events for browsers: one shared event log that each browser reads at its own speed.

The log is bounded. A browser that falls behind is disconnected, reconnects, and starts over with a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scaler.monitor.web.delta import DeltaEncoder, Update
from scaler.monitor.web.security import LIMIT
from scaler.monitor.web.views import dump, refusal

MAX_STREAMS = 100
MAX_LOG_BYTES = 8 * 1024 * 1024
MAX_LOG_EVENTS = 120
QUIET_SECONDS = 5.0
GATHER_SECONDS = 0.02
"""Delay of the first event after a change, because the scheduler reports in two messages."""
LINGER_SECONDS = 30.0
"""How long the log continues without readers, so that a reconnecting browser resumes where it was."""
RETRY_MILLISECONDS = 1000
EVENT_STREAM = "text/event-stream"

ABORT = "abort"
"""Connection state key of a function that aborts the connection."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Reader:
    """One browser. next: number of its next event. cut: too slow and disconnected."""

    next: int
    abort: Callable[[], None]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class Broadcast:
    """An ASGI application for `/events`, on the running loop."""

    def __init__(self, encoder: DeltaEncoder, interval_seconds: float, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """interval_seconds: minimum time between two events. quiet_seconds: maximum time."""
        self._encoder = encoder
        self._interval_seconds = interval_seconds
        self._quiet_seconds = quiet_seconds
        self._loop = asyncio.get_running_loop()
        self._name = secrets.token_hex(4)
        """Prefix of event ids, which identifies this process."""
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._end = 0
        self._readers: set[_Reader] = set()
        self._sent_at = self._left_at = self._loop.time()
        self._changed = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        """Runs while the log continues."""
        self._closed = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    def changed(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        if self._writing is not None:
            self._writing.cancel()
        for reader in self._readers:
            reader.changed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if len(self._readers) >= MAX_STREAMS or self._closed:
            text = f"{MAX_STREAMS} pages are already open: close some" if not self._closed else "the server ends"
            await refusal(503, text)(scope, receive, send)
            return
        headers = {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            await Response(None, headers=headers, media_type=EVENT_STREAM)(scope, receive, send)
            return
        with self._reading(request) as (reader, first):
            events = self._read(reader, first)
            await StreamingResponse(events, headers=headers, media_type=EVENT_STREAM)(scope, receive, send)

    # -- one browser

    @contextlib.contextmanager
    def _reading(self, request: Request) -> Iterator[tuple[_Reader, bytes]]:
        if self._writing is None or self._writing.done():
            self._start_log()
        state = request.scope.get("state", {})
        abort = state.get(ABORT, lambda: None)
        state.get(LIMIT, lambda _seconds: None)(None)
        following = self._following(request.headers.get("last-event-id", ""))
        first = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        if following is None:
            self._update()  # all other readers get the data of the snapshot
            first += self._encoded(("snapshot", self._encoder.snapshot()), self._end - 1)
        reader = _Reader(self._end if following is None else following, abort)
        self._readers.add(reader)
        try:
            yield reader, first
        finally:
            self._readers.discard(reader)
            self._left_at = self._loop.time()

    async def _read(self, reader: _Reader, first: bytes) -> AsyncIterator[bytes]:
        yield first
        while not (self._closed or reader.cut):
            while not reader.cut and reader.next < self._end:
                event = self._events[reader.next - self._beginning]
                reader.next += 1
                yield event
            reader.changed.clear()
            if reader.next == self._end and not self._closed:
                await reader.changed.wait()

    def _following(self, last_event_id: str) -> int | None:
        """Return the number after this event, or None if the log no longer has it."""
        name, _, number = last_event_id.partition("-")
        if name != self._name or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        following = int(number) + 1
        return following if self._beginning <= following <= self._end else None

    # -- the log

    @property
    def _beginning(self) -> int:
        return self._end - len(self._events)

    def _start_log(self) -> None:
        self._events.clear()
        self._bytes = 0
        self._end += 1  # invalidates all earlier event ids
        self._encoder.snapshot()
        self._left_at = self._sent_at = self._loop.time()
        self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        """Write updates to the log until it had no readers for LINGER_SECONDS."""
        while self._readers or self._loop.time() - self._left_at <= LINGER_SECONDS:
            is_quiet = False
            try:
                async with asyncio.timeout_at(self._sent_at + self._quiet_seconds):
                    await self._changed.wait()
                    await asyncio.sleep(max(GATHER_SECONDS, self._sent_at + self._interval_seconds - self._loop.time()))
            except TimeoutError:
                is_quiet = True
            self._update(even_unchanged=is_quiet)

    def _update(self, *, even_unchanged: bool = False) -> None:
        self._changed.clear()
        update = self._encoder.update(even_unchanged=even_unchanged)
        if update is None:
            return
        self._sent_at = self._loop.time()
        event = self._encoded(update, self._end)
        self._events.append(event)
        self._bytes += len(event)
        self._end += 1
        while len(self._events) > MAX_LOG_EVENTS or (self._bytes > MAX_LOG_BYTES and len(self._events) > 1):
            self._bytes -= len(self._events.popleft())
        for reader in self._readers:
            if reader.next < self._beginning and not reader.cut:
                reader.cut = True
                _log.info("disconnecting a slow browser, which will reconnect")
                reader.abort()
            reader.changed.set()

    def _encoded(self, update: Update, number: int) -> bytes:
        kind, document = update
        return b"event: %s\nid: %s-%d\ndata: %s\n\n" % (kind.encode(), self._name.encode(), number, dump(document))
