"""Items of an imap that are held for the next one of their chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import pytest

from scaler.client import holding
from scaler.client.holding import Holding


class Sender:
    """Takes what was held for too long, and what is to be called later."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.later: list[Callable[[], None]] = []
        self.holding = Holding(WeakMethod(self.send), lambda _, call: self.later.append(call))

    def send(self, items: list[Any]) -> None:
        self.sent.append(items)

    def look(self) -> None:
        self.later.pop()()


def test_a_chunk_that_is_complete_at_the_moment_it_is_looked_at_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "HELD_SECONDS", 0.0)
    sender = Sender()

    class Complete(list[Any]):
        def __bool__(self) -> bool:
            sender.holding.end()  # as another thread may do between any two steps of this one
            return True

    sender.holding.begin(Complete(["first"]))
    sender.look()
    held = ["second"]
    sender.holding.begin(held)
    sender.look()
    assert sender.sent == [["first"], ["second"]]
    assert held == []
