"""Cuts messages that grew too large into several, without ever cutting a task in two.

The parts are to be sent in their order. What fits stays as it is. Sizes are estimates, a little above the truth.
Submit, Run and Finished need no cutting: who makes them begins a new one when the last has grown to SPLIT_BATCH_BYTES.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, assert_never

from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    Cancel,
    Done,
    ForgetFunctions,
    ForgetObjects,
    Pin,
    Recall,
    Release,
    Returned,
    Suspended,
)

IDS_PER_MESSAGE = 32 * 1024
"""Most ids in one message of ids alone: well within MAX_CONTROL_BYTES, and a short turn for whoever receives it."""

_ROW_BYTES = 64
"""A task's id and small integers, the pointer to its payload, and the padding of that to whole words."""

_OfIds = TypeVar("_OfIds", bound=Cancel | Pin | Release | ForgetFunctions | ForgetObjects)
_OfAttempts = TypeVar("_OfAttempts", Recall, Returned, Suspended)


def split_done(done: Done, size_bytes: int = SPLIT_BATCH_BYTES) -> list[Done]:
    """Cut a Done."""
    ranges = _ranges(done.payloads, size_bytes)
    if len(ranges) == 1:
        return [done]
    return [
        Done(
            done.ids[rows],
            done.attempts[rows],
            done.outcomes[rows],
            done.payloads[rows],
            done.duration_us[rows],
            done.cpu_us[rows],
            done.peak_bytes[rows],
        )
        for rows in ranges
    ]


def split_ids(message: _OfIds, most: int = IDS_PER_MESSAGE) -> list[_OfIds]:
    """Cut a message of nothing but ids; each part has at most `most` of them."""
    if len(message.ids) <= most:
        return [message]
    make = type(message)
    return [make(message.ids[start : start + most]) for start in range(0, len(message.ids), most)]


def split_attempts(message: _OfAttempts, most: int = IDS_PER_MESSAGE) -> list[_OfAttempts]:
    """Cut a message about attempts, without their payloads; each part has at most `most` of them."""
    if len(message.ids) <= most:
        return [message]
    ranges = [slice(start, start + most) for start in range(0, len(message.ids), most)]
    match message:
        case Recall(ids, attempts, kill):
            return [Recall(ids[rows], attempts[rows], kill) for rows in ranges]
        case Returned(ids, attempts, started):
            return [Returned(ids[rows], attempts[rows], started[rows]) for rows in ranges]
        case Suspended(ids, attempts, suspended):
            return [Suspended(ids[rows], attempts[rows], suspended[rows]) for rows in ranges]
        case _:
            assert_never(message)


def _ranges(payloads: Sequence[bytes], limit: int) -> list[slice]:
    """Return the rows of each part, of one part at least."""
    count = len(payloads)
    if sum(map(len, payloads)) + _ROW_BYTES * count <= limit:
        return [slice(0, count)]
    ranges = []
    start = used = 0
    for index, payload in enumerate(payloads):
        size = len(payload) + _ROW_BYTES
        if used + size > limit and index > start:
            ranges.append(slice(start, index))
            start, used = index, 0
        used += size
    ranges.append(slice(start, count))
    return ranges
