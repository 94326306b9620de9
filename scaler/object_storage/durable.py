"""Persistent objects: small ones in a journal, large ones in separate files. A file is synced before its journal record
is written, so files without a record are leftovers of a crash and are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import mmap
import os
import queue
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from scaler.grammar import counted
from scaler.ids import ID_BYTES
from scaler.journal.directory import JournalDirectory, why_refused
from scaler.journal.journal import SEGMENT_BYTES, Journal, run_compaction
from scaler.journal.records import unreadable
from scaler.logs import RateLimitedLog
from scaler.object_storage.body import Body, Segment, cut, map_file
from scaler.object_storage.commands import ForgetPersisted, PersistObject
from scaler.paths import sync_directory

MIN_FILE_BYTES = 1024 * 1024
"""Minimum size of an object that gets a separate file."""
LEFT_BYTES = 2 * SEGMENT_BYTES
"""Disk space reserved for the journals, because even a release of objects is written there."""
LEFT_PART = 8
"""On a small disk, LEFT_BYTES is at most the disk's size divided by this number."""
CLOSE_SECONDS = 5.0
REFUSED_SECONDS = 10.0
"""Seconds for which the disk counts as full after refusing a large object. Producers retry sooner."""
_HEAD = struct.Struct("<BI")
_PUT, _FORGOTTEN = 1, 2
_CONTENT = 2
_log = logging.getLogger(__name__)


class PersistedObject(NamedTuple):
    """An object on disk. key: name of its owner's key, or "". data: None if it is in a separate file."""

    id: bytes
    key: str
    parts: list[int]
    checksum: int
    data: bytes | None

    def to_bytes(self) -> bytes:
        text = json.dumps([self.key, self.parts, self.checksum, self.data is not None]).encode()
        return b"".join((_HEAD.pack(_PUT, len(text)), self.id, text, self.data or b""))


def _from_bytes(body: bytes) -> PersistedObject | list[bytes]:
    try:
        kind, size = _HEAD.unpack_from(body)
        if kind == _FORGOTTEN:
            return [body[at : at + ID_BYTES] for at in range(_HEAD.size, len(body), ID_BYTES)]
        if kind != _PUT:
            raise ValueError(f"kind {kind}")
        identifier = body[_HEAD.size : _HEAD.size + ID_BYTES]
        text_at = _HEAD.size + ID_BYTES
        key, parts, checksum, is_inline = json.loads(body[text_at : text_at + size])
        return PersistedObject(identifier, key, parts, checksum, body[text_at + size :] if is_inline else None)
    except (ValueError, struct.error) as error:
        raise unreadable(error) from error


def _replayed(bodies: Iterable[bytes]) -> dict[bytes, PersistedObject]:
    found: dict[bytes, PersistedObject] = {}
    for body in bodies:
        match _from_bytes(body):
            case PersistedObject() as put:
                found[put.id] = put
            case ids:
                for identifier in ids:
                    found.pop(identifier, None)
    return found


@dataclass(slots=True, eq=False)
class _Writing:
    put: PersistedObject
    requests: list[tuple[bytes, int]]


class ObjectJournal:
    """Persistent objects of one storage. Belongs to the running loop."""

    def __init__(
        self,
        path: Path,
        on_stored: Callable[[bytes, int], None],
        on_lost: Callable[[bytes, str, list[tuple[bytes, int]]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """Lock the directory. Raises UsageError if that fails. on_stored: called with peer and request after the sync.
        on_lost: called with an object that could not be written, the reason, and its requests. on_failure: called with
        why the disk refuses new objects, or "" once it accepts them again."""
        self._journal = Journal(path, "scaler.object_storage.durable", self._on_change, content=_CONTENT)
        self._path = path
        self._files = path / "files"
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._failure = ""
        self._loop = asyncio.get_running_loop()
        self._ids: dict[bytes, int] = {}
        """File sizes of objects that are or will be on disk; 0 for objects in the journal."""
        self._file_bytes = 0
        self._failures = RateLimitedLog(_log, logging.ERROR, self._loop)  # workers retry their puts forever
        self._refused = "", -math.inf
        """Why and when a large object was last refused. The reason is "" once a large object has been stored."""
        self._left_bytes = 0
        self._writing: dict[bytes, _Writing] = {}
        """Objects that are neither synced nor released."""
        self._unconfirmed: deque[tuple[int, _Writing]] = deque()
        """Objects with a written record, by record number."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="object files", daemon=True)

    def recover(self) -> Iterator[tuple[PersistedObject, Body]]:
        """Yield the objects on disk. Exhaust before the first `put`. Raises JournalError for a damaged journal, and
        UsageError for disk errors other than a full disk."""
        found = _replayed(self._journal.recover())
        self._files.mkdir(mode=0o700, exist_ok=True)
        for put in found.values():
            body = self._read(put)
            if body is not None:
                self._add(put)
                yield put, body
        names = {identifier.hex() for identifier in self._ids}
        for path in self._files.iterdir():
            if path.name not in names:
                path.unlink()
        if self._ids:
            _log.info("recovered %s from %s", counted(len(self._ids), "object"), self._path)
        self._thread.start()

    def _read(self, put: PersistedObject) -> Body | None:
        size = sum(put.parts)
        if put.data is not None:
            return Body(put.parts, [memoryview(put.data)] if size else [], size)
        path = self._files / put.id.hex()
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    raise OSError(errno.EIO, "its size differs from the written size")
                whole = map_file(file.fileno(), size, mmap.MAP_SHARED).toreadonly()
        except OSError as error:
            _log.error("state_directory: the object %s is lost: %s: %s", put.id.hex(), path, error.strerror)
            return None
        ends = list(accumulate(put.parts, initial=0))
        frames = [frame for message in cut([whole[start:end] for start, end in pairwise(ends)]) for frame in message]
        # An empty segment: the disk space does not count toward spill_directory.
        return Body(put.parts, frames, size, segment=Segment(0, 1), is_on_disk=True, checksum=put.checksum)

    @property
    def size_bytes(self) -> int:
        return self._journal.size_bytes + self._file_bytes

    def why_refused(self) -> str:
        """Return why large objects are refused, or "" if none was refused lately."""
        text, at = self._refused
        return text if self._loop.time() - at < REFUSED_SECONDS else ""

    def _has_room(self, size: int) -> bool:
        space = os.statvfs(self._files)
        self._left_bytes = min(LEFT_BYTES, space.f_blocks * space.f_frsize // LEFT_PART)
        return bool(space.f_bavail * space.f_frsize >= size + self._left_bytes)

    def _add(self, put: PersistedObject) -> None:
        self._ids[put.id] = size = sum(put.parts) if put.data is None else 0
        self._file_bytes += size

    def put(self, command: PersistObject) -> None:
        """Store an object, and answer its request after the sync."""
        identifier, body = command.id, command.body
        if identifier in self._writing:
            self._writing[identifier].requests.append((command.peer, command.request))
            return
        if identifier in self._ids:
            self._on_stored(command.peer, command.request)
            return
        frames = body.memory.frames() if body.memory is not None else body.frames
        is_file = body.size_bytes >= MIN_FILE_BYTES
        data = None if is_file else b"".join(frames)
        put = PersistedObject(identifier, command.key, body.parts, 0, data)
        self._add(put)
        writing = self._writing[identifier] = _Writing(put, [(command.peer, command.request)])
        if is_file:
            self._jobs.put(partial(self._write_file, writing, frames))
        else:
            self._append(writing, put)

    def _append(self, writing: _Writing, put: PersistedObject) -> None:
        self._journal.append(put.to_bytes())
        self._unconfirmed.append((self._journal.written, writing))

    def forget(self, command: ForgetPersisted) -> None:
        ids = [identifier for identifier in command.ids if identifier in self._ids]
        if ids:
            self._journal.append(_HEAD.pack(_FORGOTTEN, 0) + b"".join(ids))
        for identifier in ids:
            size = self._ids.pop(identifier)
            self._file_bytes -= size
            self._writing.pop(identifier, None)
            if size:  # after the job that writes it and before a job that writes it again
                self._jobs.put((self._files / identifier.hex()).unlink)

    # -- file thread, so that the loop does not wait for a slow or hanging disk or a large deletion

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with contextlib.suppress(OSError):
                job()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _write_file(self, writing: _Writing, frames: list[memoryview]) -> None:
        checksum, failure = 0, ""
        path = self._files / writing.put.id.hex()
        size = sum(frame.nbytes for frame in frames)
        try:
            if not self._has_room(size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with path.open("wb", buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                for frame in frames:
                    checksum = crc32(frame, checksum)
                    rest = frame
                    while rest.nbytes:
                        rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            sync_directory(self._files)
        except OSError as error:
            failure = why_refused(self._path, error, "objects are refused", size + self._left_bytes)
            with contextlib.suppress(OSError):
                path.unlink()
        self._tell(self._written, writing, checksum, failure)

    def _written(self, writing: _Writing, checksum: int, failure: str) -> None:
        identifier = writing.put.id
        if self._writing.get(identifier) is not writing:  # the object was released since then, and perhaps put again
            self._confirm(writing)
        elif failure:
            self._failures.add(f"{failure}; object={identifier.hex()}")
            self._refused = failure, self._loop.time()
            del self._writing[identifier]
            self._file_bytes -= self._ids.pop(identifier)
            self._on_lost(identifier, failure, writing.requests)
        else:
            self._refused = "", -math.inf
            self._append(writing, writing.put._replace(checksum=checksum))

    def _confirm(self, writing: _Writing) -> None:
        if self._writing.get(writing.put.id) is writing:
            del self._writing[writing.put.id]
        for peer, request in writing.requests:
            self._on_stored(peer, request)

    def _on_change(self) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= self._journal.durable:
            self._confirm(self._unconfirmed.popleft()[1])
        if self._journal.failure != self._failure:
            self._failure = self._journal.failure
            self._on_failure(self._failure)

    def close(self) -> None:
        """Finish all writes and report them. Idempotent."""
        self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS)
        self._journal.close()


def compact(path: Path, number: int) -> None:
    """Replace all segments before this number with a snapshot. Raises JournalError and OSError."""
    directory = JournalDirectory(path, _CONTENT, lock=False)
    found = _replayed(directory.bodies(number))
    directory.write_snapshot(number, (put.to_bytes() for put in found.values()), directory.replay.last)


if __name__ == "__main__":
    run_compaction(compact)
