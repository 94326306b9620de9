"""Live events for browsers: one record of what was told to all of them, read by each at its own speed.

The record is bounded. A browser that falls behind its beginning is cut off, connects again and begins with a whole
picture. So what browsers cost does not depend on how slow they are, and a difference is made once for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from scaler.monitor.web.replies import dump, refusal
from scaler.monitor.web.telling import Teller, Told

MAX_STREAMS = 100
MAX_RECORD_BYTES = 8 * 1024 * 1024
MAX_RECORD_EVENTS = 120
QUIET_SECONDS = 5.0
"""Something is sent at least so often."""
GATHER_SECONDS = 0.02
"""How long is waited for what belongs to the first news: the scheduler's reports come in two messages."""
LINGER_SECONDS = 30.0
"""How long the record goes on when nobody reads it: a browser whose connection broke goes on where it was."""
RETRY_MILLISECONDS = 1000

ABORT = "abort"
"""Key of a connection's state: a function that closes it at once."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Reader:
    """One browser. next: number of the event that it gets next."""

    next: int
    abort: Callable[[], None]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class Broadcast:
    """An ASGI application for `/events`, on the running loop."""

    def __init__(self, teller: Teller, interval_seconds: float, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """interval_seconds: how often, at most, news are told. quiet_seconds: how often, at least, anything is."""
        self._teller = teller
        self._interval_seconds = interval_seconds
        self._quiet_seconds = quiet_seconds
        self._loop = asyncio.get_running_loop()
        self._name = secrets.token_hex(4)
        """Part of the ids of events: those of another process mean nothing here."""
        self._record: deque[bytes] = deque()
        self._record_bytes = 0
        self._end = 0
        """Number of the event that comes next."""
        self._readers: set[_Reader] = set()
        self._told_at = self._left_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._news_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def readers(self) -> int:
        """Browsers that are connected."""
        return len(self._readers)

    def changed(self) -> None:
        """There may be news: tell them as soon as the interval allows."""
        if self._timer is None or self._news_timer is not None or self._closed:
            return  # nobody listens, or it is going to be told
        at = max(self._loop.time() + GATHER_SECONDS, self._told_at + self._interval_seconds)
        self._news_timer = self._loop.call_at(at, self._tell, False)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._sleep()
        for reader in self._readers:
            reader.news.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if len(self._readers) >= MAX_STREAMS or self._closed:
            text = f"{MAX_STREAMS} pages are open already: close some" if not self._closed else "the server ends"
            await refusal(503, text)(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if request.method == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        with self._reading(request) as (reader, first):
            sending = asyncio.ensure_future(self._send_all(reader, first, send))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                ended, _ = await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)

    # -- one browser

    @contextlib.contextmanager
    def _reading(self, request: Request) -> Iterator[tuple[_Reader, bytes]]:
        """Give a browser its place, with what to send first."""
        if self._timer is None:
            self._wake()
        abort = request.scope.get("state", {}).get(ABORT, lambda: None)
        place = self._place_of(request.headers.get("last-event-id", ""))
        first = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        if place is None:
            self._tell(False)  # the others get what the picture has
            first += self._event(("snapshot", self._teller.snapshot()), self._end - 1)
        reader = _Reader(self._end if place is None else place, abort)
        self._readers.add(reader)
        try:
            yield reader, first
        finally:
            self._readers.discard(reader)
            self._left_at = self._loop.time()

    async def _send_all(self, reader: _Reader, first: bytes, send: Send) -> None:
        await send({"type": "http.response.body", "body": first, "more_body": True})
        while not (self._closed or reader.cut):
            while not reader.cut and reader.next < self._end:
                event = self._record[reader.next - self._beginning]
                reader.next += 1
                await send({"type": "http.response.body", "body": event, "more_body": True})
            reader.news.clear()
            if reader.next == self._end and not self._closed:
                await reader.news.wait()
        await send({"type": "http.response.body", "body": b""})

    def _place_of(self, last_event_id: str) -> int | None:
        """Return what comes after an event, None when that is no longer known."""
        name, _, number = last_event_id.partition("-")
        if name != self._name or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        place = int(number) + 1
        return place if self._beginning <= place <= self._end else None

    # -- what all are told

    @property
    def _beginning(self) -> int:
        return self._end - len(self._record)

    def _wake(self) -> None:
        """Begin a record."""
        self._record.clear()
        self._record_bytes = 0
        self._end += 1  # nobody goes on from what was before
        self._teller.snapshot()
        self._left_at = self._told_at = self._loop.time()
        self._timer = self._loop.call_later(self._quiet_seconds, self._tick)

    def _sleep(self) -> None:
        for timer in (self._timer, self._news_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._news_timer = None

    def _tick(self) -> None:
        """Say something, for it has been quiet."""
        now = self._loop.time()
        if not self._readers and now - self._left_at > LINGER_SECONDS:
            self._sleep()
            return
        quiet = now - self._told_at
        if quiet >= self._quiet_seconds:
            self._tell(True)
            quiet = 0.0
        self._timer = self._loop.call_later(self._quiet_seconds - quiet, self._tick)

    def _tell(self, anyway: bool) -> None:
        if self._news_timer is not None:
            self._news_timer.cancel()
            self._news_timer = None
        told = self._teller.news(anyway=anyway)
        if told is None:
            return
        self._told_at = self._loop.time()
        event = self._event(told, self._end)
        self._record.append(event)
        self._record_bytes += len(event)
        self._end += 1
        while len(self._record) > MAX_RECORD_EVENTS or (
            self._record_bytes > MAX_RECORD_BYTES and len(self._record) > 1
        ):
            self._record_bytes -= len(self._record.popleft())
        for reader in self._readers:
            if reader.next < self._beginning:
                self._cut(reader)
            reader.news.set()

    def _event(self, told: Told, number: int) -> bytes:
        kind, document = told
        return b"event: %s\nid: %s-%d\ndata: %s\n\n" % (kind.encode(), self._name.encode(), number, dump(document))

    def _cut(self, reader: _Reader) -> None:
        if not reader.cut:
            reader.cut = True
            _log.info("a browser is too slow for what happens and is cut off; it will connect again")
            reader.abort()


async def _left(receive: Receive) -> None:
    """Wait until the other side is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
