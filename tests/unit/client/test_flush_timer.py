"""Items of an imap that wait for the next one of their chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import pytest

from scaler.client import map as maps
from scaler.client.map import FlushTimer


class Sender:
    """Receives the flushed items and the delayed calls."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.later: list[Callable[[], None]] = []
        self.timer = FlushTimer(WeakMethod(self.send), lambda _, call: self.later.append(call))

    def send(self, items: list[Any]) -> None:
        self.sent.append(items)

    def poll(self) -> None:
        self.later.pop()()


def test_chunk_completed_during_a_poll_does_not_stop_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maps, "FLUSH_SECONDS", 0.0)
    sender = Sender()

    class Complete(list[Any]):
        def __bool__(self) -> bool:
            sender.timer.end()  # like another thread between any two steps of this one
            return True

    sender.timer.begin(Complete(["first"]))
    sender.poll()
    chunk = ["second"]
    sender.timer.begin(chunk)
    sender.poll()
    assert sender.sent == [["first"], ["second"]]
    assert chunk == []
