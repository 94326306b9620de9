"""How an object is cut into pieces, which travel between stores on their own. Pure."""

from __future__ import annotations

MIN_PIECE_BYTES = 256 * 1024
MAX_PIECE_BYTES = 8 * 1024 * 1024
USUAL_PIECES = 64
"""Pieces of an object, as far as the bounds above allow: a store passes a piece on when all of it has come."""
LARGE_BYTES = 1024 * 1024
"""Of objects in the object storage, the scheduler is told those of this size and more."""


def piece_bytes(size_bytes: int) -> int:
    """Return the size of the pieces of an object of this size; the last one may be smaller."""
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, -(-size_bytes // USUAL_PIECES)))


def piece_count(size_bytes: int) -> int:
    """Return how many pieces an object of this size has; an empty one has one."""
    return max(1, -(-size_bytes // piece_bytes(size_bytes)))
