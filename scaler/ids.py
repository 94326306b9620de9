"""Identifiers. Each id starts with its creator's id, so ownership needs no table.

A *peer id* is 8 random bytes that a process chooses once. Every task and object id is 16 bytes::

    owner (8 bytes: the client's peer id) | kind (2 bytes, big endian) | counter (6 bytes, big endian)

Kind 0 is a task, 0xFFFF an uploaded object, 0xFFFE a cached result, and 1..0xFFFD the result of this attempt of the
task with the same owner and counter. Content ids (functions and serializers) are BLAKE2b digests without an owner,
verified by receivers, and never used in the object storage. In a durable session, task numbers start at a random number
below 2^47. Tasks with a user's key have the key's digest, above 2^47, so resubmitting a key yields the same id.

Invariants: ids are never reused; a result id determines its task and attempt; ids of two peers never collide.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable

from scaler.errors import UsageError

PEER_ID_BYTES = 8
ID_BYTES = 16
MAX_ATTEMPT = 0xFFFD

TASK_KIND = b"\x00\x00"  # bytes 8 and 9 of a task id
_OBJECT_KIND = b"\xff\xff"
_CACHED_KIND = b"\xff\xfe"
_KEYED = 1 << 47


def new_peer_id() -> bytes:
    return os.urandom(PEER_ID_BYTES)


def session_peer_id(key: str, name: str) -> bytes:
    """Return the peer id shared by the clients of a durable session, derived from key and session name."""
    return content_id(f"{key}\n{name}".encode())[:PEER_ID_BYTES]


def keyed_task_id(owner: bytes, key: str) -> bytes:
    """Return the id of the task with this key in a durable session. The highest bit of its number is set."""
    number = int.from_bytes(content_id(key.encode())[:6], "big") | _KEYED
    return owner + TASK_KIND + number.to_bytes(6, "big")


def owner_of(identifier: bytes) -> bytes:
    """Return the peer id of the client that owns this task or object."""
    return identifier[:PEER_ID_BYTES]


def is_task(identifier: bytes) -> bool:
    """Return whether this id names a task."""
    return identifier[8:10] == TASK_KIND


def is_result(identifier: bytes) -> bool:
    """Return whether this id names a task or a task's result, rather than an uploaded object."""
    return identifier[8:10] < _CACHED_KIND


def is_cached(identifier: bytes) -> bool:
    """Return whether this id names a cached result, which may be stored again after eviction."""
    return identifier[8:10] == _CACHED_KIND


def cache_owner(key: str) -> bytes:
    """Return the owner id of a key's cached results (empty key: peers without one). Never a client's peer id."""
    return session_peer_id(key, "\0cached results")


def cached_id(owner: bytes, digest: bytes) -> bytes:
    """Return the id of a cached result. The id contains 6 bytes of the call's digest; callers compare the rest."""
    return owner + _CACHED_KIND + digest[:6]


def result_id(task_id: bytes, attempt: int) -> bytes:
    """Return the id of the stored result of this attempt. Raises ValueError if the attempt is out of range."""
    if not 1 <= attempt <= MAX_ATTEMPT:
        raise ValueError(f"attempt {attempt} is not within 1..{MAX_ATTEMPT}")
    return task_id[:8] + attempt.to_bytes(2, "big") + task_id[10:]


def task_of(result: bytes) -> bytes:
    return result[:8] + TASK_KIND + result[10:]


def content_id(*parts: bytes | bytearray | memoryview) -> bytes:
    """Return the 16-byte digest of these bytes, equal on all hosts."""
    import hashlib  # noqa: PLC0415 (it loads OpenSSL, 4 MB that a processor does not need)

    digest = hashlib.blake2b(digest_size=ID_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def show(identifier: bytes) -> str:
    return identifier.hex()


def task_id_of(text: str) -> bytes:
    """Parse a task id of 32 hex digits. Raises UsageError."""
    try:
        identifier = bytes.fromhex(text.strip())
    except ValueError:
        identifier = b""
    if len(identifier) != ID_BYTES:
        raise UsageError(f"{text!r} is not a task id: give the 32 hexadecimal digits that future.task_id shows")
    return identifier


class IdFactory:
    """Creates the task and object ids of one client. Thread-safe."""

    __slots__ = ("_numbers", "owner", "task")

    def __init__(self, owner: bytes, first: int = 1) -> None:
        if len(owner) != PEER_ID_BYTES:
            raise ValueError(f"a peer id has {PEER_ID_BYTES} bytes, not {len(owner)}")
        self.owner = owner
        self._numbers = map(struct.Struct(">Q").pack, itertools.count(first))
        self.task: Callable[[], bytes] = map(owner.__add__, self._numbers).__next__
        """Returns a new task id. An attribute instead of a method, because every submit calls it."""

    def object(self) -> bytes:
        return self.owner + _OBJECT_KIND + next(self._numbers)[2:]


def session_ids(owner: bytes) -> IdFactory:
    """Return the id factory of a program in a durable session. Its random first number is below any keyed task's."""
    return IdFactory(owner, int.from_bytes(os.urandom(6), "big") % (_KEYED // 2))
