"""Tasks whose functions, arguments, inputs, or results are in a real object storage."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from scaler.ids import new_peer_id, result_id
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.protocol.messages import Outcome, Role, is_stored, stored_reference
from scaler.serialization import Parts, dump_function, dump_value, load_value, size_of, to_payload
from scaler.serialization.arguments import load_input
from tests.integration.worker_rig import Rig, play

SIZE = 1_000_000
MISSING = stored_reference(b"client--\xff\xff" + bytes(6), 10)


class Input:
    """Represents input `index` in pickled arguments."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return load_input, (self.index,)


class Storage:
    """The test's own connection to the storage, outside the loop."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._blocking = BlockingStorage(lambda: StorageClient(rig.storage.address, new_peer_id(), Role.CLIENT))

    async def put(self, parts: Parts) -> bytes:
        identifier = self._rig.ids.object()
        await asyncio.to_thread(self._blocking.put, identifier, parts)
        return stored_reference(identifier, size_of(parts))

    async def get(self, identifier: bytes) -> list[memoryview]:
        return await asyncio.to_thread(self._blocking.get, identifier)

    def close(self) -> None:
        self._blocking.close()


def with_storage(story: Callable[[Rig, Storage], Any], **config: Any) -> None:
    async def both(rig: Rig) -> None:
        storage = Storage(rig)
        try:
            await story(rig, storage)
        finally:
            storage.close()

    play(both, with_storage=True, **config)


def test_large_result_is_stored_under_its_attempts_id() -> None:
    async def story(rig: Rig, storage: Storage) -> None:
        (identifier,) = rig.submit(bytes, (SIZE,))
        outcome, payload = await rig.outcome(identifier)
        assert outcome is Outcome.SUCCESS
        assert is_stored(payload)
        assert payload[1:17] == result_id(identifier, 1)
        assert load_value(await storage.get(payload[1:17])) == bytes(SIZE)

    with_storage(story)


def test_inputs_are_values_whether_inline_or_stored() -> None:
    async def story(rig: Rig, storage: Storage) -> None:
        large = await storage.put(dump_value(b"x" * SIZE))
        small = to_payload(dump_value({"a": 1}))
        arguments = pickle.dumps(([Input(1)], Input(0)), 5)
        function = to_payload(dump_function(lambda left, right: (len(left[0]), right)))
        (identifier,) = rig.submit_payloads(function, [arguments], [(small, large)])
        assert await rig.value(identifier) == (SIZE, {"a": 1})

    with_storage(story)


def test_object_used_by_many_tasks_is_fetched_once() -> None:
    async def story(rig: Rig, storage: Storage) -> None:
        large = await storage.put(dump_value(b"x" * SIZE))
        arguments = pickle.dumps((Input(0),), 5)
        function = to_payload(dump_function(len))
        (first,) = rig.submit_payloads(function, [arguments], [(large,)])
        assert await rig.value(first) == SIZE
        rig.storage.close()
        ids = rig.submit_payloads(function, [arguments] * 5, [(large,)] * 5)
        assert [await rig.value(each) for each in ids] == [SIZE] * 5

    with_storage(story)


@pytest.mark.parametrize("what", ["function", "arguments", "input"])
def test_task_with_a_missing_object_ends_at_once_and_frees_its_slot(what: str) -> None:
    async def story(rig: Rig, storage: Storage) -> None:
        function = to_payload(dump_function(len))
        if what == "function":
            (bad,) = rig.submit_payloads(MISSING, [pickle.dumps(("",), 5)], [])
        elif what == "arguments":
            (bad,) = rig.submit_payloads(function, [MISSING], [])
        else:
            (bad,) = rig.submit_payloads(function, [pickle.dumps((Input(0),), 5)], [(MISSING,)])
        (good,) = rig.submit(abs, (-1,))
        outcome, text = await rig.outcome(bad)
        assert outcome is Outcome.INPUT_MISSING
        assert text.startswith(MISSING[1:17])
        assert await rig.value(good) == 1

    with_storage(story)
