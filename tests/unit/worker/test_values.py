from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from scaler.errors import LimitError
from scaler.object_storage.client import BlockingStorage
from scaler.protocol.messages import stored_reference
from scaler.serialization import Buffer
from scaler.worker.processor import functions
from scaler.worker.processor.functions import StoredObjects

IDENTIFIER = b"client-A" + bytes(8)
REFERENCE = stored_reference(IDENTIFIER, 9)


class Storage:
    """Returns parts like a storage: shared memory is privately writable by each reader, frames are read-only."""

    def __init__(self, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.gets = 0
        self.refusals: list[LimitError] = []

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None:
        if self.refusals:
            raise self.refusals.pop()

    def get(self, object_id: bytes) -> list[memoryview]:
        assert object_id == IDENTIFIER
        self.gets += 1
        return [memoryview(bytearray(b"unaltered") if self.is_shared else b"unaltered")]

    def close(self) -> None:
        raise NotImplementedError


def objects(storage: Storage, waits: list[str] | None = None) -> StoredObjects:
    report = waits.append if waits is not None else lambda _: None
    made = StoredObjects(lambda _address, _is_host_store: cast("BlockingStorage", storage), report)
    made.move("tcp://storage:1")
    return made


def test_changes_to_task_arguments_are_invisible_to_other_tasks() -> None:
    storage = Storage(is_shared=True)
    known = objects(storage)
    (mine,) = known.parts(REFERENCE, is_own=True)
    assert not mine.readonly
    mine[:2] = b"XX"
    assert list(map(bytes, known.parts(REFERENCE, is_own=True))) == [b"unaltered"]
    assert list(map(bytes, known.parts(REFERENCE))) == [b"unaltered"]


def test_data_shared_by_tasks_is_read_only_and_fetched_once() -> None:
    for is_shared in (True, False):
        storage = Storage(is_shared)
        known = objects(storage)
        (first,), (second,) = known.parts(REFERENCE), known.parts(REFERENCE)
        assert first.readonly
        assert first is second
        assert storage.gets == 1


def refusal(*, may_pass: bool) -> LimitError:
    error = LimitError("no space")
    error.may_pass = may_pass
    return error


def test_result_waits_for_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "DISK_PAUSE_SECONDS", 0.0)
    storage = Storage(is_shared=False)
    storage.refusals = [refusal(may_pass=True) for _ in range(3)]
    waits: list[str] = []
    assert objects(storage, waits).put(IDENTIFIER, [b"unaltered"]) == REFERENCE
    assert not storage.refusals
    assert waits == ["its result waits for up to 300 s: no space", ""], "reported once, and at the end"


def test_result_wait_is_bounded_and_ignores_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(is_shared=False)
    storage.refusals = [refusal(may_pass=False)]
    with pytest.raises(LimitError, match="no space"):
        objects(storage).put(IDENTIFIER, [b"unaltered"])
    monkeypatch.setattr(functions, "DISK_SECONDS", 0.0)
    storage.refusals = [refusal(may_pass=True)]
    with pytest.raises(LimitError, match="no space"):
        objects(storage).put(IDENTIFIER, [b"unaltered"])
