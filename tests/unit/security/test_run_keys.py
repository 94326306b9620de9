"""The keys of a run, in the runtime directory of its user."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scaler.security.run import RunKeys, find

ADDRESS = "tcp://127.0.0.1:8516"


def test_keys_are_found_again_after_the_runtime_directory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    keys = RunKeys()
    keys.publish([ADDRESS])
    before = find(ADDRESS)
    shutil.rmtree(tmp_path / "scaler")
    assert find(ADDRESS) is None
    keys.refresh()
    assert find(ADDRESS) == before
    assert before is not None
    keys.close()
    assert find(ADDRESS) is None
