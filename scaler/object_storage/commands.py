"""Inputs (past events) and commands of the object storage's core. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaler.net.connection import ListenerEvent, Received
from scaler.object_storage.body import Body, Memory
from scaler.object_storage.exchange import ChunkRun
from scaler.object_storage.spilling import BodiesMoved, SpillBodies
from scaler.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class ReceivedMemory(Received):
    """Shared PutObject received with its descriptor. memory: contains exactly the parts that the message names."""

    memory: Memory | None = None


class SendToPeer(NamedTuple):
    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


class ExpirePeer(NamedTuple):
    """End a peer's session. text: reason; empty if a local processor exited."""

    peer: bytes
    text: str = ""


class PersistObject(NamedTuple):
    """Write an object to disk, then reply to the put of this peer, if any. key: name of the owner's key, or ""."""

    id: bytes
    body: Body
    key: str
    peer: bytes = b""
    request: int = 0


class ForgetPersisted(NamedTuple):
    ids: list[bytes]


class ObjectNotPersisted(NamedTuple):
    """An object could not be written to disk and is dropped. requests: (peer, request) of its puts."""

    id: bytes
    text: str
    requests: Sequence[tuple[bytes, int]]


class SendToScheduler(NamedTuple):
    message: Message


class RunCame(NamedTuple):
    """All chunks of a run have arrived. size_bytes: size of the whole object."""

    run: ChunkRun
    size_bytes: int


class RunFailed(NamedTuple):
    """A run could not be fetched. is_unreachable: this host cannot connect to the source."""

    run: ChunkRun
    is_unreachable: bool


class FetchFailed(NamedTuple):
    """This store cannot accept an object, for example because memory is full."""

    id: bytes
    text: str


class SchedulerOpened(NamedTuple):
    """The scheduler has no state of this host's store."""


class WriteToBackend(NamedTuple):
    """Write this object to the backend eventually. Answered by WrittenToBackend."""

    id: bytes
    body: Body


class ForgetInBackend(NamedTuple):
    ids: list[bytes]
    owner: bytes = b""


class WrittenToBackend(NamedTuple):
    """The backend contains these objects (id, size), so memory may drop them."""

    rows: list[tuple[bytes, int]]


StorageInput = (
    ListenerEvent
    | Message
    | ObjectNotPersisted
    | BodiesMoved
    | RunCame
    | RunFailed
    | FetchFailed
    | SchedulerOpened
    | WrittenToBackend
)
"""Inputs of the core. A message comes from the scheduler, for a host's store."""
StorageCommand = (
    SendToPeer
    | SendToScheduler
    | ExpirePeer
    | PersistObject
    | ForgetPersisted
    | WriteToBackend
    | ForgetInBackend
    | SpillBodies
    | ChunkRun
)
"""Commands of the core. `ChunkRun`: get its chunks; answered by RunCame, RunFailed, or FetchFailed."""
