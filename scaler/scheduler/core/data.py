"""Interfaces of the part that moves objects between stores, which the shell passes to the core. Pure.

`scaler.scheduler.data` has the part. Attributes of type Any are for views of its data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scaler.protocol.messages import Message, StoreDetails
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.state import StoreRecord, Worker

OBJECT_STORAGE = 0
"""Number of the object storage; host stores have numbers from 1 on."""


@dataclass(slots=True, eq=False)
class Copies:
    """An object's size (0: unknown), the stores with a complete copy, and the function that produced it, if known."""

    size_bytes: int
    holders: set[int] = field(default_factory=set)
    function: str = ""


class ObjectDirectory(Protocol):
    is_used: bool
    """Whether any host has a store. If not, the object storage has everything, and only large objects are here."""

    def __len__(self) -> int: ...
    def find(self, identifier: bytes) -> Copies | None: ...
    def largest(self, most: int, may_see: Callable[[bytes], bool] = ...) -> list[tuple[bytes, Copies]]: ...
    def lost_with(self, identifier: bytes) -> str:
        """Return the host that was lost with the only copy of an object, or an empty string."""


class ObjectTracker(Protocol):
    """Objects at stores, and their transfers."""

    now: float
    next_at: float
    """Time of the next `Stores.tick`."""
    mail: Any
    unsettled: Any
    """Not empty if `take` must be called."""
    persisted: Any
    links: Any
    moved: Any
    transfers: Any
    unreachable: Any
    backend: int | None

    @property
    def directory(self) -> ObjectDirectory: ...
    def persist(self, identifier: bytes) -> None:
        """Keep a copy of a result in the object storage."""

    def stored(self, identifier: bytes, size_bytes: int, store: int, function: str = "") -> None:
        """Record a stored task result."""

    def restored(self, identifier: bytes) -> None:
        """Record that a client put an object into the object storage again."""

    def forget(self, identifiers: list[bytes]) -> None: ...
    def take(self) -> Sequence[tuple[int, Message]]:
        """Return messages to stores."""


class Stores(Protocol):
    """Registry of stores."""

    @property
    def tracker(self) -> ObjectTracker: ...
    def bound(self, state: Any, outbox: Any, config: Rules) -> None:
        """Called once, before the first step."""

    def joined(self, peer: bytes, name: str, details: StoreDetails, now: float, *, is_back: bool) -> StoreRecord: ...
    def left(self, record: StoreRecord) -> None: ...
    def use(self, worker: Worker, store: bytes, now: float) -> None: ...
    def worker_left(self, worker: Worker) -> None: ...
    def storage_connected(self) -> None: ...
    def received(self, record: StoreRecord, message: Message) -> bool: ...
    def said(self, store: int, message: Message) -> bool: ...
    def forget_owner(self, owner: bytes) -> None: ...
    def tick(self, now: float) -> None: ...
