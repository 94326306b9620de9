"""Columns on the wire: ids without gaps, integers as little-endian arrays, ragged lists as counts and a flat list.

The same rules hold in both directions, and a broken one is a ValueError; whose fault it is, the caller knows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from scaler.errors import LimitError
from scaler.ids import ID_BYTES, MAX_ATTEMPT
from scaler.protocol.messages import Outcome

MAX_ENTRIES = 65_536
"""Most groups, functions, units, capabilities or texts in one list: each costs far more memory than its bytes."""

MAX_U32 = 0xFFFF_FFFF
MAX_U64 = 0xFFFF_FFFF_FFFF_FFFF

ANY_OUTCOME = bytes(Outcome)
FINAL_OUTCOMES = bytes(set(Outcome) - {Outcome.EXCEPTION_TO_RETRY, Outcome.NOT_STARTED})
"""Outcomes that a client may be told."""


def join_ids(ids: Sequence[bytes]) -> bytes:
    """Concatenate ids of 16 bytes each."""
    joined = b"".join(ids)
    if len(joined) != ID_BYTES * len(ids):
        raise ValueError(f"ids have {ID_BYTES} bytes each")
    return joined


def split_ids(data: bytes) -> list[bytes]:
    """Take concatenated ids apart."""
    count, rest = divmod(len(data), ID_BYTES)
    if rest:
        raise ValueError(f"{len(data)} bytes are not a whole number of {ID_BYTES}-byte ids")
    if count == 1:
        return [data]
    return list(struct.unpack("16s" * count, data))


def check_id(identifier: bytes) -> bytes:
    """Return the id; it has 16 bytes."""
    if len(identifier) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(identifier)}")
    return identifier


def check_optional_id(identifier: bytes) -> bytes:
    """Return the id; it has 16 bytes or none."""
    return check_id(identifier) if identifier else identifier


def check_count(what: str, found: int, expected: int) -> None:
    """Make sure that a column has one entry for each of the `expected` ids."""
    if found != expected:
        raise ValueError(f"{found} {what} do not fit {expected} ids")


def check_entries(what: str, found: int) -> int:
    """Return the length of a list that is being read; it is within MAX_ENTRIES."""
    if found > MAX_ENTRIES:
        raise ValueError(f"{found} {what} are more than MAX_ENTRIES ({MAX_ENTRIES})")
    return found


def limit_entries(what: str, found: int) -> int:
    """Return the length of a list that is being written. Raises LimitError beyond MAX_ENTRIES."""
    if found > MAX_ENTRIES:
        raise LimitError(f"{found} {what} are more than MAX_ENTRIES ({MAX_ENTRIES}) in one message")
    return found


def pack_attempts(attempts: Sequence[int], count: int) -> bytes:
    """Pack attempt numbers (1 to 65534) of `count` tasks as u16."""
    check_count("attempts", len(attempts), count)
    _check_attempts(attempts)
    return struct.pack(f"<{count}H", *attempts)


def unpack_attempts(data: bytes, count: int) -> list[int]:
    """Unpack attempt numbers (1 to 65534) of `count` tasks."""
    attempts = _unpack("H", 2, "attempts", data, count)
    _check_attempts(attempts)
    return attempts


def pack_outcomes(outcomes: Sequence[int], count: int, allowed: bytes) -> bytes:
    """Pack outcomes of `count` tasks, each of them in `allowed`, as u8."""
    return _check_outcomes(bytes(outcomes), count, allowed)


def unpack_outcomes(data: bytes, count: int, allowed: bytes) -> list[int]:
    """Unpack outcomes of `count` tasks, each of them in `allowed`."""
    return list(_check_outcomes(data, count, allowed))


def pack_flags(flags: Sequence[bool], count: int) -> bytes:
    """Pack truth values of `count` tasks as u8."""
    check_count("flags", len(flags), count)
    return bytes(map(bool, flags))


def unpack_flags(data: bytes, count: int) -> list[bool]:
    """Unpack truth values of `count` tasks."""
    check_count("flags", len(data), count)
    if data.translate(None, b"\x00\x01"):
        raise ValueError("a flag is neither 0 nor 1")
    return [byte == 1 for byte in data]


def pack_durations(durations: Sequence[int], count: int) -> bytes:
    """Pack microseconds of `count` tasks as u32; anything longer becomes the largest one."""
    check_count("durations", len(durations), count)
    return _pack_saturating("I", MAX_U32, durations)


def unpack_durations(data: bytes, count: int) -> list[int]:
    """Unpack microseconds of `count` tasks."""
    return _unpack("I", 4, "durations", data, count)


def pack_profile(values: Sequence[int], count: int) -> bytes:
    """Pack a profile column of `count` tasks as u64, or nothing."""
    if not values:
        return b""
    check_count("entries of a profile", len(values), count)
    return _pack_saturating("Q", MAX_U64, values)


def unpack_profile(data: bytes, count: int) -> list[int]:
    """Unpack a profile column of `count` tasks, or nothing."""
    return _unpack("Q", 8, "entries of a profile", data, count) if data else []


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """Pack sizes in bytes as u64."""
    try:
        return struct.pack(f"<{len(sizes)}Q", *sizes)
    except struct.error as error:
        raise ValueError(f"a size does not fit in 64 bits: {error}") from None


def unpack_sizes(data: bytes) -> list[int]:
    """Unpack sizes in bytes."""
    return _unpack("Q", 8, "sizes", data, len(data) // 8)


def pack_counts(rows: Sequence[Sequence[bytes]], count: int) -> bytes:
    """Pack how many entries the row of each of `count` tasks has, as u32."""
    check_count("rows", len(rows), count)
    return struct.pack(f"<{count}I", *map(len, rows))


def flatten(rows: Iterable[Iterable[bytes]]) -> list[bytes]:
    """Put all rows behind each other."""
    return list(chain.from_iterable(rows))


def unpack_counts(data: bytes, count: int) -> list[int]:
    """Unpack how many entries the row of each of `count` tasks has; nothing when no task has any."""
    return _unpack("I", 4, "counts", data, count) if data else []


def check_rows(what: str, counts: Sequence[int], entries: int) -> None:
    """Make sure that the counts of a ragged column add up to its entries."""
    if sum(counts) != entries:
        raise ValueError(f"{entries} {what} are not the {sum(counts)} that the tasks have")


def unflatten(counts: Sequence[int], flat: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Cut a flat list into rows; its length is the sum of the counts."""
    entries = iter(flat)
    return [tuple(islice(entries, count)) for count in counts]


def _check_attempts(attempts: Sequence[int]) -> None:
    if attempts and not (min(attempts) >= 1 and max(attempts) <= MAX_ATTEMPT):
        raise ValueError(f"an attempt is not within 1..{MAX_ATTEMPT}")


def _check_outcomes(data: bytes, count: int, allowed: bytes) -> bytes:
    check_count("outcomes", len(data), count)
    if unknown := data.translate(None, allowed):
        raise ValueError(f"outcome {unknown[0]} is not allowed here")
    return data


def _pack_saturating(code: str, largest: int, values: Sequence[int]) -> bytes:
    layout = f"<{len(values)}{code}"
    try:
        return struct.pack(layout, *values)
    except struct.error:
        # Rare: a clock jumped, or a task ran for more than an hour.
        if min(values) < 0:
            raise ValueError(f"a column holds {min(values)}, but nothing in it may be negative") from None
        return struct.pack(layout, *(min(value, largest) for value in values))


def _unpack(code: str, size: int, what: str, data: bytes, count: int) -> list[Any]:
    if len(data) != size * count:
        raise ValueError(f"{len(data)} bytes of {what} do not fit {count} entries of {size} bytes")
    return list(struct.unpack(f"<{count}{code}", data))
