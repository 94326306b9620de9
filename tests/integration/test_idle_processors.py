"""An idle processor collects garbage, and frees the memory of objects that the client has released."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.worker.processor import main
from tests.waiting import until

SECONDS = 20
SIZE_BYTES = 100_000_000


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address(), timeout_seconds=SECONDS) as connected:
        connected.submit(setattr, main, "COLLECT_NS", 500_000_000).result(SECONDS)
        yield connected


class TellsItsEnd:
    def __init__(self, path: str) -> None:
        self.path = path
        self.itself = self

    def __del__(self) -> None:
        Path(self.path).touch()


def leave_garbage(path: str) -> None:
    TellsItsEnd(path)


def use(value: bytes) -> int:
    assert len(value) == SIZE_BYTES
    return os.getpid()


def test_garbage_of_the_last_task_is_collected_despite_a_recent_collection(client: Client, tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    client.map(leave_garbage, map(str, paths), chunk_size=1)
    until(lambda: all(path.exists() for path in paths))


def test_released_object_leaves_the_memory_of_an_idle_processor(client: Client) -> None:
    sent = client.send_object(os.urandom(SIZE_BYTES))
    processor = psutil.Process(client.submit(use, sent).result(SECONDS))
    assert processor.memory_info().rss > SIZE_BYTES
    del sent
    until(lambda: processor.memory_info().rss < SIZE_BYTES)
