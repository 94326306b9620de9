"""A scheduler with a journal says nothing that its disk has not confirmed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from scaler.net.connection import Opened
from scaler.net.identity import LOCAL
from scaler.protocol.messages import PROTOCOL_VERSION, ClientDetails, Heartbeat, Hello, Role
from scaler.scheduler.core.changes import ClientJoined
from scaler.scheduler.core.commands import Command, Send, SendAnswer, WriteJournal
from scaler.scheduler.core.durations import TaskTimes
from scaler.scheduler.durable import DurableSteps
from tests.waiting import soon

CLIENT, OTHER = b"client..", b"other..."
HELLO = Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", "host", 1, ClientDetails())
WRITE = WriteJournal([ClientJoined(CLIENT, HELLO, LOCAL)])


class Disk:
    """Confirms what was written only while it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            assert self.is_open.wait(10)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


class Steps:
    """Steps of a scheduler, what was performed of them, and the failures that it was told of."""

    def __init__(self, path: Path) -> None:
        self.performed: list[Command] = []
        self.failures: list[tuple[str, bool]] = []
        self.durable = DurableSteps(path, self._perform, lambda *failure: self.failures.append(failure))
        self.durable.recover()

    def _perform(self, commands: Sequence[Command]) -> None:
        self.performed += commands


def run(test: Callable[[Steps], Awaitable[None]], path: Path, disk: Disk) -> None:
    async def whole() -> None:
        steps = Steps(path)
        try:
            await test(steps)
        finally:
            disk.is_open.set()
            steps.durable.close()

    asyncio.run(whole())


def said(peer: bytes, number: float) -> Send:
    return Send(peer, Heartbeat(number))


def test_nothing_is_said_before_the_disk_has_confirmed_what_led_to_it_and_then_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test(steps: Steps) -> None:
        steps.durable.add([], [said(CLIENT, 0)])  # nothing led to it
        assert steps.performed == [said(CLIENT, 0)]
        steps.durable.add([], [WRITE, said(CLIENT, 1)])
        steps.durable.add([], [said(OTHER, 2), SendAnswer(OTHER, Heartbeat(3))])
        await asyncio.sleep(0.02)
        assert steps.performed == [said(CLIENT, 0)]
        disk.is_open.set()
        await soon(lambda: len(steps.performed) == 4)
        assert steps.performed == [said(CLIENT, 0), said(CLIENT, 1), said(OTHER, 2), SendAnswer(OTHER, Heartbeat(3))]

    run(test, tmp_path, disk)


def test_what_was_meant_for_an_earlier_session_of_a_peer_is_not_said_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test(steps: Steps) -> None:
        steps.durable.add([], [WRITE, said(CLIENT, 1), said(OTHER, 2)])
        steps.durable.add([Opened(CLIENT, HELLO)], [said(CLIENT, 3)])
        disk.is_open.set()
        await soon(lambda: len(steps.performed) == 2)
        assert steps.performed == [said(OTHER, 2), said(CLIENT, 3)]

    run(test, tmp_path, disk)


def test_a_disk_that_fails_is_told_of_and_so_is_its_recovery_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, which need no record, do not wait for it."""
    disk = Disk(monkeypatch)
    disk.is_open.set()
    real, is_broken = os.pwrite, True

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if is_broken and offset:
            raise OSError(28, os.strerror(28))
        return real(descriptor, data, offset)

    async def test(steps: Steps) -> None:
        nonlocal is_broken
        monkeypatch.setattr(os, "pwrite", pwrite)
        steps.durable.add([], [WRITE, said(CLIENT, 1)])
        await soon(lambda: bool(steps.failures))
        text = (
            f"state_directory: cannot write to {tmp_path}: No space left on device; new work is refused, and all other "
            "work waits, until 65 MiB are free there"
        )
        assert steps.failures == [(text, True)]
        steps.durable.add([], [said(OTHER, 2), SendAnswer(CLIENT, Heartbeat(3))])
        assert steps.performed == [SendAnswer(CLIENT, Heartbeat(3))]
        is_broken = False
        await soon(lambda: len(steps.performed) == 3)
        assert steps.performed[1:] == [said(CLIENT, 1), said(OTHER, 2)]
        assert steps.failures[1:] == [("", False)]

    run(test, tmp_path, disk)

    async def next_one() -> None:
        steps = DurableSteps(tmp_path, lambda _: None, lambda *_: None)
        assert [type(each).__name__ for each in steps.recover()] == ["ClientsGone", "Recovered"]
        steps.close()

    asyncio.run(next_one())


# -- durations of the cluster's tasks


def opened(directory: Path) -> DurableSteps:
    steps = DurableSteps(directory / "journal", lambda _: None, lambda *_: None)
    steps.recover()
    return steps


def restart(directory: Path, times: TaskTimes) -> TaskTimes:
    """Return what a scheduler knows that follows one which has known this."""

    async def both() -> TaskTimes:
        first = opened(directory)
        first.write_task_times(times.counts)
        first.close()
        second = opened(directory)
        found = TaskTimes()
        found.restore(second.read_task_times())
        second.close()
        return found

    return asyncio.run(both())


def test_the_median_of_the_clusters_tasks_is_the_same_after_a_restart(tmp_path: Path) -> None:
    times = TaskTimes()
    for mean_us, tasks in ((300, 40), (8_000_000, 900), (60_000_000, 12)):
        times.add(mean_us, tasks)
    after = restart(tmp_path, times)
    assert after.median_seconds == times.median_seconds == pytest.approx(8.0, rel=0.5)
    assert restart(tmp_path, TaskTimes()).median_seconds is None, "nothing has ended yet"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1, 2",
        b"\xff\xfe\x00",
        b"7",
        b"null",
        b'["much"]',
        b"[[1]]",
        b"[-1]",
        b"[NaN]",
        b"[Infinity]",
        b"[1" + b"0" * 400 + b"]",
        b"[" * 100_000,
        b"[" + b"1," * 99 + b"1]",
    ],
    ids=lambda text: text[:12].decode("latin-1"),
)
def test_a_damaged_file_of_durations_costs_no_more_than_the_median(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "task_times.json").write_bytes(text)

    async def whole() -> None:
        steps = opened(tmp_path)
        assert steps.read_task_times() == []
        assert "task_times.json is not used" in caplog.text
        steps.write_task_times([0.0, 3.0])
        assert steps.read_task_times() == [0.0, 3.0]
        steps.close()

    asyncio.run(whole())


def test_durations_that_cannot_be_written_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "task_times.json").mkdir()

    async def whole() -> None:
        steps = opened(tmp_path)
        steps.write_task_times([1.0])
        assert steps.read_task_times() == []
        steps.close()

    asyncio.run(whole())
    assert "cannot write" in caplog.text
