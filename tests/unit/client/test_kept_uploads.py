"""The copies of uploads that a client keeps for a restarted object storage."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

import pytest

from scaler.client import transfers
from scaler.client.transfers import Keeper


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "default_memory_limit_bytes", lambda: 400)


def test_uploads_beyond_the_limit_are_files() -> None:
    async def run() -> None:
        keeper = Keeper()
        first, second = await keeper.keep([b"a" * 60], None), await keeper.keep([b"b" * 60], None)
        assert isinstance((first.read() or ())[0], bytes)
        assert list(map(bytes, second.read() or ())) == [b"b" * 60]
        assert isinstance((second.read() or ())[0], memoryview)
        del first
        third = await keeper.keep([b"c" * 60], None)
        assert third.read() == [b"c" * 60], "the first one was freed"
        assert isinstance((third.read() or ())[0], bytes)

    asyncio.run(run())


def test_full_disk_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    async def run() -> None:
        keeper = Keeper()
        for _ in range(2):
            assert (await keeper.keep([bytes(200)], None)).read() is None

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [text.partition(" would")[0] for text in caplog.messages] == ["scaler: large arguments"]
