"""Chunks of objects, which host stores transfer separately. Pure."""

from __future__ import annotations

MIN_CHUNK_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 8 * 1024 * 1024
USUAL_CHUNKS = 128
"""Target number of chunks, within the bounds above. A store forwards each chunk once it is complete."""
LARGE_BYTES = 1024 * 1024
"""Minimum size of the objects in the object storage that are reported to the scheduler."""


def chunk_bytes(size_bytes: int) -> int:
    return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, -(-size_bytes // USUAL_CHUNKS)))


def chunk_count(size_bytes: int) -> int:
    """Return the number of chunks; an empty object has one."""
    return max(1, -(-size_bytes // chunk_bytes(size_bytes)))
