"""Iterators over many futures drop yielded ones: `add` in an endless loop uses no memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from scaler import AsyncClient, Client


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(processes=False) as connected:
        yield connected


def test_asyncio_as_completed_drops_yielded_futures() -> None:
    async def run() -> list[weakref.ref[Any]]:
        found = []
        async with AsyncClient(processes=False) as client:
            completed = client.as_completed([client.submit(bytes, 10)])
            async for future in completed:
                found.append(weakref.ref(future))
                if len(found) > 3:
                    break
                completed.add(client.submit(bytes, 10))
                del future
            gc.collect()
            return found[:2]

    assert [each() for each in asyncio.run(run())] == [None, None]


def test_completed_futures_are_released(client: Client) -> None:
    futures = [client.submit(bytes, 10) for _ in range(3)]
    waiting = client.as_completed(futures)
    for future in futures:
        assert next(waiting) is future
    del future
    found = [weakref.ref(each) for each in futures]
    futures.clear()
    gc.collect()
    assert [each() for each in found] == [None] * 3
    del waiting
