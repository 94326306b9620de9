"""Memory shared by processes counts once, even while some of them start or exit."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from scaler.extensions.resources import memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does not tell shares here")

FORK = multiprocessing.get_context("fork") if sys.platform.startswith("linux") else None


class Children:
    """Forked children of this process, which share its memory and sleep."""

    def __init__(self) -> None:
        self._children: list[multiprocessing.process.BaseProcess] = []

    def begin(self, count: int) -> None:
        assert FORK is not None
        for _ in range(count):
            child = FORK.Process(target=signal.pause)
            child.start()
            self._children.append(child)

    def end(self, count: int) -> None:
        """Kill children without reaping them: they are zombies."""
        for child in self._children[:count]:
            assert child.pid is not None
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.join()


@pytest.fixture
def children() -> Iterator[Children]:
    family = Children()
    yield family
    family.close()


def after_readings(monkeypatch: pytest.MonkeyPatch, count: int, happens: Callable[[], None]) -> None:
    """Call `happens` once the shares of this many processes have been read."""
    read = itertools.count(1)
    bytes_of = memory.bytes_of

    def reading(pid: int, name: str, fields: tuple[bytes, ...]) -> int:
        found = bytes_of(pid, name, fields)
        if name == "smaps_rollup" and next(read) == count:
            happens()
        return found

    monkeypatch.setattr(memory, "bytes_of", reading)


def test_children_starting_during_a_measurement_count_no_page_twice(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = memory.exact_bytes(os.getpid())
    after_readings(monkeypatch, 1, lambda: children.begin(3))
    assert memory.exact_bytes(os.getpid()) < 1.2 * alone
