"""Workers with package versions other than the client's: a warning, once, with both versions."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest

from scaler import Client
from tests.integration.settings_rig import command
from tests.waiting import until

WAIT_SECONDS = 30.0


def installed(folder: Path, version: str) -> str:
    folder.mkdir()
    (folder / "tabler.py").write_text("def total(values):\n    return sum(values)\n")
    (folder / f"tabler-{version}.dist-info").mkdir()
    return str(folder)


def test_client_is_warned_once_per_function_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = installed(tmp_path / "here", "2.0"), installed(tmp_path / "there", "1.9")
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "tabler", raising=False)
    tabler = importlib.import_module("tabler")

    def count(values: list[int]) -> int:
        return int(tabler.total(values))

    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        address = scheduler.addresses()["scheduler"]
        workers = ("scaler_cluster", address, "-n", "2")
        with command(*workers, directory=tmp_path, PYTHONPATH=there) as cluster, Client(address) as client:
            cluster.addresses()

            def warnings() -> list[str]:
                return [text for record in caplog.records if "tabler" in (text := record.getMessage())]

            assert client.map(count, [[1, 2]] * 20, chunk_size=1) == [3] * 20
            assert client.submit(len, [1]).result(WAIT_SECONDS) == 1
            [text] = until(warnings, WAIT_SECONDS)
            assert "count" in text
            assert "may behave differently there: the worker has tabler 1.9 (the client has 2.0)" in text
            assert client.submit(tabler.total, [1, 2, 3]).result(WAIT_SECONDS) == 6
            until(lambda: len(warnings()) == 2, WAIT_SECONDS)
            assert client.map(count, [[1, 2]] * 20) == [3] * 20
            assert len([text for text in warnings() if "count" in text]) == 1
            assert [record.levelno for record in caplog.records if "tabler" in record.getMessage()] == [
                logging.WARNING
            ] * 2
        until(lambda: "has different package versions than a client" in scheduler.output() + scheduler.errors())
    del sys.modules["tabler"]
