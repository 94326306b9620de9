"""Replication from a scheduler to its standby: the state on both sides. Pure. Times are readings of the local clock.

The stream consists of frames: record number, size, and body. Frames with number 0 contain the current journal. An empty
frame follows, with the number of the journal's last record, then all later records.

*In step.* While the standby is in step, the scheduler acknowledges nothing before the standby has it on disk. This
promise has a deadline, which each of the scheduler's messages extends (`JournalBytes`). The scheduler continues without
the standby only after the deadline, by a clock that started later. Before the deadline, the standby therefore has every
acknowledged record, even if the scheduler or the network has failed.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.standby.messages import Following, JournalBytes, Promote, Promoted

_HEAD = struct.Struct("<QI")
CHUNK_BYTES = 1024 * 1024
WINDOW_BYTES = 8 * CHUNK_BYTES
"""Maximum bytes sent to the standby and not yet reported as received."""
MAX_WAITING_BYTES = 256 * CHUNK_BYTES
"""Maximum backlog (bytes). Beyond this, the standby starts over."""
MAX_SILENT_TIMEOUTS = 20
"""Number of timeouts for which records are kept for a silent standby. After that, the standby starts over."""


def framed(number: int, body: bytes) -> bytes:
    return _HEAD.pack(number, len(body)) + body


class StandbyPart(SchedulerPart):
    questions = (Promote,)

    def __init__(self, config: Any = None) -> None: ...

    def on_question(self, _question: Promote, _client: Any, _state: Any) -> Promoted:
        return Promoted(0, "this is the scheduler, not a standby: give the address of the standby")


class FollowedStream:
    """The scheduler's side. limit: last record that may be acknowledged. is_in_step: see the module."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.peer = b""
        self.address = ""
        self.last = 0
        """Number of the last record."""
        self.waits = False
        """Whether acknowledgements wait for the standby."""
        self._leaving = False
        self._promised_until = self._heard_at = self._looked_at = -math.inf

    @property
    def limit(self) -> float:
        return self._confirmed if self.waits else math.inf

    @property
    def is_in_step(self) -> bool:
        return self.waits and not self._leaving and self._confirmed >= self._mark

    def follow(self, peer: bytes, message: Following, now: float) -> str:
        """Start with a standby, whether new or starting over. Returns the reason for a refusal, or an empty string."""
        if (self.waits or self.peer) and message.address != self.address:
            return f"the scheduler already has the standby {self.address}: stop one of the two"
        self.waits = self._leaving = False
        self.peer, self.address = peer, message.address
        self._out, self._later = bytearray(), bytearray()
        self._base_from = self.last
        self._covered: int | None = None
        self._target = self._confirmed = self._sent = self._received = 0
        self._times: deque[tuple[int, float]] = deque()
        self._at, self._heard_at, self._looked_at = message.at, now, now
        return ""

    @property
    def wants_base(self) -> bool:
        return self._covered is None and len(self._out) < WINDOW_BYTES

    @property
    def can_send(self) -> bool:
        return bool(self._out) and self._sent - self._received < WINDOW_BYTES

    def must_start_over(self, now: float) -> bool:
        is_silent = now - self._heard_at > MAX_SILENT_TIMEOUTS * self.timeout_seconds
        return bool(self.peer) and (is_silent or len(self._out) + len(self._later) > MAX_WAITING_BYTES)

    def add_base(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self._out += framed(0, body)

    def end_base(self, covered: int) -> bool:
        """covered: last record of the base. Returns False if records are missing after it."""
        if covered < self._base_from:
            return False
        self._covered, self._target = covered, self.last
        self._out += framed(covered, b"")
        while self._later:
            number, size = _HEAD.unpack_from(self._later)
            if number > covered:
                break
            del self._later[: _HEAD.size + size]
        self._out += self._later
        self._later.clear()
        return True

    def appended(self, number: int, body: bytes, now: float) -> None:
        self.last = number
        if self.peer:
            (self._later if self._covered is None else self._out).extend(framed(number, body))
            self._times.append((number, now))

    def heard(self, message: Following, now: float) -> None:
        self._heard_at, self._at, self._received = now, message.at, message.received
        if not message.number:
            return
        self._confirmed = max(self._confirmed, message.number - 1)
        while self._times and self._times[0][0] <= self._confirmed:
            self._times.popleft()
        if message.leaves:
            self.leave()
        elif not self.waits and self._confirmed >= self._target:
            self.waits, self._mark = True, self.last
            self._times = deque((number, now) for number, _ in self._times)

    def take(self) -> Iterator[JournalBytes]:
        """Yield one or several messages for the standby."""
        while True:
            room = WINDOW_BYTES - (self._sent - self._received)
            data = bytes(self._out[: max(0, min(CHUNK_BYTES, room))])
            del self._out[: len(data)]
            self._sent += len(data)
            seconds = self.timeout_seconds if self.is_in_step else 0.0
            if seconds:
                self._promised_until = self._heard_at + seconds
            yield JournalBytes(self._at, seconds, data)
            if not self._out or len(data) < CHUNK_BYTES:
                return

    def is_due_to_leave(self, now: float) -> bool:
        """Return whether the scheduler must call `leave` and continue without the standby. After a pause of this
        process, the full timeout starts again, because the standby may have been promoted."""
        was_paused, self._looked_at = now - self._looked_at > self.timeout_seconds / 2, now
        if not self.waits:
            return False
        if was_paused:
            self._heard_at, self._times = now, deque((number, now) for number, _ in self._times)
        oldest = min(self._heard_at, self._times[0][1] if self._times else math.inf)
        self._leaving = self._leaving or now - oldest >= self.timeout_seconds
        return self._leaving and now >= self._promised_until

    def leave(self) -> None:
        self.waits = self._leaving = False
        self._target = self.last

    def lost(self) -> None:
        """Record that the standby disconnected. Acknowledgements still wait while the standby relies on the promise."""
        self.peer = b""
        self._out, self._later = bytearray(), bytearray()


class Follower:
    """The standby's side of one stream."""

    def __init__(self) -> None:
        self.received = 0
        self.certain_until = 0.0
        """Time until which this standby certainly has everything that the scheduler has acknowledged."""
        self._buffer = bytearray()
        self._left_at = -math.inf

    def leave(self, now: float) -> None:
        """Stop relying on the promise until the scheduler has received the report that this standby cannot write."""
        self.certain_until, self._left_at = 0.0, now

    def take(self, message: JournalBytes) -> Iterator[tuple[int, bytes]]:
        """Yield the next complete frames."""
        is_promised = message.seconds and message.at > self._left_at
        self.certain_until = message.at + message.seconds if is_promised else 0.0
        self.received += len(message.data)
        self._buffer += message.data
        while len(self._buffer) >= _HEAD.size:
            number, size = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield number, body
