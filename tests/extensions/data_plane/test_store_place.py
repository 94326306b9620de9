"""The file by which agents find the store of their host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scaler.extensions.data_plane.host import place
from scaler.registry import RUNTIME_DIRECTORY_VARIABLE, OwnFile

NAME = "host" + place.SUFFIX
FIRST, SECOND = (place.RunningStore(f"tcp://127.0.0.1:{port}", "00" * 8, port) for port in (1, 2))


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIRECTORY_VARIABLE, str(tmp_path))


def started(store: place.RunningStore) -> OwnFile:
    file = place.take(NAME)
    assert file is not None
    place.publish(file, store)
    return file


def test_one_process_at_a_time_is_the_store_of_a_host() -> None:
    assert place.find(NAME) is None
    file = started(FIRST)
    assert place.take(NAME) is None
    assert place.find(NAME) == FIRST
    file.close()
    assert place.find(NAME) is None


def test_store_is_found_again_after_its_file_is_removed(tmp_path: Path) -> None:
    store = started(FIRST)
    shutil.rmtree(tmp_path / "scaler")
    assert place.find(NAME) is None
    store.refresh()
    assert place.find(NAME) == FIRST
    (tmp_path / "scaler" / NAME).unlink()
    other = started(SECOND)
    store.refresh()
    assert place.find(NAME) == SECOND
    store.close()
    other.close()
