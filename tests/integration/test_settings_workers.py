"""Settings of worker managers and their workers, as seen by a scripted scheduler."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.config.worker import WorkerConfig
from scaler.host import usable_memory
from scaler.net.connection import Identity, ListenerEvent, Opened, Received
from scaler.net.listener import SocketListener
from scaler.protocol.messages import (
    Desired,
    Hello,
    ManagerDetails,
    ManagerStatus,
    Message,
    Outcome,
    Refused,
    Welcome,
    WorkerDetails,
    WorkerHeartbeat,
)
from scaler.worker.processor.context import current
from tests.integration.settings_rig import Command, command
from tests.integration.worker_rig import Rig, play
from tests.waiting import until, wait_for_file, within

WAIT_SECONDS = 15.0
LONG_GRACE_SECONDS = 60.0


def addresses_in(directory: Path) -> dict[str, str]:
    """Addresses of a scripted scheduler for managers and for workers."""
    return {"manager": f"ipc://{directory}/m", "worker": f"ipc://{directory}/w"}


class PlayedScheduler:
    """Welcomes every peer on two addresses, and records each peer's address and messages."""

    def __init__(
        self, directory: Path, lease_seconds: float, heartbeat_seconds: float, *, is_local: bool = True
    ) -> None:
        self.managers: dict[bytes, ManagerDetails] = {}
        self.workers: list[WorkerDetails] = []
        self.said: list[Message] = []
        self._changed = asyncio.Event()
        self._welcome = Welcome(False, 1, lease_seconds, heartbeat_seconds)
        self.addresses = addresses_in(directory)
        self.listeners = {
            name: SocketListener(
                [address],
                server_kind="scheduler",
                admit=self._admit,
                on_events=partial(self._on_events, name),
                has_local_listener=is_local,
            )
            for name, address in self.addresses.items()
        }

    def _admit(self, _peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
        return self._welcome

    def _on_events(self, name: str, events: Sequence[ListenerEvent]) -> None:
        for event in events:
            match event, name:
                case Opened(peer, Hello(details=ManagerDetails() as details)), "manager":
                    self.managers[peer] = details
                case Opened(_, Hello(details=WorkerDetails() as details)), "worker":
                    self.workers.append(details)
                case Received(message=message), _:
                    self.said.append(message)
        self._changed.set()

    def want(self, units: int) -> None:
        for peer in self.managers:
            self.listeners["manager"].send(peer, Desired(units, [], "a test wants them"))

    async def until(self, fits: Callable[[], Any]) -> Any:
        while not (found := fits()):
            self._changed.clear()
            await self._changed.wait()
        return found

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.said)


def on_a_played_scheduler(
    directory: Path,
    story: Callable[[PlayedScheduler, Command], Awaitable[None]],
    name: str,
    *arguments: str,
    lease_seconds: float = 60.0,
    heartbeat_seconds: float = 15.0,
    addressed: bool = True,
    is_local: bool = True,
    **environment: str,
) -> None:
    """Run a scenario with a command whose manager and workers connect to a scripted scheduler on separate addresses.

    addressed: the command gets these addresses by flags. is_local: they need no ZeroMQ.
    """

    async def main() -> None:
        scheduler = PlayedScheduler(directory, lease_seconds, heartbeat_seconds, is_local=is_local)
        addresses = (scheduler.addresses["manager"], "-wsa", scheduler.addresses["worker"]) if addressed else ()
        try:
            with command(name, *arguments, *addresses, directory=directory, **environment) as running:
                async with asyncio.timeout(WAIT_SECONDS):
                    await story(scheduler, running)
                assert await asyncio.to_thread(running.stop) == 0, running.errors()
        finally:
            for listener in scheduler.listeners.values():
                listener.close()

    asyncio.run(main())


def manager(*arguments: str) -> tuple[str, ...]:
    return ("scaler_worker_manager", "baremetal_native", "-wmi", "mine", *arguments)


def test_manager_and_workers_log_their_identity_to_the_configured_path(tmp_path: Path) -> None:
    async def story(scheduler: PlayedScheduler, running: Command) -> None:
        await scheduler.until(lambda: scheduler.workers and scheduler.managers)
        offers = {"linux": None, "gpu": 2.0}
        (details,) = scheduler.managers.values()
        memory = usable_memory()
        assert details == ManagerDetails(
            "mine",
            "baremetal_native",
            capabilities=offers,
            max_slots=3,
            unit_slots=3,
            fixed=True,
            unit_memory_bytes=memory[0],
            unit_price=0.35,
        )
        (worker,) = scheduler.workers
        assert worker == WorkerDetails("mine", worker.unit_id, 3, 7, offers, *memory, 300.0)

    flags = ("--mode", "fixed", "-n", "3", "-pwc", "linux,gpu=2", "-wtqs", "7")
    on_a_played_scheduler(tmp_path, story, *manager(*flags, "--unit-price", "0.35"))


def test_dynamic_manager_starts_the_requested_units_up_to_its_limit(tmp_path: Path) -> None:
    async def story(scheduler: PlayedScheduler, running: Command) -> None:
        await scheduler.until(lambda: scheduler.count(ManagerStatus))
        (details,) = scheduler.managers.values()
        assert (details.max_slots, details.unit_slots, details.fixed) == (2, 1, False)
        scheduler.want(5)
        await scheduler.until(lambda: len(scheduler.workers) == 2)
        before = scheduler.count(ManagerStatus)
        await scheduler.until(lambda: scheduler.count(ManagerStatus) >= before + 3)
        assert len(scheduler.workers) == 2
        assert all(worker.unit_id.startswith(socket.gethostname()) for worker in scheduler.workers)

    on_a_played_scheduler(tmp_path, story, *manager("-mtc", "2", "-his", "0.05"))


def test_workers_use_the_configured_storage_or_the_advertised_one() -> None:
    def look() -> str:
        context = current()
        assert context is not None
        return context.object_storage_address

    def story(expected: str) -> Callable[[Rig], Awaitable[None]]:
        async def told(rig: Rig) -> None:
            (task,) = rig.submit(look, ())
            assert await rig.value(task) == expected

        return told

    play(story("tcp://advertised:1"), storage="tcp://advertised:1")
    play(story("ipc:///mine"), storage="tcp://advertised:1", object_storage_address="ipc:///mine")


def test_heartbeats_meet_a_short_lease_whatever_their_interval(tmp_path: Path) -> None:
    async def story(scheduler: PlayedScheduler, running: Command) -> None:
        await scheduler.until(lambda: scheduler.workers)
        async with asyncio.timeout(5):
            await scheduler.until(lambda: scheduler.count(WorkerHeartbeat) >= 3 and scheduler.count(ManagerStatus) >= 3)

    flags = ("scaler_cluster", "-n", "1", "-his", "30")
    on_a_played_scheduler(tmp_path, story, *flags, lease_seconds=1.0, heartbeat_seconds=0.25)


@pytest.mark.parametrize("seconds", [0.05, LONG_GRACE_SECONDS])
def test_stopping_worker_gives_its_task_a_grace_period(seconds: float, tmp_path: Path) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"

    def hold(begun: str, path: str) -> None:
        Path(begun).touch()
        wait_for_file(path)

    async def story(rig: Rig) -> None:
        (task,) = rig.submit(hold, (str(began), str(gate)))
        await rig.poll(began.exists)
        rig.agent.stop()
        if seconds == LONG_GRACE_SECONDS:
            gate.touch()
        async with asyncio.timeout(WorkerConfig.stop_grace_seconds - 1):
            outcome, _ = await rig.outcome(task)
        assert outcome is (Outcome.SUCCESS if seconds == LONG_GRACE_SECONDS else Outcome.NOT_STARTED)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await rig.agent.ended == 0

    play(story, stop_grace_seconds=seconds)


def written(read: Callable[[], str], text: str) -> str:
    """Wait until there is a line with this text, and return it."""
    assert within(WAIT_SECONDS, lambda: text in read()), read()
    return next(line for line in read().splitlines() if text in line)


def test_workers_log_as_configured_in_their_manager(tmp_path: Path) -> None:
    log, config = tmp_path / "log", tmp_path / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(log), "formatter": "f"}
    config.write_text(
        json.dumps(
            {
                "version": 1,
                "formatters": {"f": {"format": "mine %(process)d %(name)s"}},
                "handlers": {"h": handler},
                "root": {"level": "DEBUG", "handlers": ["h"]},
            }
        )
    )

    async def story(scheduler: PlayedScheduler, running: Command) -> None:
        await scheduler.until(lambda: scheduler.workers)
        workers = [process.pid for process in psutil.Process(running.pid).children()]
        assert len(workers) == 1
        for pid in (running.pid, *workers):
            await asyncio.to_thread(written, log.read_text, f"mine {pid} scaler.component")

    on_a_played_scheduler(tmp_path, story, "scaler_cluster", "-n", "1", "-lcf", str(config))


def test_explain_names_a_preload_while_it_delays_a_task(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    preload = f"tests.waiting:wait_for_file('{gate}')"
    with SchedulerClusterCombo(n_workers=1, preload=preload) as cluster, Client(cluster.get_address()) as client:
        future = client.submit(time.sleep, 1000)
        until(lambda: f"where the preload {preload} has not returned yet" in client.explain(future))
        gate.touch()
        until(future.running)
        assert client.explain(future).startswith("it runs on worker ")


def test_workers_with_a_hanging_preload_exit_and_back_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    expected = "the preload time:sleep(60) took longer than preload_timeout_seconds = 0.2"
    with (
        SchedulerClusterCombo(
            n_workers=1, preload="time:sleep(60)", preload_timeout_seconds=0.2, logging_paths=[str(log)]
        ) as cluster,
        Client(cluster.get_address()) as client,
    ):
        future = client.submit(abs, -1)
        reason = f"exit code 1: 3 processors in a row could not start: {re.escape(expected)}"
        delayed = re.compile(rf"WARNING .*: {reason}; failed 2 times in a row, next attempt in \d s")
        until(lambda: delayed.search(log.read_text()), seconds=40.0)
        assert re.search(rf"WARNING .*unit \S+ ended .*: {reason}", log.read_text())
        assert not future.done()
