"""Encoding of journaled changes, and the state that results from them. Pure.

A journal record contains the changes of one step. Each change has a type, the id of its subject, the size of its
content, and its content, with messages encoded as on the wire.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import NamedTuple, TypeVar, assert_never

from scaler.errors import ProtocolError
from scaler.extensions.durability.sessions import Label, note_label
from scaler.ids import ID_BYTES, owner_of
from scaler.journal.records import unreadable
from scaler.monitor.messages import UNFINISHED, SessionTasks
from scaler.net.connection import Identity
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.scheduler.core.changes import (
    CancelAsked,
    ClientJoined,
    ClientLeft,
    Dispatched,
    Dropped,
    FailedInput,
    GivenBack,
    ResultsRetained,
    Submitted,
    ValueRetained,
)

_ENTRY = struct.Struct("<B16sI")
_SIZE = struct.Struct("<I")
MAX_LEFT = 1_000
"""Maximum number of departed clients to remember. The storage is asked again to drop their objects."""
_MAX_ROWS = 1024
_MAX_LABELS = 4096
M = TypeVar("M", bound=m.Message)


class Labelled(NamedTuple):
    """Labels of a durable session's tasks, in order of submission. Only in snapshots."""

    client: bytes
    labels: Mapping[bytes, Label]


Journaled = (
    ClientJoined
    | ClientLeft
    | Submitted
    | ResultsRetained
    | ValueRetained
    | FailedInput
    | Dropped
    | Dispatched
    | GivenBack
    | Labelled
    | CancelAsked
)


class JournalChanged(NamedTuple):
    """Reason why new tasks cannot be journaled and are rejected; empty: journaling works again. is_stuck: whether
    nothing can be journaled, so all work waits."""

    failure: str
    is_stuck: bool = False


class Recovered(NamedTuple):
    """One client from the journal. results: outcomes of ended tasks. submit: unfinished tasks.

    values, failed_inputs: by task, as in `ValueRetained` and `FailedInput`. dispatched: worker by task. cancelled:
    tasks that the client asked to cancel. labels: labels of a durable session, in order of submission.
    """

    client: bytes
    hello: m.Hello
    identity: Identity
    submit: m.Submit
    results: list[m.Finished]
    values: dict[bytes, bytes]
    failed_inputs: dict[bytes, tuple[str, bytes]]
    dispatched: dict[bytes, bytes]
    cancelled: list[bytes]
    labels: dict[bytes, Label]


class ClientsGone(NamedTuple):
    """Clients that departed before the scheduler ended. The storage may not have been notified."""

    ids: list[bytes]


def to_bytes(changes: Iterable[Journaled]) -> bytes:
    parts: list[bytes] = []
    for change in changes:
        about, content = b"", b""
        match change:
            case ClientJoined(about, hello, identity):
                key = json.dumps([identity.key, sorted(identity.roles), identity.is_admin]).encode()
                content = _SIZE.pack(len(key)) + key + encode(hello)
            case Submitted(about, message) | ResultsRetained(about, message):
                content = encode(message)
            case ValueRetained(about, content) | Dispatched(about, content):
                pass
            case FailedInput(about, function, failed):
                content = failed + function.encode()
            case Dropped(ids) | CancelAsked(ids):
                content = b"".join(ids)
            case Labelled(about, labels):
                rows = [(label.function.encode(), label.key, label.tag) for label in labels.values()]
                names, keys, tags = map(list, zip(*rows, strict=True))
                content = encode(SessionTasks(about, 0, 0, [*labels], [UNFINISHED] * len(rows), names, keys, tags))
            case ClientLeft(about) | GivenBack(about):
                pass
            case _:
                assert_never(change)
        parts += (_ENTRY.pack(_NUMBERS[type(change)], about, len(content)), content)
    return b"".join(parts)


def from_bytes(body: bytes) -> Iterator[Journaled]:
    """Yield the changes of a record. Raises JournalError if the record is malformed."""
    at = 0
    try:
        while at < len(body):
            number, about, size = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + size
            if at > len(body):
                raise ValueError("a change is cut off")
            yield _READERS[KINDS[number]](about, body[at - size : at])
    except (ValueError, IndexError, struct.error, ProtocolError) as error:
        raise unreadable(error) from error


def _joined(about: bytes, content: bytes) -> ClientJoined:
    size = _SIZE.unpack_from(content)[0] + _SIZE.size
    key, roles, is_admin = json.loads(content[_SIZE.size : size])
    identity = Identity(key, frozenset(map(m.Role, roles)), is_admin)
    return ClientJoined(about[:8], _decoded(m.Hello, content[size:]), identity)


def _labelled(about: bytes, content: bytes) -> Labelled:
    found = _decoded(SessionTasks, content)
    rows = zip(found.ids, found.names, found.keys, found.tags, strict=True)
    return Labelled(about[:8], {task: Label(name.decode(), key, tag) for task, name, key, tag in rows})


def _ids(content: bytes) -> list[bytes]:
    return [content[at : at + ID_BYTES] for at in range(0, len(content), ID_BYTES)]


def _decoded(kind: type[M], content: bytes) -> M:
    message = decode(content)
    assert isinstance(message, kind)
    return message


_READERS: dict[type[Journaled], Callable[[bytes, bytes], Journaled]] = {
    ClientJoined: _joined,
    ClientLeft: lambda about, _: ClientLeft(about[:8]),
    Submitted: lambda about, content: Submitted(about[:8], _decoded(m.Submit, content)),
    ResultsRetained: lambda about, content: ResultsRetained(about[:8], _decoded(m.Finished, content)),
    ValueRetained: ValueRetained,
    FailedInput: lambda about, content: FailedInput(about, content[ID_BYTES:].decode(), content[:ID_BYTES]),
    Dropped: lambda _, content: Dropped(_ids(content)),
    Dispatched: Dispatched,
    GivenBack: lambda about, _: GivenBack(about),
    Labelled: _labelled,
    CancelAsked: lambda _, content: CancelAsked(_ids(content)),
}
KINDS = (*_READERS,)
"""The index of a type is its number in files, so append new types."""
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(slots=True)
class _Client:
    """functions, tasks: in order of arrival."""

    joined: ClientJoined
    functions: dict[bytes, bytes] = field(default_factory=dict)
    tasks: dict[bytes, tuple[m.Spec, bytes, tuple[bytes, ...], int]] = field(default_factory=dict)
    """Spec, payload, references, and number of calls (0: not in the message)."""
    results: dict[bytes, tuple[int, bytes, int, int, int]] = field(default_factory=dict)
    """Outcome, payload, duration, CPU time, and peak memory."""
    values: dict[bytes, bytes] = field(default_factory=dict)
    failed_inputs: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    dispatched: dict[bytes, bytes] = field(default_factory=dict)
    cancelled: dict[bytes, None] = field(default_factory=dict)
    labels: dict[bytes, Label] = field(default_factory=dict)

    @property
    def is_durable(self) -> bool:
        details = self.joined.hello.details
        return isinstance(details, m.ClientDetails) and bool(details.session)

    def apply(self, change: Journaled) -> None:
        match change:
            case Submitted(_, message):
                self._submit(message)
            case ResultsRetained(_, message):
                self._end(message)
            case Labelled(_, labels):
                self.labels.update(labels)
            case ValueRetained(task, payload):
                self.values[task] = payload
            case FailedInput(task, function, failed):
                self.failed_inputs[task] = function, failed
            case Dispatched(task, worker):
                self.dispatched[task] = worker
            case GivenBack(task):
                self.dispatched.pop(task, None)

    def _submit(self, message: m.Submit) -> None:
        self.functions.update(message.functions)
        for group in message.groups:
            for row, identifier in enumerate(group.ids):
                is_known = identifier in self.tasks or identifier in self.results
                if not is_known:
                    references = group.references[row] if group.references else ()
                    calls = group.calls[row] if group.calls else 0
                    self.tasks[identifier] = group.spec, group.payloads[row], references, calls
                if self.is_durable and (group.spec != _ANY or identifier not in self.labels):
                    note_label(self.labels, group, row, runs=not is_known)

    def _end(self, message: m.Finished) -> None:
        zeros = [0] * len(message.ids)
        columns = (message.outcomes, message.payloads, message.duration_us)
        profile = (message.cpu_us or zeros, message.peak_bytes or zeros)
        for identifier, *row in zip(message.ids, *columns, *profile, strict=True):
            if self.tasks.pop(identifier, None) is not None:
                self.results[identifier] = tuple(row)
                self.dispatched.pop(identifier, None)
                self.cancelled.pop(identifier, None)

    def drop(self, identifier: bytes) -> None:
        for table in (self.results, self.values, self.failed_inputs):
            table.pop(identifier, None)

    def groups(self) -> Iterator[m.TaskGroup]:
        """Yield the unfinished tasks, in groups of moderate size. A task may depend on a task in a later group."""
        for spec, rows in groupby(self.tasks.items(), lambda item: item[1][0]):
            while some := list(islice(rows, _MAX_ROWS)):
                ids, columns = map(list, zip(*some, strict=True))
                _, payloads, references, calls = map(list, zip(*columns, strict=True))
                # Either all tasks of a spec have a number of calls, or none have.
                yield m.TaskGroup(spec, ids, payloads, references, calls=calls if any(calls) else [])

    def finished(self) -> list[m.Finished]:
        """Return the results, in messages of the usual size."""
        if not self.results:
            return []
        outcomes, payloads, *profile = map(list, zip(*self.results.values(), strict=True))
        return m.split(m.Finished(0, [*self.results], outcomes, payloads, *profile))


class Ledger:
    """Sum of all changes: the state that a restarted scheduler needs."""

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        self._left: dict[bytes, None] = {}

    def read(self, bodies: Iterable[bytes]) -> None:
        """Apply the changes in these records. Raises JournalError for a malformed record."""
        for body in bodies:
            for change in from_bytes(body):
                self.apply(change)

    def apply(self, change: Journaled) -> None:
        """Apply the next change. Changes to unknown clients and tasks are ignored."""
        match change:
            case ClientJoined(client):
                self._clients[client] = _Client(change)
            case ClientLeft(client):
                self._clients.pop(client, None)
                self._left[client] = None
                if len(self._left) > MAX_LEFT:
                    del self._left[next(iter(self._left))]
            case Dropped(ids):
                for identifier in ids:
                    self._drop(identifier)
            case CancelAsked(ids):
                for identifier in ids:
                    found = self._clients.get(owner_of(identifier))
                    if found is not None and identifier in found.tasks:
                        found.cancelled[identifier] = None
            case _:
                found = self._clients.get(owner_of(change[0]))
                if found is not None:
                    found.apply(change)

    def _drop(self, identifier: bytes) -> None:
        owner = self._clients.get(owner_of(identifier))
        if owner is not None and identifier in owner.results:
            owner.drop(identifier)
            return
        for client in self._clients.values():
            client.functions.pop(identifier, None)

    def recovered(self) -> Iterator[Recovered]:
        for client in self._clients.values():
            yield Recovered(
                *client.joined,
                m.Submit([*client.functions.items()], [*client.groups()]),
                client.finished(),
                client.values,
                client.failed_inputs,
                client.dispatched,
                [*client.cancelled],
                {task: each for task, each in client.labels.items() if task in client.tasks or task in client.results},
            )

    def gone(self) -> ClientsGone:
        """Return the input about recently departed clients, whose objects may still be in the storage."""
        return ClientsGone([client for client in self._left if client not in self._clients])

    def snapshot(self) -> Iterator[list[Journaled]]:
        """Yield changes, in lists of moderate size, that add up to the current state."""
        yield [ClientLeft(client) for client in self._left]
        for name, client in self._clients.items():
            yield [client.joined]
            labels = list(client.labels.items())
            for start in range(0, len(labels), _MAX_LABELS):
                yield [Labelled(name, dict(labels[start : start + _MAX_LABELS]))]
            for message in client.finished():
                # A result belongs to a submitted task, so submit the tasks first.
                group = m.TaskGroup(_ANY, message.ids, [b"\x80"] * len(message.ids))
                yield [Submitted(name, m.Submit([], [group])), ResultsRetained(name, message)]
            yield [ValueRetained(*item) for item in client.values.items()]
            yield [FailedInput(task, *names) for task, names in client.failed_inputs.items()]
            for function in client.functions.items():
                yield [Submitted(name, m.Submit([function], []))]
            for group in client.groups():
                yield [Submitted(name, m.Submit([], [group]))]
            yield [Dispatched(*item) for item in client.dispatched.items()]
            yield [CancelAsked([*client.cancelled])]


_ANY = m.Spec(bytes(ID_BYTES))
