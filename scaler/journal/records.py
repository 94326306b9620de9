"""The bytes of a journal: segments of checksummed records, and which of them count after a crash. Pure.

A segment is a header and records. A record has a sequence number, which goes on over segments, and says up to which
number the disk had confirmed all records when it was made. That decides what a gap means: records that the disk had not
confirmed may be missing after a power loss, and no peer was told anything because of them; a confirmed record that is
missing is damage. The mark at the beginning of each record is random, so that bytes of a user inside a damaged record
can never be taken for a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from scaler.errors import UsageError

VERSION = 1
MARK_BYTES = 8
_MAGIC = b"scaler journal\n\x00"
_HEADER = struct.Struct("<16sI8sI")
HEADER_BYTES = _HEADER.size
_HEAD = struct.Struct("<8sIIQQ")
HEAD_BYTES = _HEAD.size
_SUMMED = 12
"""The checksum covers what stands behind it in the head, and the body."""


class JournalError(UsageError):
    """A journal cannot be used: the text names the file and says what to do."""


class Record(NamedTuple):
    """One record: bytes `start` to `end` of its segment. durable: the disk had all records up to this number."""

    sequence: int
    durable: int
    body: bytes
    start: int
    end: int


def pack_header(mark: bytes) -> bytes:
    """Return the first bytes of a segment."""
    start = _MAGIC + VERSION.to_bytes(4, "little") + mark
    return start + crc32(start).to_bytes(4, "little")


def pack(mark: bytes, sequence: int, durable: int, body: bytes) -> bytes:
    """Return the bytes of a record."""
    head = _HEAD.pack(mark, 0, len(body), sequence, durable)
    checksum = crc32(body, crc32(head[_SUMMED:]))
    return b"".join((head[:MARK_BYTES], checksum.to_bytes(4, "little"), head[_SUMMED:], body))


def read_mark(name: str, data: bytes) -> bytes | None:
    """Return the mark of a segment, None when its header was never written.

    Raises JournalError for the header of a newer version, and for a damaged one.
    """
    head = data[:HEADER_BYTES]
    if len(head) < HEADER_BYTES or not any(head):
        return None
    magic, version, mark, checksum = _HEADER.unpack(head)
    if magic == _MAGIC and checksum == crc32(head[:-4]):
        if version > VERSION:
            raise JournalError(
                f"{name} was written by a newer version of Scaler (format {version}, this one reads {VERSION}): start "
                "that version, or use another state_directory"
            )
        return bytes(mark)
    raise damaged(name, 0)


def records(data: bytes, mark: bytes) -> Iterator[Record]:
    """Yield every record of a segment that is whole, also those behind bytes that are none."""
    at, size = HEADER_BYTES, len(data)
    while at + HEAD_BYTES <= size:
        record = _record_at(data, at, mark)
        if record is None:
            at = data.find(mark, at + 1) % (size + 1)  # its end when there is none
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
    """Decides which records of consecutive segments count. last: the number of the last one that does."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.end_name = ""
        self.end = 0
        """The segment of the last record that counts, and where it ends there. Later bytes are to be removed."""

    def read(self, name: str, data: bytes) -> Iterator[Record]:
        """Yield the records of the next segment that count. Raises JournalError when a confirmed one is missing.

        Nothing in a segment counts behind a record that is missing. What the disk failed to confirm is in the next
        segment once more, which goes on from there.
        """
        mark, has_gap = read_mark(name, data), False
        for record in records(data, mark) if mark else ():
            if not has_gap and record.sequence <= self.last + 1:
                self.end_name, self.end = name, record.end
                if record.sequence > self.last:  # otherwise it was written again after a failure of the disk
                    self.last = record.sequence
                    yield record
            elif record.durable > self.last:
                raise damaged(self.end_name or name, self.end)
            else:
                has_gap = True


def damaged(name: str, at: int) -> JournalError:
    """Return the error about a file that has lost what the disk had confirmed."""
    return JournalError(
        f"{name} is damaged at byte {at}, in the middle of what the disk had confirmed. Restore it from a backup, or "
        "move its directory away to start with an empty one: tasks and results that were not delivered are lost then"
    )
