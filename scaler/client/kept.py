"""Copies of a client's uploads in use, which a restarted object storage needs again.

Kept as shared-memory descriptors or bytes. Beyond a limit, the oldest move to disk (`object_storage.mapped_files`).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from scaler.host import default_memory_limit_bytes
from scaler.object_storage.body import SEGMENT_BYTES
from scaler.object_storage.layout import views_of
from scaler.object_storage.mapped_files import write_segment
from scaler.protocol.session import Buffer

MAX_KEPT_DESCRIPTORS = 1_000
"""Maximum number of shared-memory descriptors in one client."""
KEPT_AFTER_MOVE = 0.75
"""When a limit is exceeded, uploads move to disk until this share of the limit is left."""

_log = logging.getLogger(__name__)


class SharedParts(Protocol):
    def parts(self) -> list[memoryview]: ...


class Kept:
    """The parts of one upload, freed with this object."""

    __slots__ = ("__weakref__", "_freed", "memory", "parts", "size_bytes")

    def __init__(self, parts: Sequence[Buffer], memory: SharedParts | None, freed: deque[tuple[int, bool]]) -> None:
        self._freed = freed
        self.memory = memory
        self.parts: Sequence[Buffer] | None = parts if memory is None else None
        self.size_bytes = sum(len(part) for part in parts)

    def __del__(self) -> None:
        if self.size_bytes:
            self._freed.append((self.size_bytes, self.memory is not None))

    def read(self) -> Sequence[Buffer] | None:
        """Return the parts, or None if they were lost to a full disk. Raises OSError."""
        return self.memory.parts() if self.memory is not None else self.parts


class Keeper:
    """Keeps the uploads of one client. Belongs to the running loop."""

    def __init__(self) -> None:
        self._freed: deque[tuple[int, bool]] = deque()
        self._in_memory: deque[weakref.ref[Kept]] = deque()  # oldest first; some are dead
        self._used_bytes = 0
        self._descriptors = 0
        self._count = 0
        self._moving: asyncio.Task[None] | None = None

    @cached_property
    def _limit_bytes(self) -> int:
        """An eighth of the memory available to the process. Computed late: reading limits takes milliseconds."""
        return default_memory_limit_bytes() // 4

    def keep(self, parts: Sequence[Buffer], memory: SharedParts | None) -> Kept:
        """Keep immutable parts, or the shared memory that has a copy of them."""
        kept = Kept(parts, memory, self._freed)
        self._in_memory.append(weakref.ref(kept))
        self._used_bytes += kept.size_bytes
        self._descriptors += memory is not None
        self._count += 1
        self._settle()
        if self._is_beyond(1.0) and self._moving is None:
            self._moving = asyncio.get_running_loop().create_task(self._move())
        return kept

    def _settle(self) -> None:
        while self._freed:
            size_bytes, has_descriptor = self._freed.popleft()
            self._used_bytes -= size_bytes
            self._descriptors -= has_descriptor
            self._count -= 1
        if len(self._in_memory) > 2 * self._count + 100:
            self._in_memory = deque(each for each in self._in_memory if each() is not None)

    def _is_beyond(self, share: float) -> bool:
        return self._used_bytes > share * self._limit_bytes or self._descriptors > share * MAX_KEPT_DESCRIPTORS

    async def _move(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._in_memory and self._is_beyond(KEPT_AFTER_MOVE):
                batch: list[Kept] = []
                while self._in_memory and sum(each.size_bytes for each in batch) < SEGMENT_BYTES:
                    kept = self._in_memory.popleft()()
                    if kept is not None:
                        batch.append(kept)
                    del kept
                if batch:
                    await loop.run_in_executor(None, self._move_batch, batch)
                del batch
                self._settle()
        finally:
            self._moving = None

    def _move_batch(self, batch: list[Kept]) -> None:
        found: list[list[memoryview]] | None = None
        try:
            contents = [views_of(kept.read() or ()) for kept in batch]
            found = write_segment(tempfile.gettempdir(), contents)
        except OSError as error:
            _log.warning(
                "scaler: large arguments would be lost if the object storage were restarted: count=%d, because the "
                "client keeps %d B of them in memory and cannot write more to %s: %s",
                len(batch), self._limit_bytes, tempfile.gettempdir(), error,
            )  # fmt: skip
        for index, kept in enumerate(batch):
            # Counts as nothing from now on, here and when freed.
            self._freed.append((kept.size_bytes, kept.memory is not None))
            kept.parts = found[index] if found is not None else None
            kept.memory = None
            kept.size_bytes = 0
