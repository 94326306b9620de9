"""Items of an imap whose iterable is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.extensions.maps.results import STEP_ITEMS, ResultIterator
from scaler.extensions.maps.window import Window


class Runner:
    """Receives the items sent."""

    chunk_size = None

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.progress = SimpleNamespace(items=0, is_over=False)

    def send(self, items: list[int]) -> object:
        self.sent.append([*items])
        return object()

    def cancel(self) -> None:
        self.progress.is_over = True


def test_slow_iterable_gets_partial_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    runner: Any = Runner()

    def numbers() -> Iterator[int]:
        nonlocal now
        for number in range(100):
            now += 1.0 if 10 <= number < 20 else 0.0
            yield number

    items = numbers()
    results = ResultIterator(items, runner, Window(None, None), lambda *_: None)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    while results._items is not None:  # noqa: SLF001
        results._pull(items, 50)  # noqa: SLF001
    assert [len(each) for each in runner.sent] == [STEP_ITEMS, 1, 1, 1, 1, 50, 100 - STEP_ITEMS - 54]
    results.close()
