"""The file by which agents find the store of their host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaler.registry import RUNTIME_DIRECTORY_VARIABLE
from scaler.worker.store import place

NAME = "host" + place.SUFFIX
FIRST, SECOND = (place.RunningStore(f"tcp://127.0.0.1:{port}", "00" * 8, port) for port in (1, 2))


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIRECTORY_VARIABLE, str(tmp_path))


def started(store: place.RunningStore) -> int:
    file = place.take(NAME)
    assert file is not None
    place.publish(file, store)
    return file


def test_one_process_at_a_time_is_the_store_of_a_host() -> None:
    assert place.find(NAME) is None
    file = started(FIRST)
    assert place.take(NAME) is None
    assert place.find(NAME) == FIRST
    place.release(NAME, file)
    assert place.find(NAME) is None
    os.close(file)


def test_a_store_whose_file_was_removed_leaves_that_of_the_next_one(tmp_path: Path) -> None:
    first = started(FIRST)
    (tmp_path / "scaler" / NAME).unlink()
    second = started(SECOND)
    place.release(NAME, first)
    assert place.find(NAME) == SECOND
    place.release(NAME, second)
    assert place.find(NAME) is None
    os.close(first)
    os.close(second)


def test_the_file_of_a_store_that_was_killed_is_taken_by_the_next_one() -> None:
    os.close(started(FIRST))
    assert place.find(NAME) is None
    os.close(started(SECOND))
