"""Decides which bodies to spill to disk, and when: the least recently used, before memory is full. Pure.

Invariants: a body is in memory, being written, or on disk; bodies in memory are ordered by last use; disk
space counts from the start of a write until the last body of its segment is dropped."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from scaler.config.servers import ObjectStorageServerConfig
from scaler.object_storage.body import SEGMENT_BYTES, Body, Segment

SPILL_FROM = 0.8
"""Share of the memory limit above which bodies are spilled, so that producers rarely wait."""
RETRY_SECONDS = 5.0


class SpillBodies(NamedTuple):
    bodies: list[Body]
    frames: list[list[memoryview]]


class BodiesMoved(NamedTuple):
    """Input: these bodies were written. frames: mapped from disk, cut as before. failure: reason for a failed write."""

    bodies: list[Body]
    frames: Sequence[list[memoryview]]
    failure: str = ""


class StorageLimits(NamedTuple):
    """Limits in bytes; -1: unlimited. memory_bytes: memory for all objects. object_bytes: size of one object.
    cache_bytes: share of the memory for cached results. spill_bytes: disk space for spilled objects; 0: none.
    memory_name, spill_name: names of the settings, for errors."""

    memory_bytes: int
    object_bytes: int = -1
    cache_bytes: int = ObjectStorageServerConfig.cache_limit_bytes
    spill_bytes: int = 0
    memory_name: str = "memory_limit_bytes"
    spill_name: str = "spill_limit_bytes"


def limit_of(size_bytes: int) -> float:
    return math.inf if size_bytes < 0 else size_bytes


class Spilling:
    """Bodies in memory by last use, and segments on disk."""

    def __init__(self, limits: StorageLimits) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_of(limits.spill_bytes)
        self._limit_name = limits.spill_name
        self._in_memory: OrderedDict[Body, None] = OrderedDict()
        self._moving: Segment | None = None
        self._retry_at = -math.inf
        self._failure = ""

    @property
    def is_moving(self) -> bool:
        return self._moving is not None

    @property
    def why_not(self) -> str:
        """Why nothing is spilled, for the text of a refusal. Empty if spilling works or is disabled."""
        if self._failure:
            return f"; the disk for spilled objects is full or failing: {self._failure}"
        if 0 < self._limit_bytes <= self.used_bytes + SEGMENT_BYTES:
            return f"; {self.used_bytes} B on disk are near {self._limit_name} = {self._limit_bytes}"
        return ""

    @property
    def may_free_memory(self) -> bool:
        body = next(iter(self._in_memory), None)
        fits = body is not None and self.used_bytes + body.size_bytes <= self._limit_bytes
        return self.is_moving or (fits and not self._failure)

    def use(self, body: Body) -> None:
        if self._limit_bytes and body.segment is None:
            self._in_memory[body] = None
            self._in_memory.move_to_end(body)

    def drop(self, body: Body) -> None:
        self._in_memory.pop(body, None)
        if body.segment is not None:
            self._leave(body.segment)
            body.segment = None

    def _leave(self, segment: Segment) -> None:
        segment.bodies -= 1
        if not segment.bodies:
            self.used_bytes -= segment.size_bytes

    def next_batch(self, surplus: float, now: float) -> SpillBodies | None:
        """Return the next batch to write. surplus: bytes to move out of memory."""
        surplus = min(surplus, SEGMENT_BYTES)
        if surplus <= 0 or self._moving is not None or now < self._retry_at:
            return None
        batch: list[Body] = []
        size = 0
        for body in self._in_memory:
            if self.used_bytes + size + body.size_bytes > self._limit_bytes:
                break
            batch.append(body)
            size += body.size_bytes
            if size >= surplus:
                break
        if not size:
            return None
        self._moving = segment = Segment(size, len(batch))
        self.used_bytes += size
        for body in batch:
            del self._in_memory[body]
            body.segment = segment
        return SpillBodies(batch, [list(body.all_frames()) for body in batch])

    def moved(self, message: BodiesMoved, now: float) -> list[Body]:
        self._moving = None
        self._failure = message.failure
        living = [body for body in message.bodies if not body.is_dropped]
        if message.failure:
            self._retry_at = now + RETRY_SECONDS
            for body in living:
                assert body.segment is not None, "it was being written"
                self._leave(body.segment)
                body.segment = None
            for body in reversed(living):
                self._in_memory[body] = None
                self._in_memory.move_to_end(body, last=False)
            return []
        for body, frames in zip(message.bodies, message.frames, strict=True):
            if not body.is_dropped:
                body.frames, body.memory, body.is_on_disk = frames, None, True
        return living
