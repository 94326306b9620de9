"""Items of an imap that wait for the next one of their chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from scaler.extensions.maps.results import ResultIterator
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


def test_late_item_delays_no_earlier_item() -> None:
    later: list[Callable[[], None]] = []
    runner: Any = Runner()

    def numbers() -> Iterator[int]:
        yield from (1, 2)
        later.pop()()  # the client's thread, before the next item
        yield from (3, 4, 5, 6)

    items = numbers()
    results = ResultIterator(items, runner, Window(None, None), lambda _, call: later.append(call))
    results._pull(items, 4)  # noqa: SLF001
    assert runner.sent == [[1, 2], [3, 4]]
    later.pop()()
    assert not later, "a complete chunk is not watched"
    results._pull(items, 2)  # noqa: SLF001
    assert runner.sent == [[1, 2], [3, 4], [5, 6]]
    results.close()
