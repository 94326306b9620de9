"""The rules of a peer of the object storage: calls and events in, messages and outcomes out.

Pure. Laws: every call ends exactly once, with its value or an error; when the storage has forgotten the session, every
call that has not ended is sent again from its beginning; while the storage is away nothing is sent, and calls fail
after `timeout_seconds`. Only what fits the windows is sent at a time, and the rest waits in the order of the calls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from scaler.errors import LimitError, ObjectLostError, ProtocolError, RefusedError, ScalerError, UnreachableError
from scaler.ids import show
from scaler.net.connection import Broken, ConnectionRefused, ConnectorEvent, Received, Resumed, Welcomed
from scaler.object_storage.layout import assemble, cut
from scaler.object_storage.objects import Memory
from scaler.protocol.messages import (
    ForgetObjects,
    ForgetOwner,
    GetObject,
    Heartbeat,
    LinkObject,
    Message,
    PutObject,
    StatStorage,
    StorageReply,
    StorageResult,
    StorageStatus,
)

PUT_WINDOW_BYTES = 128 * 1024 * 1024
"""Bytes of objects that are sent and not answered."""
MAX_ASKED = 10_000
"""Gets, links and stats that are sent and not answered, and messages of puts."""
MAX_QUEUED_FORGETS = 10_000
"""Messages to forget that wait for a storage that is away; the oldest are dropped, and end with their owner."""

Outcome = list[memoryview] | StorageStatus | ScalerError | None


@dataclass(slots=True, eq=False)
class PutCall:
    """Put an object, whose parts must not change until the call has ended.

    memory: a copy of the parts that the storage may share. sizes: those of parts that are put later; without parts, the
    call only asks whether there is space for them.
    """

    id: bytes
    parts: list[memoryview]
    memory: Memory | None = None
    sizes: list[int] = field(default_factory=list)
    begun: float = math.inf
    messages: list[list[memoryview]] = field(init=False, default_factory=list)
    next_message: int = field(init=False, default=0)
    offset: int = field(init=False, default=0)
    answered: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.sizes = self.sizes or [part.nbytes for part in self.parts]
        self.use_frames() if self.memory is None else self.messages.append([])

    def use_frames(self) -> None:
        """Send the parts as frames, from their beginning."""
        self.memory = None
        self.messages = list(cut(self.parts))
        self.begin_again()

    def begin_again(self) -> None:
        self.next_message = self.offset = self.answered = 0


@dataclass(slots=True, eq=False)
class GetCall:
    """Get an object, waiting for it for up to deadline_seconds."""

    id: bytes
    deadline_seconds: float
    begun: float = math.inf
    sizes: list[int] = field(init=False, default_factory=list)
    frames: list[memoryview] = field(init=False, default_factory=list)
    received_bytes: int = field(init=False, default=0)
    uses_frames: bool = field(init=False, default=False)


@dataclass(slots=True, eq=False)
class LinkCall:
    """Give the object `target` another id."""

    id: bytes
    target: bytes
    begun: float = math.inf


@dataclass(slots=True, eq=False)
class StatCall:
    """Ask for the storage's status."""

    begun: float = math.inf


@dataclass(frozen=True, slots=True)
class SharingChanged:
    """Whether the connection passes the descriptors of shared memory; follows Welcomed and Resumed."""

    is_sharing: bool


_Asking = GetCall | LinkCall | StatCall
StorageCall = PutCall | _Asking
RequestsInput = StorageCall | ForgetObjects | ForgetOwner | SharingChanged | ConnectorEvent


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send this to the storage, with the descriptor of the memory."""

    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is over: parts of a get, status of a stat, None of a put or link, or an error."""

    call: StorageCall
    outcome: Outcome


RequestsCommand = SendRequest | CallEnded


class Requests:
    """Everything that one peer wants of the storage and has not got yet. address is for texts only.

    sends_heartbeats: as often as the storage wants them, where the connector leaves that to its user.
    """

    def __init__(self, address: str, timeout_seconds: float, now: float, *, sends_heartbeats: bool = False) -> None:
        self.wake_at = math.inf
        """When `step` has something to do without any input; inf: never."""
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._sends_heartbeats = sends_heartbeats
        self._heartbeat_seconds = math.inf
        self._heartbeat_at = math.inf
        self._is_sharing = False
        self._away_since: float | None = now
        self._refused: RefusedError | None = None
        self._calls: dict[StorageCall, None] = {}  # in the order of their beginning
        self._puts: deque[PutCall] = deque()  # not sent to their end
        self._asks: deque[_Asking] = deque()  # not sent
        self._forgets: deque[ForgetObjects | ForgetOwner] = deque(maxlen=MAX_QUEUED_FORGETS)
        self._sent_frames: dict[int, tuple[PutCall, int]] = {}  # by request, with their bytes
        self._sent_asks: dict[int, _Asking] = {}
        self._sent_bytes = 0
        self._last_request = 0

    def step(self, inputs: Iterable[RequestsInput], now: float) -> list[RequestsCommand]:
        """Take in what has happened and return what to do, in this order."""
        commands: list[RequestsCommand] = []
        for item in inputs:
            match item:
                case Received(message=message, attachments=attachments):
                    self._received(message, attachments, commands)
                case PutCall() | GetCall() | LinkCall() | StatCall():
                    item.begun = now
                    self._calls[item] = None
                    self._queue(item)
                case ForgetObjects() | ForgetOwner():
                    self._forgets.append(item)
                case SharingChanged(is_sharing):
                    self._is_sharing = is_sharing
                case Welcomed(welcome):
                    self._away_since = None
                    self._heartbeat_seconds = welcome.heartbeat_seconds
                    self._heartbeat_at = now
                    self._begin_again()
                case Resumed():
                    self._away_since = None
                case Broken():
                    self._away_since = now
                case ConnectionRefused(refused):
                    self._away_since = now
                    self._refused = RefusedError(f"the object storage at {self._address}: {refused.text}")
                case _:
                    assert_never(item)
        self._give_up(now, commands)
        if self._away_since is None:
            self._send(now, commands)
        self.wake_at = self._next_at()
        return commands

    def _next_at(self) -> float:
        if self._away_since is None:
            return self._heartbeat_at if self._sends_heartbeats else math.inf
        for first in self._calls:
            return max(self._away_since, first.begun) + self._timeout_seconds
        return math.inf

    def _queue(self, call: StorageCall) -> None:
        if isinstance(call, PutCall):
            self._puts.append(call)
        else:
            self._asks.append(call)

    def _begin_again(self) -> None:
        self._sent_frames.clear()
        self._sent_asks.clear()
        self._sent_bytes = 0
        self._puts.clear()
        self._asks.clear()
        for call in self._calls:
            if isinstance(call, PutCall):
                call.begin_again()
            elif isinstance(call, GetCall):
                call.frames, call.received_bytes = [], 0
            self._queue(call)

    def _give_up(self, now: float, commands: list[RequestsCommand]) -> None:
        while self._away_since is not None and self._calls:
            call = next(iter(self._calls))
            waited_seconds = now - max(self._away_since, call.begun)
            if waited_seconds < self._timeout_seconds and self._refused is None:
                return
            text = f"no object storage at {self._address} for {self._timeout_seconds:g} s"
            error = UnreachableError(text) if isinstance(call, PutCall | StatCall) else ObjectLostError(text)
            self._end(call, self._refused or error, commands)

    def _end(self, call: StorageCall, outcome: Outcome, commands: list[RequestsCommand]) -> None:
        if call in self._calls:
            del self._calls[call]
            commands.append(CallEnded(call, outcome))

    def _send(self, now: float, commands: list[RequestsCommand]) -> None:
        if self._sends_heartbeats and now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_seconds
            commands.append(SendRequest(Heartbeat(now)))
        while self._forgets:
            commands.append(SendRequest(self._forgets.popleft()))
        while self._asks and len(self._sent_asks) < MAX_ASKED:
            ask = self._asks.popleft()
            if ask in self._calls:
                self._last_request += 1
                self._sent_asks[self._last_request] = ask
                commands.append(SendRequest(self._question(ask, self._last_request, now)))
        while self._puts:
            put = self._puts[0]
            if put not in self._calls or put.next_message == len(put.messages):
                self._puts.popleft()
                continue
            frames = put.messages[put.next_message]
            size = sum(frame.nbytes for frame in frames)
            is_full = self._sent_frames and self._sent_bytes + size > PUT_WINDOW_BYTES
            if is_full or len(self._sent_frames) >= MAX_ASKED:
                break
            self._last_request += 1
            self._sent_frames[self._last_request] = put, size
            self._sent_bytes += size
            message = PutObject(self._last_request, put.id, put.sizes, put.offset, put.memory is not None)
            commands.append(SendRequest(message, frames, put.memory))
            put.next_message += 1
            put.offset += size

    def _question(self, ask: _Asking, request: int, now: float) -> Message:
        if isinstance(ask, GetCall):
            left = max(0.0, ask.begun + ask.deadline_seconds - now)
            return GetObject(request, ask.id, left, self._is_sharing and not ask.uses_frames)
        return LinkObject(request, ask.id, ask.target) if isinstance(ask, LinkCall) else StatStorage(request)

    def _received(self, message: Message, attachments: Sequence[memoryview], commands: list[RequestsCommand]) -> None:
        match message:
            case StorageReply(request=request) if request in self._sent_frames:
                put, size = self._sent_frames.pop(request)
                self._sent_bytes -= size
                self._put_answered(put, message, commands)
            case StorageReply(request=request) if request in self._sent_asks:
                self._ask_answered(self._sent_asks[request], message, attachments, commands)
            case StorageStatus(request=request) if request in self._sent_asks:
                self._end(self._sent_asks.pop(request), message, commands)
            case _:
                pass  # answers to calls that are over, and messages that keep the connection alive

    def _put_answered(self, put: PutCall, reply: StorageReply, commands: list[RequestsCommand]) -> None:
        put.answered += 1
        if reply.result is StorageResult.UNSHARED and put.memory is not None:
            put.use_frames()
            self._puts.append(put)
        elif reply.result is not StorageResult.OK:
            self._end(put, _error(put.id, reply), commands)
        elif put.answered == len(put.messages):
            self._end(put, None, commands)

    def _ask_answered(
        self, ask: _Asking, reply: StorageReply, attachments: Sequence[memoryview], commands: list[RequestsCommand]
    ) -> None:
        outcome: Outcome = None
        if isinstance(ask, GetCall) and reply.result is StorageResult.OK:
            if not reply.offset:
                ask.sizes = reply.parts
            ask.frames.extend(attachments)
            ask.received_bytes += sum(frame.nbytes for frame in attachments)
            if reply.shared and not attachments:
                # The descriptor was lost with a connection, or could not be mapped.
                del self._sent_asks[reply.request]
                ask.uses_frames = True
                self._asks.append(ask)
                return
            if ask.received_bytes < sum(ask.sizes):
                return
            outcome = ask.frames if reply.shared else assemble(ask.sizes, ask.frames)
        elif reply.result is not StorageResult.OK:
            outcome = _error(b"" if isinstance(ask, StatCall) else ask.id, reply)
        del self._sent_asks[reply.request]
        self._end(ask, outcome, commands)


def _error(object_id: bytes, reply: StorageReply) -> ScalerError:
    shown = show(object_id)
    if reply.result is StorageResult.MISSING:
        return ObjectLostError(f"object {shown} is not in the object storage: {reply.text}")
    if reply.result in {StorageResult.FULL, StorageResult.TOO_LARGE}:
        return LimitError(f"the object storage does not take object {shown}: {reply.text}")
    return ProtocolError(f"the object storage does not understand object {shown}: {reply.text}")
