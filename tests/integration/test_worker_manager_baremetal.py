"""The worker manager `baremetal_native` as a process, with real workers, over real sockets."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from scaler.config.load import model_of
from scaler.host import usable_memory
from scaler.net.connection import Identity, ListenerEvent, Opened, Received
from scaler.net.listener import SocketListener
from scaler.protocol.messages import (
    Desired,
    Drain,
    Hello,
    ManagerDetails,
    ManagerStatus,
    UnitState,
    Welcome,
    WorkerDetails,
)
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig

MANAGER = """
import sys
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager.main import run
sys.exit(run(BaremetalNativeConfig.from_json(sys.argv[1])))
"""


class Scheduler:
    """Welcomes managers and workers, and sends nothing on its own."""

    def __init__(self) -> None:
        self.managers: dict[bytes, ManagerDetails] = {}
        self.status: ManagerStatus | None = None
        self.workers: list[WorkerDetails] = []
        self._changed = asyncio.Event()
        self.listener = SocketListener(
            ["tcp://127.0.0.1:0"],
            server_kind="scheduler",
            admit=self._admit,
            on_events=self._turn,
            has_local_listener=True,
        )

    @property
    def address(self) -> str:
        return self.listener.addresses[0]

    def _admit(self, peer: bytes, hello: Hello, _identity: Identity) -> Welcome:
        return Welcome(resumed=False, incarnation=1, lease_seconds=60.0, heartbeat_seconds=2.0)

    def _turn(self, events: Sequence[ListenerEvent]) -> None:
        for event in events:
            match event:
                case Opened(peer, Hello(details=ManagerDetails() as details)):
                    self.managers[peer] = details
                case Opened(_, Hello(details=WorkerDetails() as details)):
                    self.workers.append(details)
                case Received(message=ManagerStatus() as status):
                    self.status = status
                case Received(peer, Drain() as drain):
                    self.listener.send(peer, drain)
        self._changed.set()

    def say(self, message: Desired) -> None:
        for peer in self.managers:
            self.listener.send(peer, message)

    async def until(self, fits: Callable[[Scheduler], bool]) -> None:
        while not fits(self):
            self._changed.clear()
            await self._changed.wait()

    def in_state(self, state: UnitState) -> list[str]:
        return [] if self.status is None else [unit.unit_id for unit in self.status.units if unit.state is state]

    def reasons(self) -> list[str]:
        return [] if self.status is None else [unit.reason for unit in self.status.units if unit.reason]


def on_a_scheduler(story: Callable[[Scheduler], Awaitable[None]]) -> None:
    async def main() -> None:
        scheduler = Scheduler()
        try:
            await story(scheduler)
        finally:
            scheduler.listener.close()

    asyncio.run(main())


@contextmanager
def manager(address: str, directory: Path | None = None, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """directory: where its workers find modules."""
    config = model_of(
        BaremetalNativeConfig,
        {"scheduler_address": address, "worker_manager_id": "local", "max_task_concurrency": 4}
        | {"insecure_no_auth": True}
        | settings,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", MANAGER, config.to_json()],
        env=dict(os.environ) | ({} if directory is None else {"PYTHONPATH": str(directory)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        descendants = children(process)
        process.kill()
        for child in descendants:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


async def ended(process: subprocess.Popen[str]) -> int:
    return await asyncio.to_thread(process.wait)


def are_gone(processes: list[psutil.Process], seconds: float) -> bool:
    """Wait until none of them runs; zombies count as ended."""
    running: list[int] = []
    for process in processes:
        with suppress(ProcessLookupError):
            running.append(os.pidfd_open(process.pid))
    try:
        deadline = time.monotonic() + seconds
        for descriptor in running:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
    finally:
        for descriptor in running:
            os.close(descriptor)
    return True


def test_units_follow_the_schedulers_target_and_lost_ones_are_replaced() -> None:
    async def story(scheduler: Scheduler) -> None:
        with manager(scheduler.address) as process:
            await scheduler.until(lambda scheduler: bool(scheduler.managers))
            [details] = scheduler.managers.values()
            assert details == ManagerDetails(
                "local",
                "baremetal_native",
                capabilities={},
                max_slots=4,
                unit_slots=1,
                unit_memory_bytes=usable_memory()[0],
            )
            scheduler.say(Desired(2, [], "work"))
            await scheduler.until(lambda scheduler: len(scheduler.in_state(UnitState.RUNNING)) == 2)
            units = scheduler.in_state(UnitState.RUNNING)
            assert {worker.unit_id for worker in scheduler.workers} == set(units)
            assert all(unit_id.startswith(f"{socket.gethostname()}-") for unit_id in units)

            victim = psutil.Process(process.pid).children()[0]
            victim.kill()
            await scheduler.until(lambda scheduler: len(scheduler.workers) == 3)
            assert scheduler.reasons() == ["killed by signal 9 (SIGKILL)"]

            alive = children(process)
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
            assert are_gone(alive, 1.0)

    on_a_scheduler(story)


def test_signal_during_the_start_of_units_leaves_nothing() -> None:
    async def story(scheduler: Scheduler) -> None:
        with manager(scheduler.address) as process:
            await scheduler.until(lambda scheduler: bool(scheduler.managers))
            scheduler.say(Desired(3, [], "work"))
            await scheduler.until(lambda scheduler: len(scheduler.in_state(UnitState.PENDING)) >= 2)
            alive = children(process)
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
            assert are_gone(alive, 1.0)

    on_a_scheduler(story)


def test_workers_failing_to_start_are_reported_and_retried_with_backoff(tmp_path: Path) -> None:
    (tmp_path / "bad_preload.py").write_text("def boom(): raise RuntimeError('no database here')")

    async def story(scheduler: Scheduler) -> None:
        with manager(
            scheduler.address, directory=tmp_path, mode="fixed", max_task_concurrency=1, preload="bad_preload:boom"
        ):
            await scheduler.until(
                lambda scheduler: scheduler.status is not None and bool(scheduler.status.degraded_reason)
            )
            assert scheduler.status is not None
            why = (
                "3 processors in a row could not start: preload bad_preload:boom failed: RuntimeError: no database here"
            )
            assert set(scheduler.reasons()) == {f"exit code 1: {why}"}
            assert scheduler.status.degraded_reason.startswith(
                f"exit code 1: {why}; failed 2 times in a row, next attempt in 1 s"
            )
            await scheduler.until(lambda scheduler: len(scheduler.reasons()) == 3)
            assert len(scheduler.workers) == 3

    on_a_scheduler(story)
