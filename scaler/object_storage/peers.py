"""The records of an object storage: objects, unfinished uploads, and peers with what they wait for. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scaler.ids import cache_owner
from scaler.net.identity import Identity
from scaler.object_storage.body import Body
from scaler.protocol.messages import GetObject, Role


@dataclass(slots=True, eq=False)
class StoredObject:
    """An id that stands for a whole object. putter: the peer that put or linked it."""

    body: Body
    putter: bytes


@dataclass(slots=True, eq=False)
class UnfinishedUpload:
    """An object of one peer that is not whole yet. All of its size counts as used from its first frame on."""

    parts: list[int]
    size_bytes: int
    frames: list[memoryview] = field(default_factory=list)
    received_bytes: int = 0
    account: str | bytes = b""
    """The key of the putter; without keys, the putter itself."""
    reserved_bytes: int = 0
    """Memory that is reserved for what is still to come."""
    moved_at: float = 0.0
    """When its putter last sent something of it, on the core's own clock."""


@dataclass(slots=True, eq=False)
class WaitingGet:
    """A get of an object that is not whole yet."""

    peer: StoragePeer
    message: GetObject
    deadline: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class Sending:
    """An object on its way to one reader."""

    message: GetObject
    parts: list[int]
    body: Body | None
    """None: some chunks of it, of a body that is not whole."""
    size_bytes: int
    """Of all that is wanted."""
    frames: list[memoryview] | None = None
    """Those of the range that is wanted; None: all of the body."""
    next_frame: int = 0
    sent_bytes: int = 0


@dataclass(slots=True, eq=False)
class StoragePeer:
    """A session. last_seen: on the core's clock. unacknowledged_bytes: upper limit of bytes on their way."""

    id: bytes
    role: Role
    identity: Identity
    last_seen: float
    uploads: dict[bytes, UnfinishedUpload] = field(default_factory=dict)
    waiting: dict[WaitingGet, None] = field(default_factory=dict)
    sending: deque[Sending] = field(default_factory=deque)
    unacknowledged_bytes: int = 0
    is_connected: bool = True
    has_key: bool = field(init=False)
    cache_owner: bytes = field(init=False)
    """Owns the cached results that it may put; empty for peers without a key, and for others than clients."""

    account: str | bytes = field(init=False)
    """For whom uploads reserve memory: peers with one key are one user."""

    def __post_init__(self) -> None:
        self.has_key = self.identity.has_key
        self.account = self.identity.key if self.has_key else self.id
        self.cache_owner = cache_owner(self.identity.key) if self.has_key and self.role is Role.CLIENT else b""


@dataclass(slots=True, eq=False)
class UnfinishedObject:
    """An id that is not whole: the peers that put it, and the gets that wait for it in the order of their arrival."""

    putters: dict[StoragePeer, None] = field(default_factory=dict)
    gets: dict[WaitingGet, None] = field(default_factory=dict)
