"""The object storage as a client uses it. `object_storage.client.StorageClient`, which needs sockets, is one."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from scaler.protocol.session import Buffer


class SharedParts(Protocol):
    """The parts of an object in memory that its readers share."""

    def parts(self) -> list[memoryview]: ...


class Storage(Protocol):
    """A connection to object storage. Belongs to the client's loop."""

    address: str

    @property
    def connected(self) -> bool: ...

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> Awaitable[SharedParts | None]: ...

    def get(self, object_id: bytes, deadline_seconds: float) -> Awaitable[list[memoryview]]: ...

    def close(self) -> None: ...
