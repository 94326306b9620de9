"""How an object is cut into chunks, which travel between stores on their own. Pure."""

from __future__ import annotations

MIN_CHUNK_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 8 * 1024 * 1024
USUAL_CHUNKS = 128
"""Chunks of an object, as far as the bounds above allow: a store passes a chunk on when all of it has come."""
LARGE_BYTES = 1024 * 1024
"""Of objects in the object storage, the scheduler is told those of this size and more."""


def chunk_bytes(size_bytes: int) -> int:
    """Return the size of the chunks of an object of this size; the last one may be smaller."""
    return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, -(-size_bytes // USUAL_CHUNKS)))


def chunk_count(size_bytes: int) -> int:
    """Return how many chunks an object of this size has; an empty one has one."""
    return max(1, -(-size_bytes // chunk_bytes(size_bytes)))
