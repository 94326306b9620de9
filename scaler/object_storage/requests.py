"""State machine of a storage client: calls and events in, messages and outcomes out. Pure.

Invariants: every call ends exactly once, with a value or an error; after the storage loses the session, all unfinished
calls are resent from the start; nothing is sent while the storage is unreachable, and calls fail after
`timeout_seconds`. Windows limit the data in flight; further calls wait in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from scaler.errors import LimitError, ObjectLostError, ProtocolError, RefusedError, ScalerError, UnreachableError
from scaler.ids import is_cached, show
from scaler.net.connection import Broken, ConnectionRefused, ConnectorEvent, Received, Resumed, Welcomed
from scaler.object_storage.body import Memory, assemble, cut
from scaler.object_storage.messages import GetObject, PutObject, StorageReply, StorageResult
from scaler.protocol import messages as m

PUT_WINDOW_BYTES = 128 * 1024 * 1024
MAX_ASKED = 10_000


class ByteRange(NamedTuple):
    parts: list[int]
    frames: list[memoryview]


Outcome = list[memoryview] | ByteRange | ScalerError | None


@dataclass(slots=True, eq=False)
class PutCall:
    """Put an object. The parts must not change until the call ends. memory: copy that the storage may share. sizes:
    sizes of parts that follow in a later call. Without parts, the call only reserves space."""

    id: bytes
    parts: list[memoryview]
    memory: Memory | None = None
    sizes: list[int] = field(default_factory=list)
    begun: float = field(init=False, default=math.inf)
    messages: list[list[memoryview]] = field(init=False, default_factory=list)
    next_message: int = field(init=False, default=0)
    offset: int = field(init=False, default=0)
    answered: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.sizes = self.sizes or [part.nbytes for part in self.parts]
        self.messages = list(cut(self.parts)) if self.memory is None else [[]]


@dataclass(slots=True, eq=False)
class GetCall:
    """Get an object, or a range of its bytes. size 0: everything from offset on."""

    id: bytes
    is_range: bool = False
    offset: int = 0
    size: int = 0
    begun: float = field(init=False, default=math.inf)
    sizes: list[int] = field(init=False, default_factory=list)
    frames: list[memoryview] = field(init=False, default_factory=list)
    received_bytes: int = field(init=False, default=0)
    uses_frames: bool = field(init=False, default=False)

    @property
    def is_whole(self) -> bool:
        return self.received_bytes >= (self.size or sum(self.sizes) - self.offset)


StorageCall = PutCall | GetCall
RequestsInput = StorageCall | ConnectorEvent


class SendRequest(NamedTuple):
    message: m.Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


class CallEnded(NamedTuple):
    """A finished call. outcome: parts of a get, None for a put, or an error."""

    call: StorageCall
    outcome: Outcome


RequestsCommand = SendRequest | CallEnded


class Requests:
    def __init__(
        self, address: str, timeout_seconds: float, now: float, get_timeout_seconds: float | None = None
    ) -> None:
        """get_timeout_seconds: timeout for gets while the storage is unreachable; None: timeout_seconds."""
        self.wake_at = math.inf
        """Time at which `step` is due without input; inf: never."""
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._get_timeout_seconds = get_timeout_seconds
        self.is_sharing: bool | None = None
        """Whether the connection passes descriptors of shared memory; None before the first Welcome."""
        self._away_since: float | None = now
        self._refused: RefusedError | None = None
        self._calls: dict[StorageCall, None] = {}  # in the order in which they began
        self._gets: dict[StorageCall, None] = {}  # calls with a separate timeout
        self._puts: deque[PutCall] = deque()  # not fully sent
        self._unsent_gets: deque[GetCall] = deque()
        self._sent_frames: dict[int, tuple[PutCall, int]] = {}  # by request, with sizes in bytes
        self._sent_gets: dict[int, GetCall] = {}
        self._sent_bytes = 0
        self._last_request = 0
        self._commands: list[RequestsCommand] = []

    def step(self, inputs: Iterable[RequestsInput], now: float) -> list[RequestsCommand]:
        for item in inputs:
            match item:
                case Received(message=message, attachments=attachments):
                    self._received(message, attachments)
                case PutCall() | GetCall():
                    item.begun = now
                    has_own = isinstance(item, GetCall) and self._get_timeout_seconds is not None
                    (self._gets if has_own else self._calls)[item] = None
                    self._begin(item)
                case Welcomed():
                    self._away_since = None
                    self._sent_frames.clear()
                    self._sent_gets.clear()
                    self._puts.clear()
                    self._unsent_gets.clear()
                    self._sent_bytes = 0
                    for call in (*self._calls, *self._gets):
                        self._begin(call)
                case Resumed():
                    self._away_since = None
                case Broken():
                    self._away_since = now
                case ConnectionRefused(refused):
                    self._away_since = now
                    self._refused = RefusedError(f"the object storage at {self._address}: {refused.text}")
                case _:
                    assert_never(item)
        self.wake_at = math.inf
        if self._away_since is None:
            self._send()
        else:
            self.wake_at = self._give_up(self._away_since, now)
        commands, self._commands = self._commands, []
        return commands

    def _begin(self, call: StorageCall) -> None:
        if isinstance(call, PutCall):
            call.next_message = call.offset = call.answered = 0
            self._puts.append(call)
            return
        if isinstance(call, GetCall) and is_cached(call.id):
            call.frames, call.sizes, call.received_bytes = [], [], 0  # these ids may later contain other bytes
        self._unsent_gets.append(call)

    def _give_up(self, away_since: float, now: float) -> float:
        next_at = math.inf
        text = f"no object storage at {self._address} for {{:g}} s"
        while self._calls:
            call = next(iter(self._calls))
            end_at = max(away_since, call.begun) + self._timeout_seconds
            if now < end_at and self._refused is None:
                next_at = end_at
                break
            self._fail(call, text.format(self._timeout_seconds))
        if self._gets and self._get_timeout_seconds is not None:
            end_at = away_since + self._get_timeout_seconds
            if now < end_at and self._refused is None:
                return min(next_at, end_at)
            for get in list(self._gets):
                self._fail(get, text.format(now - away_since))
        return next_at

    def _fail(self, call: StorageCall, text: str) -> None:
        error = _lost(call.id, text) if isinstance(call, GetCall) else UnreachableError(text)
        self._end(call, self._refused or error)

    def _end(self, call: StorageCall, outcome: Outcome) -> None:
        for calls in (self._calls, self._gets):
            if call in calls:
                del calls[call]
                self._commands.append(CallEnded(call, outcome))

    def _send(self) -> None:
        while self._unsent_gets and len(self._sent_gets) < MAX_ASKED:
            get = self._unsent_gets.popleft()
            if get in self._calls or get in self._gets:
                self._last_request += 1
                self._sent_gets[self._last_request] = get
                begun = get.received_bytes
                is_sharing = bool(self.is_sharing) and not (get.uses_frames or get.is_range or begun)
                size = get.size - begun if get.size else 0
                question = GetObject(self._last_request, get.id, 0.0, is_sharing, get.offset + begun, size)
                self._commands.append(SendRequest(question))
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
            self._commands.append(SendRequest(message, frames, put.memory))
            put.next_message += 1
            put.offset += size

    def _received(self, message: m.Message, attachments: Sequence[memoryview]) -> None:
        match message:
            case StorageReply(request=request) if request in self._sent_frames:
                put, size = self._sent_frames.pop(request)
                self._sent_bytes -= size
                self._put_answered(put, message)
            case StorageReply(request=request) if request in self._sent_gets:
                self._get_answered(self._sent_gets[request], message, attachments)
            case _:
                pass  # a reply to an ended call, or a keep-alive

    def _put_answered(self, put: PutCall, reply: StorageReply) -> None:
        put.answered += 1
        if reply.result is StorageResult.UNSHARED and put.memory is not None:
            put.memory = None
            put.messages = list(cut(put.parts))
            self._begin(put)
        elif reply.result is not StorageResult.OK:
            self._end(put, _error(put.id, reply))
        elif put.answered == len(put.messages):
            self._end(put, None)

    def _get_answered(self, get: GetCall, reply: StorageReply, attachments: Sequence[memoryview]) -> None:
        if reply.result is not StorageResult.OK:
            self._end(get, _error(get.id, reply))
        elif reply.shared and not attachments:
            # The descriptor was lost with a connection, or could not be mapped.
            get.uses_frames = True
            self._begin(get)
        else:
            get.sizes = get.sizes or reply.parts
            get.frames.extend(attachments)
            get.received_bytes += sum(frame.nbytes for frame in attachments)
            if not get.is_whole:
                return
            if get.is_range:
                self._end(get, ByteRange(get.sizes, get.frames))
            else:
                self._end(get, get.frames if reply.shared else assemble(get.sizes, get.frames))
        del self._sent_gets[reply.request]


def _error(object_id: bytes, reply: StorageReply) -> ScalerError:
    shown = show(object_id)
    if reply.result is StorageResult.MISSING:
        return _lost(object_id, f"object {shown} is not in the object storage: {reply.text}")
    if reply.result in {StorageResult.FULL, StorageResult.TOO_LARGE, StorageResult.UNWRITABLE}:
        error = LimitError(f"the object storage rejects object {shown}: {reply.text}")
        error.may_pass = reply.result is StorageResult.UNWRITABLE
        return error
    return ProtocolError(f"the object storage rejects the request for object {shown} as invalid: {reply.text}")


def _lost(object_id: bytes, text: str) -> ObjectLostError:
    error = ObjectLostError(text)
    error.object_id = object_id
    return error
