"""Splits batches that are too large for one message."""

from __future__ import annotations

from typing import TypeVar

from scaler.protocol.fields import MAX_ROWS
from scaler.protocol.messages import ROW_BYTES, SPLIT_BATCH_BYTES, Message

_Batch = TypeVar("_Batch", bound=Message)


def split(batch: _Batch, size_bytes: int = SPLIT_BATCH_BYTES, max_rows: int = MAX_ROWS) -> list[_Batch]:
    """Split a message with columns into several that fit the limits, in order.

    Never splits a task. Sizes are slightly overestimated. Submit, Run, and Finished are never too large, because their
    senders start a new message at SPLIT_BATCH_BYTES.
    """
    count, payloads = len(getattr(batch, "ids", ())), getattr(batch, "payloads", ())
    if ROW_BYTES * len(payloads) + sum(map(len, payloads)) <= size_bytes and count <= max_rows:
        return [batch]
    columns = {name: getattr(batch, name) for name in batch.__match_args__}
    sizes = [ROW_BYTES + len(payload) for payload in payloads]
    parts = []
    start = used = 0
    for row, size in enumerate(sizes or [0] * count):
        if row > start and (used + size > size_bytes or row - start == max_rows):
            parts.append(slice(start, row))
            start, used = row, 0
        used += size
    parts.append(slice(start, count))
    make = type(batch)
    return [make(*(each[rows] if isinstance(each, list) else each for each in columns.values())) for rows in parts]
