"""A scheduler with a journal sends only what its disk has confirmed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from scaler.extensions.durability.steps import DurableSteps
from scaler.net.connection import LOCAL, Opened
from scaler.protocol.messages import PROTOCOL_VERSION, ClientDetails, Heartbeat, Hello, Role
from scaler.scheduler.core.changes import ClientJoined
from scaler.scheduler.core.commands import Command, Perform, Send, SendAnswer
from tests.waiting import soon

CLIENT, OTHER = b"client..", b"other..."
HELLO = Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", "host", 1, ClientDetails())
WRITE = Perform("durability", [ClientJoined(CLIENT, HELLO, LOCAL)])


class Disk:
    """Confirms writes only while open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.writes = 0
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            self.writes += 1
            assert self.is_open.wait(10)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


class Steps:
    """Steps of a scheduler, their performed commands, and reported failures."""

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


def test_messages_are_sent_in_order_only_after_the_disk_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test(steps: Steps) -> None:
        steps.durable.add([], [said(CLIENT, 0)])  # nothing led to it
        assert steps.performed == [said(CLIENT, 0)]
        steps.durable.add([], [said(CLIENT, 1), WRITE])
        steps.durable.add([], [said(OTHER, 2), SendAnswer(OTHER, Heartbeat(3))])
        await soon(lambda: disk.writes)
        assert steps.performed == [said(CLIENT, 0), SendAnswer(OTHER, Heartbeat(3))]  # nothing needs to lead to it
        disk.is_open.set()
        await soon(lambda: len(steps.performed) == 4)
        assert steps.performed[2:] == [said(CLIENT, 1), said(OTHER, 2)]

    run(test, tmp_path, disk)


def test_messages_for_an_earlier_session_are_not_sent_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test(steps: Steps) -> None:
        steps.durable.add([], [said(CLIENT, 1), said(OTHER, 2), WRITE])
        steps.durable.add([Opened(CLIENT, HELLO)], [said(CLIENT, 3)])
        disk.is_open.set()
        await soon(lambda: len(steps.performed) == 2)
        assert steps.performed == [said(OTHER, 2), said(CLIENT, 3)]

    run(test, tmp_path, disk)


def test_disk_failure_and_recovery_are_reported_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        steps.durable.add([], [said(CLIENT, 1), WRITE])
        await soon(lambda: bool(steps.failures))
        text = (
            f"state_directory: cannot write to {tmp_path}: No space left on device; new work is refused and other "
            "work waits until 65 MiB are free there"
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
        assert [type(each.item).__name__ for each in steps.recover()] == ["ClientsGone", "Recovered"]
        steps.close()

    asyncio.run(next_one())


def test_reports_a_hung_disk_while_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch)
    monkeypatch.setattr("scaler.extensions.durability.steps.HANG_SECONDS", 0.02)
    text = f"state_directory: the disk of {tmp_path} has not responded for 0 s; all new work waits"

    async def test(steps: Steps) -> None:
        steps.durable.add([], [said(CLIENT, 1), WRITE])
        assert not steps.durable.complaint
        await soon(lambda: steps.durable.complaint == text)
        steps.durable.add([], [said(OTHER, 2), SendAnswer(OTHER, Heartbeat(3))])
        assert steps.performed == [SendAnswer(OTHER, Heartbeat(3))]
        disk.is_open.set()
        await soon(lambda: len(steps.performed) == 3)
        assert not steps.durable.complaint
        assert steps.failures == []

    run(test, tmp_path, disk)
    assert [record.getMessage() for record in caplog.records] == [
        text,
        f"state_directory: the disk of {tmp_path} responds again",
    ]


# -- durations of the cluster's tasks
