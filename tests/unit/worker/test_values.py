from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from scaler.object_storage.client import BlockingStorage
from scaler.protocol.messages import stored_reference
from scaler.serialization import Buffer
from scaler.worker.processor.functions import StoredObjects

IDENTIFIER = b"client-A" + bytes(8)
REFERENCE = stored_reference(IDENTIFIER, 9)


class Storage:
    """Gives out parts as a storage does: shared memory is each reader's own to write to, frames are read-only."""

    def __init__(self, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.gets = 0

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None:
        raise NotImplementedError

    def get(self, object_id: bytes, deadline_seconds: float) -> list[memoryview]:
        assert object_id == IDENTIFIER
        self.gets += 1
        return [memoryview(bytearray(b"unaltered") if self.is_shared else b"unaltered")]

    def close(self) -> None:
        raise NotImplementedError


def objects(storage: Storage) -> StoredObjects:
    made = StoredObjects(lambda _address: cast("BlockingStorage", storage))
    made.move("tcp://storage:1")
    return made


def test_what_a_task_writes_to_its_own_arguments_no_other_task_sees() -> None:
    storage = Storage(is_shared=True)
    known = objects(storage)
    (mine,) = known.parts(REFERENCE, is_own=True)
    assert not mine.readonly
    mine[:2] = b"XX"
    assert list(map(bytes, known.parts(REFERENCE, is_own=True))) == [b"unaltered"]
    assert list(map(bytes, known.parts(REFERENCE))) == [b"unaltered"]


def test_what_tasks_have_in_common_is_read_only_and_fetched_once() -> None:
    for is_shared in (True, False):
        storage = Storage(is_shared)
        known = objects(storage)
        (first,), (second,) = known.parts(REFERENCE), known.parts(REFERENCE)
        assert first.readonly
        assert first is second
        assert storage.gets == 1


def test_arguments_that_came_as_frames_are_cached_as_they_cannot_be_altered() -> None:
    storage = Storage(is_shared=False)
    known = objects(storage)
    for _ in range(2):
        assert list(map(bytes, known.parts(REFERENCE, is_own=True))) == [b"unaltered"]
    assert storage.gets == 1
