"""The format of a journal: segments of checksummed records, and the rules for replay after a crash. Pure.

A segment is a header followed by records. A record contains its sequence number, which continues across segments, and
the number up to which all records were on disk (confirmed) when it was written. After a power loss, unconfirmed records
may be missing, but a missing confirmed record means damage. The last confirmed number is also stored in a file: see
`JournalDirectory.confirm`. Each record begins with a random mark, so that user data cannot be mistaken for a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from scaler._version import __version__
from scaler.errors import UsageError

VERSION = 2
"""Version of the segment layout. Every header has this size and ends with its checksum."""
MARK_BYTES = 8
_MAGIC = b"scaler journal\n\x00"
_HEADER = struct.Struct("<16sII8s28sI")
HEADER_BYTES = _HEADER.size
_WITNESS = struct.Struct("<QI")
WITNESS_BYTES = _WITNESS.size
_HEAD = struct.Struct("<8sIIQQ")
HEAD_BYTES = _HEAD.size
_SUMMED = 12
"""Offset in the head at which the data covered by the checksum begins. The body follows."""


class JournalError(UsageError):
    """A journal is unusable. The message names the file and explains how to proceed."""


class Record(NamedTuple):
    """One record, at bytes `start` to `end` of its segment. durable: number up to which all records were on disk."""

    sequence: int
    durable: int
    body: bytes
    start: int
    end: int


def unreadable(error: Exception) -> JournalError:
    return JournalError(
        f"scaler {__version__} cannot read a record of the journal in state_directory: {error}. Start the version that "
        "wrote it, named in the first 64 bytes of each file, or move the directory away to start with an empty one, "
        "which loses undelivered tasks and results"
    )


def pack_header(mark: bytes, content: int = 0) -> bytes:
    head = _HEADER.pack(_MAGIC, VERSION, content, mark, __version__.encode()[:28], 0)[:-4]
    return head + crc32(head).to_bytes(4, "little")


def pack_witness(confirmed: int) -> bytes:
    return _WITNESS.pack(confirmed, crc32(_WITNESS.pack(confirmed, 0)))


def read_witness(data: bytes) -> int:
    if len(data) != WITNESS_BYTES:
        return 0
    confirmed = int(_WITNESS.unpack(data)[0])
    return confirmed if pack_witness(confirmed) == data else 0


def pack(mark: bytes, sequence: int, durable: int, body: bytes) -> bytes:
    head = _HEAD.pack(mark, 0, len(body), sequence, durable)
    checksum = crc32(body, crc32(head[_SUMMED:]))
    return b"".join((head[:MARK_BYTES], checksum.to_bytes(4, "little"), head[_SUMMED:], body))


def read_mark(name: str, data: bytes, content: int = 0) -> bytes | None:
    head = data[:HEADER_BYTES]
    if len(head) < HEADER_BYTES or not any(head):
        return None
    magic, version, of, mark, writer, checksum = _HEADER.unpack(head)
    if magic != _MAGIC or checksum != crc32(head[:-4]):
        raise damaged(name, 0)
    if (version, of) != (VERSION, content):
        text = writer.rstrip(b"\0").decode(errors="replace")
        raise JournalError(
            f"{name} was written by scaler {text} (format {version}.{of}); this is scaler {__version__}, which reads "
            f"format {VERSION}.{content}. Start the version that wrote it until its tasks have ended and its clients "
            "have their results, or move its directory away to start with an empty one, which loses undelivered "
            "tasks and results"
        )
    return bytes(mark)


def records(data: bytes, mark: bytes) -> Iterator[Record]:
    """Yield every complete record of a segment, even after invalid bytes."""
    at, size = HEADER_BYTES, len(data)
    while at + HEAD_BYTES <= size:
        record = _record_at(data, at, mark)
        if record is None:
            at = data.find(mark, at + 1) % (size + 1)  # the end of the data if no mark follows
        else:
            yield record
            at = record.end


def _record_at(data: bytes, at: int, mark: bytes) -> Record | None:
    found, checksum, length, sequence, durable = _HEAD.unpack_from(data, at)
    body_at = at + HEAD_BYTES
    end = body_at + length
    if found != mark or end > len(data):
        return None
    body = data[body_at:end]
    if crc32(body, crc32(data[at + _SUMMED : body_at])) != checksum:
        return None
    return Record(sequence, durable, body, at, end)


class Replay:
    """Decides which records of consecutive segments are valid. last: number of the last valid record."""

    def __init__(self, content: int = 0) -> None:
        self.content = content
        self.last = 0
        self.end_name = ""
        self.end = 0
        """Segment and end offset of the last valid record. All bytes after it must be removed."""

    def read(self, name: str, data: bytes) -> Iterator[Record]:
        """Yield the valid records of the next segment. Raises JournalError if a confirmed record is missing. No record
        after a gap is valid, because the next segment repeats all unconfirmed records."""
        mark, has_gap = read_mark(name, data, self.content), False
        for record in records(data, mark) if mark else ():
            if not has_gap and record.sequence <= self.last + 1:
                self.end_name, self.end = name, record.end
                if record.sequence > self.last:  # otherwise, it is a copy written after a disk failure
                    self.last = record.sequence
                    yield record
            elif record.durable > self.last:
                raise damaged(self.end_name or name, self.end)
            else:
                has_gap = True


def damaged(name: str, at: int) -> JournalError:
    return JournalError(
        f"{name} is damaged at byte {at}, within data that the disk had confirmed. Restore it from a backup, or "
        "move its directory away to start with an empty one, which loses undelivered tasks and results"
    )
