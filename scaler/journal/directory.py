"""The files of a journal: a directory locked by one process, with segments and a snapshot."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.journal.records import (
    HEAD_BYTES,
    HEADER_BYTES,
    MARK_BYTES,
    Replay,
    damaged,
    pack,
    pack_header,
    pack_witness,
    read_mark,
    read_witness,
    records,
)
from scaler.paths import sync_directory
from scaler.security.private_files import require_private

_SEGMENT = "segment-"
_SNAPSHOT = "snapshot-"
_SUFFIX = ".journal"
_TEMPORARY = ".new"
_WITNESS = "confirmed"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
RELEASE_SECONDS = 10.0
"""Seconds to wait for a directory locked by another process. An orphaned process exits within this time."""
RESERVED_SHARE = 4
"""The last 1/4 of a segment is reserved for results. If no next segment can be created by then, new work is refused."""
DISK_IS_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
_log = logging.getLogger(__name__)


class JournalDirectory:
    """A journal's directory, locked until `close`. A snapshot has the number of the first segment after it."""

    def __init__(self, path: Path, content: int = 0, *, lock: bool = True) -> None:
        """Create or open the directory. content: version of the bodies. Raises UsageError for an unusable directory."""
        self.path = path
        self.replay = Replay(content)
        """State of the last call of `bodies`."""
        self._content = content
        self._lock = -1
        self._witness = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(path.stat(), path)
            if lock:
                self._lock = os.open(path / "lock", _FLAGS, 0o600)
                self._wait_for_lock()
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"state_directory: another running process uses {path}: stop it, or name another directory"
            ) from None
        except OSError as error:
            self.close()
            raise UsageError(f"state_directory: cannot use {path}: {error.strerror}") from None

    def _wait_for_lock(self) -> None:
        until = time.monotonic() + RELEASE_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(RELEASE_SECONDS / 100)
            else:
                return

    def close(self) -> None:
        for descriptor in (self._witness, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._witness = self._lock = -1

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.glob(f"*{_SUFFIX}"))

    def segment(self, number: int) -> Path:
        return self.path / f"{_SEGMENT}{number:08d}{_SUFFIX}"

    def segments(self) -> list[int]:
        return self._numbers(_SEGMENT)

    def snapshot(self) -> int:
        return max(self._numbers(_SNAPSHOT), default=0)

    def snapshot_path(self, number: int) -> Path:
        return self.path / f"{_SNAPSHOT}{number:08d}{_SUFFIX}"

    def _numbers(self, prefix: str) -> list[int]:
        names = [path.name for path in self.path.glob(f"{prefix}*{_SUFFIX}")]
        return sorted(int(name[len(prefix) : -len(_SUFFIX)]) for name in names)

    # -- reading

    def bodies(self, until: int | None = None) -> Iterator[bytes]:
        """Yield the bodies of all valid records before segment `until`, snapshot first. Raises JournalError."""
        replay = self.replay = Replay(self._content)
        confirmed = self._confirmed() if until is None else 0
        first = self.snapshot()
        if first:
            yield from self._read_snapshot(first)
        for number in self.segments():
            if number >= first and (until is None or number < until):
                path = self.segment(number)
                for record in replay.read(str(path), path.read_bytes()):
                    yield record.body
        if replay.last < confirmed:
            raise damaged(replay.end_name or str(self.path), replay.end)

    def _read_snapshot(self, number: int) -> Iterator[bytes]:
        path = self.snapshot_path(number)
        data = path.read_bytes()
        mark = read_mark(str(path), data, self._content)
        end, covered = HEADER_BYTES, None
        for number_of_it, record in enumerate(records(data, mark) if mark else (), start=1):
            if covered is not None or record.start != end or record.sequence != number_of_it:
                break
            end = record.end
            if record.body:
                yield record.body
            else:
                covered = record.durable
        if covered is None or end != len(data):
            raise damaged(str(path), end)
        self.replay.last = covered

    def repair(self) -> None:
        """Remove unconfirmed bytes left by a crash, and sync the remaining records to disk. Raises OSError."""
        replay = self.replay
        lost = 0
        is_behind = not replay.end_name
        for number in self.segments():
            path = self.segment(number)
            if is_behind:
                lost += max(0, len(path.read_bytes().rstrip(b"\0")) - HEADER_BYTES)
                path.unlink()
                continue
            with path.open("rb+") as file:
                if str(path) == replay.end_name:
                    is_behind = True
                    lost += len(path.read_bytes()[replay.end :].rstrip(b"\0"))
                    file.truncate(replay.end)
                os.fsync(file.fileno())
        for path in self.path.glob(f"*{_TEMPORARY}"):
            path.unlink()
        if lost:
            text = "state_directory: removed %s of %s: records left incomplete by a crash"
            _log.warning(text, counted(lost, "byte"), self.path)

    def _confirmed(self) -> int:
        try:
            return read_witness((self.path / _WITNESS).read_bytes())
        except FileNotFoundError:
            return 0

    # -- writing

    def confirm(self, number: int) -> None:
        """Note that all records up to this number are on disk. The note is not synced: it survives a crash of the
        process immediately, and a power loss after half a minute. Without the note, damage to the last confirmed
        records would look like an interrupted write."""
        with contextlib.suppress(OSError):  # a full disk; the records themselves are safe
            if self._witness < 0:
                self._witness = os.open(self.path / _WITNESS, _FLAGS, 0o600)
            os.pwrite(self._witness, pack_witness(number), 0)

    def create_segment(self, number: int, size_bytes: int) -> tuple[int, bytes]:
        """Create a segment, and reserve its disk space. Returns its descriptor and mark. Raises OSError."""
        mark = os.urandom(MARK_BYTES)
        path = self.segment(number)
        descriptor = os.open(path, _FLAGS | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            os.pwrite(descriptor, pack_header(mark, self._content), 0)
            sync_directory(self.path)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return descriptor, mark

    def write_snapshot(self, number: int, bodies: Iterable[bytes], covered: int) -> None:
        """Write the snapshot of all segments before this number, atomically. Raises OSError. bodies: non-empty.
        covered: number of the last record in the snapshot."""
        mark = os.urandom(MARK_BYTES)
        temporary = self.path / f"{number:08d}{_TEMPORARY}"
        try:
            with temporary.open("wb") as file:
                file.write(pack_header(mark, self._content))
                sequence = 0
                for body in bodies:
                    sequence += 1
                    file.write(pack(mark, sequence, 0, body))
                file.write(pack(mark, sequence + 1, covered, b""))
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # free the space on a full disk
            temporary.unlink(missing_ok=True)
            raise
        temporary.rename(self.snapshot_path(number))
        sync_directory(self.path)

    def remove_replaced(self) -> None:
        first = self.snapshot()
        for number in self.segments():
            if number < first:
                self.segment(number).unlink()
        for number in self._numbers(_SNAPSHOT):
            if number < first:
                self.snapshot_path(number).unlink()


class Segments:
    """Writes and syncs records in the journal's thread. Records that could not be written go to the next segment. Calls
    may wait for the disk. Only `close` raises OSError.
    """

    def __init__(self, directory: JournalDirectory, segment_bytes: int) -> None:
        self.failure = ""
        """Why new work should be refused; empty if the journal is healthy."""
        self.is_broken = False
        """Whether the current segment is unwritable. All unconfirmed records are then written to the next segment."""
        self.durable = 0
        self.size_bytes = 0
        self.number = 0
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._descriptor = -1
        self._mark = b""
        self._offset = 0

    def begin(self, durable: int) -> None:
        self.durable = durable
        self.number = max(0, self._directory.snapshot() - 1, *self._directory.segments())
        self._directory.remove_replaced()
        try:
            self._make()
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            self._fail(error, is_broken=True)
        self.measure()

    def add(self, records: Iterable[tuple[int, bytes]]) -> None:
        limit = self._segment_bytes * (RESERVED_SHARE - 1) // RESERVED_SHARE
        parts: list[bytes] = []
        end = self._offset
        for number, body in records:
            self._unconfirmed.append((number, body))
            if self.is_broken:
                continue
            parts.append(pack(self._mark, number, self.durable, body))
            end += len(parts[-1])
            if end > limit and not self.failure:
                self._put(parts)
                if not self.is_broken:
                    self._advance()
                parts, end = [], self._offset
        self._put(parts)
        self._confirm()

    def retry(self) -> None:
        if self.failure:
            self._advance()
            self._confirm()

    def measure(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor is free
            self.size_bytes = self._directory.size_bytes()

    def close(self) -> None:
        """Truncate the last segment to its content, and sync it. Raises OSError."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._offset)
            os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _next_bytes(self) -> int:
        again = self._unconfirmed if self.is_broken else ()
        return self._segment_bytes + sum(HEAD_BYTES + len(body) for _, body in again)

    def _make(self) -> None:
        self._descriptor, self._mark = self._directory.create_segment(self.number + 1, self._next_bytes())
        self.number += 1
        self._offset = HEADER_BYTES

    def _advance(self) -> None:
        self._confirm()
        was_broken, earlier, end = self.is_broken, self._descriptor, self._offset
        try:
            self._make()
        except OSError as error:
            self._fail(error, is_broken=was_broken)
            return
        if earlier >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(earlier, end)
            with contextlib.suppress(OSError):
                os.close(earlier)
        self.is_broken = False
        self._put([pack(self._mark, number, self.durable, body) for number, body in self._unconfirmed])
        if self.is_broken:
            return
        if self.failure:
            _log.warning("state_directory: %s is writable again", self._directory.path)
            self.failure = ""
        self.measure()

    def _put(self, parts: list[bytes]) -> None:
        data = memoryview(b"".join(parts))
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._offset + written)
        except OSError as error:
            self._fail(error, is_broken=True)
        else:
            self._offset += written

    def _confirm(self) -> None:
        if self.is_broken or not self._unconfirmed:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # After a failed sync, the kernel may drop the bytes and report success next time, so they are rewritten
            # elsewhere.
            self._fail(error, is_broken=True)
        else:
            self.durable = self._unconfirmed[-1][0]
            self._unconfirmed.clear()
            self._directory.confirm(self.durable)

    def _fail(self, error: OSError, *, is_broken: bool) -> None:
        self.is_broken = is_broken
        refused = "new work is refused and other work waits" if is_broken else "new work is refused"
        text = why_refused(self._directory.path, error, refused, self._next_bytes())
        if self.failure != text:
            _log.error("%s", text)
            self.failure = text


def why_refused(path: Path, error: OSError, refused: str, wanted_bytes: int) -> str:
    """Describe a disk failure and its remedy. refused: the effect on work. wanted_bytes: required free space."""
    room = f"{math.ceil(wanted_bytes / 2**20)} MiB are free there"
    until = room if error.errno in DISK_IS_FULL else "it is writable again"
    return f"state_directory: cannot write to {path}: {error.strerror}; {refused} until {until}"
