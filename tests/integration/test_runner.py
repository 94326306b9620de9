"""The generic worker manager over an in-memory backend and a scripted scheduler."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest

from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ScalerError, UnreachableError
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.protocol.messages import (
    Buffer,
    Descriptor,
    Desired,
    ManagerDetails,
    ManagerStatus,
    Message,
    RefusalReason,
    Refused,
    UnitState,
    Welcome,
)
from scaler.testing.backends import MemoryBackend
from scaler.worker_manager import runner
from scaler.worker_manager.backend import BackendError, Capacity, Unit
from scaler.worker_manager.runner import Runner

SCHEDULER = b"schedulr"
WELCOME = Welcome(resumed=False, incarnation=1, lease_seconds=60.0, heartbeat_seconds=2.0)


class ScriptedScheduler:
    """A Connector whose other side is the test."""

    peer = b"manager!"
    last_error = ""

    passes_descriptors = False

    def __init__(self) -> None:
        self.connected = False
        self.details: ManagerDetails | None = None
        self.statuses: list[ManagerStatus] = []
        self.closed = False
        self.connections = 0
        self._turn: Callable[[list[ConnectorEvent]], None] | None = None
        self._heard = asyncio.Event()
        self._connected = asyncio.Event()

    def connect(self, details: ManagerDetails, on_events: Callable[[list[ConnectorEvent]], None]) -> Connector:
        self.connections += 1
        self._connected.set()
        self.details = details
        self._turn = on_events
        return self

    def say(self, *events: ConnectorEvent | Message) -> None:
        assert self._turn is not None
        turn: list[ConnectorEvent] = []
        for event in events:
            match event:
                case Welcomed() | Resumed():
                    self.connected = True
                case Broken() | ConnectionRefused():
                    self.connected = False
            known = isinstance(event, Welcomed | Resumed | Received | Broken | ConnectionRefused)
            turn.append(event if known else Received(SCHEDULER, event))  # type: ignore[arg-type]
        self._turn(turn)

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        assert isinstance(message, ManagerStatus)
        self.statuses.append(message)
        self._heard.set()

    def together(self, work: Callable[[], object]) -> None:
        work()

    def outbox_bytes(self) -> int:
        return 0

    def close(self, reason: str = "") -> None:
        self.closed = True

    async def next_status(self) -> ManagerStatus:
        self._heard.clear()
        await self._heard.wait()
        return self.statuses[-1]

    async def next_connection(self) -> None:
        self._connected.clear()
        await self._connected.wait()

    async def until(self, fits: Callable[[ManagerStatus], bool]) -> ManagerStatus:
        while not fits(status := await self.next_status()):
            pass
        return status


@dataclass
class Stage:
    scheduler: ScriptedScheduler
    backend: MemoryBackend
    stop: asyncio.Event
    task: asyncio.Task[int]
    ready: list[bool]


def play(
    story: Callable[[Stage], Awaitable[None]],
    backend: MemoryBackend | None = None,
    heartbeat_seconds: float = 0.05,
    leaves: Sequence[str] = (),
    takeover_seconds: float = 0.0,
    patience_seconds: float = math.inf,
    *,
    is_closed: bool = True,
) -> Stage:
    """Run a manager for a scenario, and stop it. leaves: units that must remain.

    is_closed: whether the backend must be closed in the end.
    """
    config = WorkerManagerConfig(
        type="memory",
        scheduler_address="tcp://127.0.0.1:1",
        worker_manager_id="m",
        heartbeat_interval_seconds=heartbeat_seconds,
        per_worker_capabilities={"gpu": 1.0},
    )

    async def main() -> Stage:
        scheduler = ScriptedScheduler()
        units = backend or MemoryBackend(Capacity.of_units(1, 8))
        stop = asyncio.Event()
        ready: list[bool] = []
        runner = Runner(config, lambda: units, scheduler.connect, takeover_seconds)
        runner.patience_seconds = patience_seconds
        task = asyncio.create_task(runner.run(stop, lambda: ready.append(True)))
        await scheduler.next_connection()
        stage = Stage(scheduler, units, stop, task, ready)
        try:
            await story(stage)
        finally:
            stop.set()
            with suppress(ScalerError):
                await task
        assert units.alive() == list(leaves)
        assert units.closed is is_closed
        assert scheduler.closed
        return stage

    return asyncio.run(main())


def running(count: int) -> Callable[[ManagerStatus], bool]:
    return lambda status: sum(unit.state is UnitState.RUNNING for unit in status.units) == count


def test_starts_what_the_scheduler_wants_and_leaves_nothing_behind() -> None:
    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(3, [], "work"))
        await stage.scheduler.until(running(3))
        assert stage.ready == [True]

    stage = play(story)
    assert stage.task.result() == 0
    assert stage.scheduler.details == ManagerDetails(
        "m", "memory", capabilities={"gpu": 1.0}, max_slots=8, unit_slots=1
    )


def test_drained_units_are_stopped_and_others_kept() -> None:
    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        await stage.scheduler.until(running(2))
        stage.scheduler.say(Desired(1, ["unit-1"], "idle"))
        status = await stage.scheduler.until(running(1))
        assert [unit.unit_id for unit in status.units if unit.state is UnitState.RUNNING] == ["unit-2"]

    play(story)


IN_USE = ConnectionRefused(Refused(RefusalReason.DUPLICATE, "worker manager id 'm' is in use"))


def test_launchers_manager_takes_over_its_id_when_the_old_one_exits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "TAKEOVER_RETRY_SECONDS", 0.001)

    async def story(stage: Stage) -> None:
        for _ in range(3):
            stage.scheduler.say(IN_USE)
            await stage.scheduler.next_connection()
            assert not stage.task.done()
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        await stage.scheduler.until(running(2))

    stage = play(story, takeover_seconds=60.0)
    assert stage.task.result() == 0
    assert stage.ready == [True]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "worker manager id 'm' is in use. An earlier one may still be exiting: retrying for 60 s"
    ]


class CountedBackend(MemoryBackend):
    """Lets the test wait for its listings."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._listed = threading.Semaphore(0)

    def list(self) -> list[Unit]:
        self._listed.release()
        return super().list()

    async def rounds(self, count: int) -> None:
        """Wait until the manager has polled this often again, and acted on all but the last poll."""
        while self._listed.acquire(blocking=False):
            pass
        for _ in range(count):
            await asyncio.to_thread(self._listed.acquire)


class BusyBackend(MemoryBackend):
    """Fails the first listing and then the first stop after becoming busy."""

    busy = False
    refusals = 0

    def list(self) -> list[Unit]:
        self._refuse(0)
        return super().list()

    def stop(self, unit_ids: Sequence[str]) -> None:
        self._refuse(1)
        super().stop(unit_ids)

    def _refuse(self, turn: int) -> None:
        if self.busy and self.refusals == turn:
            self.refusals += 1
            raise BackendError("throttled")


def test_manager_exiting_while_its_service_is_busy_retries_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STOP_RETRY_SECONDS", 0.01)
    backend = BusyBackend(Capacity.of_units(1, 8, outlive_manager=True))

    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        await stage.scheduler.until(running(2))
        stage.stop.set()
        backend.busy = True

    assert play(story, backend).task.result() == 0
    assert backend.refusals == 2


class DeafBackend(MemoryBackend):
    """Stops nothing once deaf."""

    is_deaf = False

    def stop(self, unit_ids: Sequence[str]) -> None:
        if self.is_deaf:
            raise BackendError("the service does not answer")
        super().stop(unit_ids)


def test_manager_reports_leftover_units_once_and_in_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "STOP_RETRY_SECONDS", 0.001)
    backend = DeafBackend(Capacity.of_units(1, 8, stop_seconds=0.1, outlive_manager=True))

    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(1, [], "work"))
        await stage.scheduler.until(running(1))
        backend.is_deaf = True

    ended = play(story, backend, leaves=["unit-1"]).task
    assert str(ended.exception()) == (
        "some units may remain, because they could not be stopped within 0.1 s (the service does not answer); "
        "stop by hand: unit-1"
    )
    assert [record.getMessage() for record in caplog.records].count(
        "cannot stop units; retrying: the service does not answer"
    ) == 1


def test_without_contact_units_are_kept_and_none_started() -> None:
    backend = CountedBackend(Capacity.of_units(1, 8))

    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        await stage.scheduler.until(running(2))
        stage.scheduler.say(Broken(SCHEDULER))
        stage.backend.lose("unit-1", "exit code 1")
        await backend.rounds(3)
        assert stage.backend.alive() == ["unit-2"]
        stage.scheduler.say(Resumed(SCHEDULER))
        await stage.scheduler.until(running(2))

    play(story, backend)


def test_scheduler_without_state_adopts_existing_units_without_duplicates() -> None:
    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(4, [], "work"))
        await stage.scheduler.until(running(4))
        stage.scheduler.say(Broken(SCHEDULER))
        stage.scheduler.say(Welcomed(WELCOME))
        await stage.scheduler.until(running(4))
        stage.scheduler.say(Desired(5, [], "work"))
        await stage.scheduler.until(running(5))
        assert stage.backend.starts == 5

    play(story)


def test_fixed_manager_starts_without_a_scheduler_and_replaces_lost_units() -> None:
    backend = CountedBackend(Capacity.of_units(8, 3, fixed=True))

    async def story(stage: Stage) -> None:
        await backend.rounds(2)
        assert len(stage.backend.alive()) == 3
        stage.backend.lose("unit-1", "exit code 1")
        stage.scheduler.say(Welcomed(WELCOME), Desired(0, [], "no work"))
        await stage.scheduler.until(lambda status: len(status.units) == 4 and running(3)(status))

    play(story, backend)


class SlowBackend(MemoryBackend):
    """Its `start` waits for the test."""

    def __init__(self) -> None:
        super().__init__(Capacity.of_units(1, 8))
        self.is_starting = threading.Event()
        self.go_on = threading.Event()

    def start(self, count: int) -> list[str]:
        self.is_starting.set()
        self.go_on.wait()
        return super().start(count)


def test_slow_backend_does_not_silence_the_manager() -> None:
    backend = SlowBackend()

    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        try:
            for _ in range(5):
                assert (await stage.scheduler.next_status()).units == []
        finally:
            backend.go_on.set()
        await stage.scheduler.until(running(2))

    play(story, backend)


class BlindBackend(MemoryBackend):
    """Its first listings fail."""

    def __init__(self, *, outlive_manager: bool = False) -> None:
        super().__init__(Capacity.of_units(1, 8, outlive_manager=outlive_manager))
        self.failures = 2

    def list(self) -> list[Unit]:
        if self.failures:
            self.failures -= 1
            raise BackendError("the service does not answer")
        return super().list()


def test_manager_that_cannot_list_units_starts_none_and_reports_it() -> None:
    backend = BlindBackend()

    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        status = await stage.scheduler.next_status()
        assert status.degraded_reason == "cannot list units: the service does not answer"
        assert stage.backend.starts == 0
        await stage.scheduler.until(lambda status: running(2)(status) and not status.degraded_reason)

    play(story, backend)


def test_fixed_cluster_and_its_workers_exit_without_a_scheduler() -> None:
    async def story(stage: Stage) -> None:
        stage.scheduler.say(Welcomed(WELCOME), Desired(2, [], "work"))
        await stage.scheduler.until(running(2))
        stage.scheduler.say(Broken(SCHEDULER))
        with pytest.raises(UnreachableError, match=r"no scheduler answered at tcp://127.0.0.1:1 for 0.2 s"):
            await stage.task

    play(story, patience_seconds=0.2)
