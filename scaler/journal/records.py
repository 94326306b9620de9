"""The bytes of a journal: segments of checksummed records, and which of them count after a crash. Pure.

A segment is a header and records. A record has a sequence number, which goes on over segments, and says up to which
number the disk had confirmed all records when it was made. That decides what a gap means: records that the disk had not
confirmed may be missing after a power loss, and no peer was told anything because of them; a confirmed record that is
missing is damage. No later record witnesses for the last ones, so the number of the last confirmed record also lies in
a file of its own: see `JournalDirectory.confirm`. The mark at the beginning of each record is random, so that bytes of
a user inside a damaged record can never be taken for a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from scaler._version import __version__
from scaler.errors import UsageError

VERSION = 2
"""Of the layout of segments. In every version from 2 on, the header has this size and ends with its checksum."""
MARK_BYTES = 8
_MAGIC = b"scaler journal\n\x00"
_HEADER = struct.Struct("<16sII8s28sI")
HEADER_BYTES = _HEADER.size
_FIRST_HEADER = struct.Struct("<16sI8sI")
_WITNESS = struct.Struct("<QI")
WITNESS_BYTES = _WITNESS.size
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


def unreadable(error: Exception) -> JournalError:
    """Return the error about a whole record that does not say what this version of Scaler writes."""
    return JournalError(
        f"a record of the journal in state_directory is not one of scaler {__version__}: {error}. Start the version "
        "that wrote it, whose name is in the first 64 bytes of each file, or move the directory away to start with an "
        "empty one: tasks and results that were not delivered are lost then"
    )


def pack_header(mark: bytes, content: int = 0) -> bytes:
    """Return the first bytes of a segment. content: version of what its bodies are."""
    head = _HEADER.pack(_MAGIC, VERSION, content, mark, __version__.encode()[:28], 0)[:-4]
    return head + crc32(head).to_bytes(4, "little")


def pack_witness(confirmed: int) -> bytes:
    """Return the bytes that say which record is the last one that the disk has confirmed."""
    return _WITNESS.pack(confirmed, crc32(_WITNESS.pack(confirmed, 0)))


def read_witness(data: bytes) -> int:
    """Return the number of the last record that the disk had confirmed; 0 when these bytes do not say it."""
    if len(data) != WITNESS_BYTES:
        return 0
    confirmed = int(_WITNESS.unpack(data)[0])
    return confirmed if pack_witness(confirmed) == data else 0


def pack(mark: bytes, sequence: int, durable: int, body: bytes) -> bytes:
    head = _HEAD.pack(mark, 0, len(body), sequence, durable)
    checksum = crc32(body, crc32(head[_SUMMED:]))
    return b"".join((head[:MARK_BYTES], checksum.to_bytes(4, "little"), head[_SUMMED:], body))


def read_mark(name: str, data: bytes, content: int = 0) -> bytes | None:
    """Return the mark of a segment, None without a header. Raises JournalError."""
    first, head = data[: _FIRST_HEADER.size], data[:HEADER_BYTES]
    if len(first) == _FIRST_HEADER.size and first.startswith(_MAGIC + b"\1\0\0\0"):
        if _FIRST_HEADER.unpack(first)[-1] == crc32(first[:-4]):
            raise _of_another_version(name, "an earlier version of scaler", 1, 0, content)
        raise damaged(name, 0)
    if len(head) < HEADER_BYTES or not any(head):
        return None
    magic, version, of, mark, writer, checksum = _HEADER.unpack(head)
    if magic != _MAGIC or checksum != crc32(head[:-4]):
        raise damaged(name, 0)
    if (version, of) != (VERSION, content):
        text = writer.rstrip(b"\0").decode(errors="replace")
        raise _of_another_version(name, f"scaler {text}", version, of, content)
    return bytes(mark)


def _of_another_version(name: str, writer: str, version: int, of: int, content: int) -> JournalError:
    return JournalError(
        f"{name} was written by {writer} (format {version}.{of}); this is scaler {__version__}, which reads format "
        f"{VERSION}.{content}. Start the version that wrote it until its tasks have ended and its clients have their "
        "results, or move its directory away to start with an empty one: tasks and results that were not delivered "
        "are lost then"
    )


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

    def __init__(self, content: int = 0) -> None:
        """content: version of what the bodies are, which must be that of every segment."""
        self.content = content
        self.last = 0
        self.end_name = ""
        self.end = 0
        """The segment of the last record that counts, and where it ends there. Later bytes are to be removed."""

    def read(self, name: str, data: bytes) -> Iterator[Record]:
        """Yield the valid records of the next segment. Raises JournalError for a missing confirmed one.

        Nothing counts behind a missing record: the next segment repeats what the disk did not confirm.
        """
        mark, has_gap = read_mark(name, data, self.content), False
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
