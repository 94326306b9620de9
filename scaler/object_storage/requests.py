"""The rules of a peer of the object storage: calls and events in, messages and outcomes out.

Laws: every call ends exactly once, with its value or an error; when the storage has forgotten the session, whatever has
not ended is said again from its beginning; while the storage is away nothing is said, and calls fail after
`timeout_seconds`. Only what fits the windows is said at a time, and the rest waits in the order of the calls.
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
from scaler.object_storage.layout import MAX_PARTS, as_bytes_view, assemble, cut
from scaler.object_storage.state import Memory
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
from scaler.protocol.session import Buffer

PUT_WINDOW_BYTES = 128 * 1024 * 1024
"""Bytes of objects that are said and not answered."""
MAX_ASKED = 10_000
"""Gets, links and stats that are said and not answered, and messages of puts."""
MAX_CALLS = 1_000_000
MAX_KEPT_FORGETS = 10_000
"""Messages to forget that wait for a storage that is away; the oldest are dropped, and end with their owner."""
IDS_PER_FORGET = 10_000

Outcome = list[memoryview] | StorageStatus | ScalerError | None


@dataclass(frozen=True, slots=True)
class Say:
    """Command: send this to the storage, the descriptor of the memory first."""

    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Command: this call is over: parts of a get, status of a stat, None of a put or link, or an error."""

    ticket: int
    outcome: Outcome


Command = Say | Ended


@dataclass(slots=True, eq=False)
class _Put:
    ticket: int
    begun: float
    id: bytes
    parts: list[memoryview]
    sizes: list[int]
    messages: list[list[memoryview]]
    memory: Memory | None = None
    next_message: int = 0
    offset: int = 0
    answered: int = 0


@dataclass(slots=True, eq=False)
class _Get:
    ticket: int
    begun: float
    id: bytes
    deadline: float
    sizes: list[int] = field(default_factory=list)
    pieces: list[memoryview] = field(default_factory=list)
    received_bytes: int = 0
    unshared: bool = False


@dataclass(slots=True, eq=False)
class _Link:
    ticket: int
    begun: float
    id: bytes
    target: bytes


@dataclass(slots=True, eq=False)
class _Stat:
    ticket: int
    begun: float


_Ask = _Get | _Link | _Stat
_Call = _Put | _Ask


class Requests:
    """Everything that one peer wants of the storage and has not got yet. address is for people only.

    pings: say a Heartbeat as often as the storage wants to hear one, where the connector leaves that to its user.
    """

    def __init__(self, address: str, timeout_seconds: float, now: float, *, pings: bool = False) -> None:
        self._address = address
        self.is_sharing = False
        """The storage's descriptors arrive here."""
        self._timeout_seconds = timeout_seconds
        self._pings = pings
        self._heartbeat_seconds = math.inf
        self._heartbeat_at = math.inf
        self._away_since: float | None = now
        self._turned: RefusedError | None = None
        self._calls: dict[int, _Call] = {}  # by ticket, in the order of their beginning
        self._puts: deque[_Put] = deque()  # not said to their end
        self._asks: deque[_Ask] = deque()  # not said
        self._forgets: deque[ForgetObjects | ForgetOwner] = deque(maxlen=MAX_KEPT_FORGETS)
        self._said_pieces: dict[int, tuple[_Put, int]] = {}  # by request, with their bytes
        self._said_asks: dict[int, _Ask] = {}
        self._said_bytes = 0
        self._last_request = 0
        self._last_ticket = 0

    def put(self, object_id: bytes, parts: Sequence[Buffer], now: float, memory: Memory | None = None) -> int:
        """Begin to put an object and return the call's ticket. The parts must not change until it has ended.

        memory: a copy of the parts that the storage may share. Raises LimitError for too many parts or calls.
        """
        views = views_of(parts)
        messages = list(cut(views)) if memory is None else [[]]
        return self._put(_Put(self._ticket(), now, object_id, views, [view.nbytes for view in views], messages, memory))

    def reserve(self, object_id: bytes, sizes: list[int], now: float) -> int:
        """Begin to ask whether there is room for an object that is put next, and return the call's ticket."""
        return self._put(_Put(self._ticket(), now, object_id, [], sizes, [[]]))

    def get(self, object_id: bytes, deadline_seconds: float, now: float) -> int:
        """Begin to get an object, waiting for it for up to deadline_seconds, and return the call's ticket."""
        return self._ask(_Get(self._ticket(), now, object_id, now + deadline_seconds))

    def link(self, object_id: bytes, target: bytes, now: float) -> int:
        """Begin to give the object `target` another id and return the call's ticket."""
        return self._ask(_Link(self._ticket(), now, object_id, target))

    def stat(self, now: float) -> int:
        """Begin to ask for the storage's status and return the call's ticket."""
        return self._ask(_Stat(self._ticket(), now))

    def forget(self, object_ids: Sequence[bytes]) -> None:
        """Let the storage forget these objects. Nothing is answered."""
        for start in range(0, len(object_ids), IDS_PER_FORGET):
            self._forgets.append(ForgetObjects(list(object_ids[start : start + IDS_PER_FORGET])))

    def forget_owner(self, owner: bytes) -> None:
        """Let the storage forget all objects of this owner. Nothing is answered."""
        self._forgets.append(ForgetOwner(owner))

    def next_deadline(self) -> float | None:
        """Return the time at which `step` has something to do without any event; None when there is no such time."""
        if self._away_since is None:
            return self._heartbeat_at if self._pings else None
        if not self._calls:
            return None
        first = next(iter(self._calls.values()))
        return max(self._away_since, first.begun) + self._timeout_seconds

    def step(self, events: Iterable[ConnectorEvent], now: float) -> list[Command]:
        """Take in what has happened and return what is to be done, in this order."""
        commands: list[Command] = []
        for event in events:
            match event:
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
                    self._turned = RefusedError(f"the object storage at {self._address}: {refused.text}")
                case Received(message=message, attachments=attachments):
                    self._received(message, attachments, commands)
                case _:
                    assert_never(event)
        self._give_up(now, commands)
        if self._away_since is None:
            self._say(now, commands)
        return commands

    def _ticket(self) -> int:
        if len(self._calls) >= MAX_CALLS:
            raise LimitError(f"at most {MAX_CALLS} calls of the object storage at a time")
        self._last_ticket += 1
        return self._last_ticket

    def _put(self, call: _Put) -> int:
        self._calls[call.ticket] = call
        self._puts.append(call)
        return call.ticket

    def _ask(self, call: _Ask) -> int:
        self._calls[call.ticket] = call
        self._asks.append(call)
        return call.ticket

    def _begin_again(self) -> None:
        self._said_pieces.clear()
        self._said_asks.clear()
        self._said_bytes = 0
        self._puts.clear()
        self._asks.clear()
        for call in self._calls.values():
            match call:
                case _Put():
                    call.next_message = call.offset = call.answered = 0
                    self._puts.append(call)
                case _Get():
                    call.pieces, call.received_bytes = [], 0
                    self._asks.append(call)
                case _Link() | _Stat():
                    self._asks.append(call)
                case _:
                    assert_never(call)

    def _give_up(self, now: float, commands: list[Command]) -> None:
        while self._away_since is not None and self._calls:
            call = next(iter(self._calls.values()))
            waited_seconds = now - max(self._away_since, call.begun)
            if waited_seconds < self._timeout_seconds and self._turned is None:
                return
            text = f"no object storage at {self._address} for {self._timeout_seconds:g} s"
            error = UnreachableError(text) if isinstance(call, _Put | _Stat) else ObjectLostError(text)
            self._end(call, self._turned or error, commands)

    def _end(self, call: _Call, outcome: Outcome, commands: list[Command]) -> None:
        if self._calls.pop(call.ticket, None) is not None:
            commands.append(Ended(call.ticket, outcome))

    # -- saying ---------------------------------------------------------------------------------------------------

    def _request(self) -> int:
        self._last_request += 1
        return self._last_request

    def _say(self, now: float, commands: list[Command]) -> None:
        if self._pings and now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_seconds
            commands.append(Say(Heartbeat(now)))
        while self._forgets:
            commands.append(Say(self._forgets.popleft()))
        while self._asks and len(self._said_asks) < MAX_ASKED:
            ask = self._asks.popleft()
            if ask.ticket in self._calls:
                request = self._request()
                self._said_asks[request] = ask
                commands.append(Say(_question(ask, request, now, self.is_sharing)))
        while self._puts:
            put = self._puts[0]
            if put.ticket not in self._calls or put.next_message == len(put.messages):
                self._puts.popleft()
                continue
            pieces = put.messages[put.next_message]
            size = sum(piece.nbytes for piece in pieces)
            if self._said_pieces and self._said_bytes + size > PUT_WINDOW_BYTES:
                break
            if len(self._said_pieces) >= MAX_ASKED:
                break
            request = self._request()
            self._said_pieces[request] = put, size
            self._said_bytes += size
            is_shared = put.memory is not None
            commands.append(Say(PutObject(request, put.id, put.sizes, put.offset, is_shared), pieces, put.memory))
            put.next_message += 1
            put.offset += size

    # -- being answered -------------------------------------------------------------------------------------------

    def _received(self, message: Message, attachments: Sequence[memoryview], commands: list[Command]) -> None:
        match message:
            case StorageReply(request=request) if request in self._said_pieces:
                put, size = self._said_pieces.pop(request)
                self._said_bytes -= size
                self._put_answered(put, message, commands)
            case StorageReply(request=request) if request in self._said_asks:
                self._asked_answered(self._said_asks[request], message, attachments, commands)
            case StorageStatus(request=request) if request in self._said_asks:
                self._end(self._said_asks.pop(request), message, commands)
            case _:
                pass  # answers to calls that are over, and words that keep the connection alive

    def _put_answered(self, put: _Put, reply: StorageReply, commands: list[Command]) -> None:
        put.answered += 1
        if reply.result is StorageResult.UNSHARED and put.memory is not None:
            put.memory = None
            put.messages = list(cut(put.parts))
            put.next_message = put.answered = 0
            self._puts.append(put)
        elif reply.result is not StorageResult.OK:
            self._end(put, _error(put.id, reply), commands)
        elif put.answered == len(put.messages):
            self._end(put, None, commands)

    def _asked_answered(
        self, ask: _Ask, reply: StorageReply, attachments: Sequence[memoryview], commands: list[Command]
    ) -> None:
        outcome: Outcome = None
        if isinstance(ask, _Get) and reply.result is StorageResult.OK:
            if not reply.offset:
                ask.sizes = reply.parts
            ask.pieces.extend(attachments)
            ask.received_bytes += sum(piece.nbytes for piece in attachments)
            if reply.shared and not attachments:
                del self._said_asks[reply.request]
                ask.unshared = True
                self._asks.append(ask)
                return
            if ask.received_bytes < sum(ask.sizes):
                return
            outcome = ask.pieces if reply.shared else assemble(ask.sizes, ask.pieces)
        elif reply.result is not StorageResult.OK:
            outcome = _error(b"" if isinstance(ask, _Stat) else ask.id, reply)
        del self._said_asks[reply.request]
        self._end(ask, outcome, commands)


def views_of(parts: Sequence[Buffer]) -> list[memoryview]:
    """Return the parts of an object as flat views. Raises LimitError when there are too many."""
    if len(parts) > MAX_PARTS:
        raise LimitError(f"an object has at most {MAX_PARTS} parts, not {len(parts)}")
    return [as_bytes_view(part) for part in parts]


def _question(ask: _Ask, request: int, now: float, is_sharing: bool) -> Message:
    match ask:
        case _Get():
            return GetObject(request, ask.id, max(0.0, ask.deadline - now), is_sharing and not ask.unshared)
        case _Link():
            return LinkObject(request, ask.id, ask.target)
        case _Stat():
            return StatStorage(request)
        case _:
            assert_never(ask)


def _error(object_id: bytes, reply: StorageReply) -> ScalerError:
    match reply.result:
        case StorageResult.MISSING:
            return ObjectLostError(f"object {show(object_id)} is not in the object storage: {reply.text}")
        case StorageResult.FULL | StorageResult.TOO_LARGE:
            return LimitError(f"the object storage does not take object {show(object_id)}: {reply.text}")
        case StorageResult.INVALID | StorageResult.UNSHARED | StorageResult.OK:
            return ProtocolError(f"the object storage does not understand object {show(object_id)}: {reply.text}")
        case _:
            assert_never(reply.result)
