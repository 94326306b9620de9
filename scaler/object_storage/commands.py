"""Inputs (in the past tense) and commands of the object storage's core. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaler.net.connection import ListenerEvent, Received
from scaler.object_storage.body import Body, Memory
from scaler.object_storage.spilling import BodiesMoved, SpillBodies
from scaler.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class ReceivedMemory(Received):
    """a shared PutObject whose descriptor has come: memory has the very parts that the message names."""

    memory: Memory | None = None


class OutboxMeasured(NamedTuple):
    """how much a peer has not acknowledged."""

    peer: bytes
    size_bytes: int


class SendToPeer(NamedTuple):
    """send this to a peer, with the descriptor of the memory."""

    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


class MeasureOutbox(NamedTuple):
    """step again with an OutboxMeasured of this peer, for which bodies wait."""

    peer: bytes


class ExpirePeer(NamedTuple):
    """end the session of a peer. text: why; empty for a processor of this host that has ended."""

    peer: bytes
    text: str = ""


class ReportIgnored(NamedTuple):
    """log how many ids a peer wanted to be forgotten that are not its own."""

    peer: bytes
    ids: int


class PersistObject(NamedTuple):
    """Keep an object on disk, then answer its putter's request. key: name of the owner's key, or ""."""

    id: bytes
    body: Body
    putter: bytes
    key: str
    request: int


class ForgetPersisted(NamedTuple):
    """remove these objects from the disk, as far as they are there."""

    ids: list[bytes]


class ObjectNotPersisted(NamedTuple):
    """an object could not be kept on disk, and is dropped. requests: those of its putters, with the peers."""

    id: bytes
    text: str
    requests: Sequence[tuple[bytes, int]]


class FetchObject(NamedTuple):
    """get this object from another store; answered with ObjectFetched or ObjectNotFetched."""

    id: bytes


class StopFetching(NamedTuple):
    """no reader waits for this object any more."""

    id: bytes


class ReportDropped(NamedTuple):
    """tell the scheduler that copies of these objects are not here any more."""

    ids: list[bytes]


class ReportPut(NamedTuple):
    """tell the scheduler that this object was put here."""

    id: bytes
    size_bytes: int


class ObjectFetched(NamedTuple):
    """a copy of an object has come from other stores."""

    id: bytes
    body: Body


class ObjectNotFetched(NamedTuple):
    """no other store has this object, or none can give it."""

    id: bytes
    text: str


class WriteToBackend(NamedTuple):
    """write this object to the backend, sooner or later; answered with WrittenToBackend."""

    id: bytes
    body: Body


class ForgetInBackend(NamedTuple):
    """delete these objects, and all of this owner if one is given, from the backend."""

    ids: list[bytes]
    owner: bytes = b""


class WrittenToBackend(NamedTuple):
    """the backend has these objects, so that memory need not keep them."""

    ids: list[bytes]


class DiskChanged(NamedTuple):
    """new objects cannot be kept on disk, and are refused for this reason; empty: they can again."""

    failure: str


StorageInput = (
    ListenerEvent
    | OutboxMeasured
    | ObjectNotPersisted
    | DiskChanged
    | BodiesMoved
    | ObjectFetched
    | ObjectNotFetched
    | WrittenToBackend
)
ToExchange = FetchObject | StopFetching | ReportDropped | ReportPut
StorageCommand = (
    SendToPeer
    | MeasureOutbox
    | ExpirePeer
    | ReportIgnored
    | PersistObject
    | ForgetPersisted
    | WriteToBackend
    | ForgetInBackend
    | SpillBodies
    | ToExchange
)
