"""The worker manager's process: looks at its units, makes them what the scheduler wants, and says what it sees.

One round looks, decides (`reconcile`) and acts; rounds follow one another on every heartbeat, and at once when units
or wishes change. Calls of the backend run in a thread of their own; however long they take, the scheduler hears a
status on every heartbeat.

Out of contact with the scheduler, units are kept, and nothing is started but what a fixed manager replaces by itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from scaler.component import Component, run_component
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import RefusedError, ScalerError
from scaler.ids import new_peer_id
from scaler.logs import about, identify
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.protocol.messages import (
    Desired,
    ManagerDetails,
    ManagerStatus,
    Refused,
    Role,
    Shutdown,
    UnitState,
    UnitStatus,
)
from scaler.worker_manager.backend import Backend, BackendError, Unit, load_backend
from scaler.worker_manager.reconcile import Actions, Goal, Reconciler

ROUND_GAP_SECONDS = 0.05
"""Rounds are at least this far apart, so that units which change together cost one round."""
FIRST_WARNING_SECONDS = 3.0
"""A manager that has been without a scheduler for so long says so."""
LOST_WARNING_SECONDS = 30.0
"""How often it says so again."""
STOP_RETRY_SECONDS = 0.5
"""A manager that ends asks a backend again so soon that could not list or stop its units."""
MAX_LIST_PAUSE_SECONDS = 30.0
"""A backend that cannot list its units is asked again less and less often, and at least so often."""
MAX_REASON_CHARACTERS = 500
ALIVE = (UnitState.PENDING, UnitState.RUNNING, UnitState.STOPPING)

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Connect(Protocol):
    """Makes the connection to the scheduler, on the running loop."""

    def __call__(self, details: ManagerDetails, on_events: Callable[[list[ConnectorEvent]], None]) -> Connector: ...


def run(config: WorkerManagerConfig) -> int:
    """Run a worker manager until it is told to stop, and return the exit code.

    0 after a signal or when the cluster was shut down, 1 when the scheduler refuses this manager or units may be left,
    2 when its type is not installed.
    """

    async def main(component: Component) -> int:
        identify(manager=config.worker_manager_id)
        backend = load_backend(config)
        runner = Runner(config, backend, _connect(config))
        return await runner.run(component.stop, lambda: component.ready({"scheduler": config.scheduler_address}))

    return run_component("worker_manager", config, main, config.event_loop)


class Runner:
    """One worker manager. connect is called once, when it runs."""

    def __init__(self, config: WorkerManagerConfig, backend: Backend, connect: Connect) -> None:
        self._config = config
        self._backend = backend
        self._connect = connect
        capacity = backend.capacity
        self._reconciler = Reconciler(capacity.max_units, capacity.starting, capacity.running_is_joined)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="backend")
        self._heartbeat_seconds = config.heartbeat_interval_seconds
        self._wake = asyncio.Event()
        self._desired: Desired | None = None
        self._joined: set[str] = set()
        """Units whose worker has connected, and of which the reconciler has not been told."""
        self._refused: Refused | None = None
        self._shutdown = False
        self._units: list[Unit] = []
        self._has_listed = False
        self._failed_lists = 0
        """In a row."""
        self._list_at = 0.0
        """When to list again after a failure."""
        self._trouble = ""
        self._in_contact = False
        self._lost_at = time.monotonic()
        self._warn_at = self._lost_at + FIRST_WARNING_SECONDS
        self._connector: Connector | None = None
        self._left = ""
        """What may be left in the end, for people; empty when nothing is."""

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> int:
        """Work until stop is set, the cluster is shut down, or the scheduler refuses this manager.

        ready is called once, when the scheduler has been told of the first units. Whatever happens, no unit is left.
        Raises RefusedError, and ScalerError when units may be left that outlive the manager.
        """
        capacity = self._backend.capacity
        details = ManagerDetails(
            self._config.worker_manager_id,
            self._config.type,
            capacity.max_slots,
            capacity.unit_slots,
            dict(self._config.per_worker_capabilities),
            capacity.fixed,
        )
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: self._wake.set())
        said_ready = False
        try:
            self._connector = self._connect(details, self._turn)
            while not (stop.is_set() or self._shutdown or self._refused):
                self._wake.clear()
                again = await self._round()
                if self._in_contact and not said_ready:
                    ready()
                    said_ready = True
                await self._rest(again)
                await asyncio.sleep(ROUND_GAP_SECONDS)
        finally:
            stopped.cancel()
            await self._end()
        if self._refused is not None:
            raise RefusedError(f"{self._config.scheduler_address} refused this worker manager: {self._refused.text}")
        if self._left:
            raise ScalerError(self._left)
        return 0

    def _turn(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Welcomed(welcome):
                    self._in_contact = True
                    # A scheduler that does not know us has not said yet what it wants.
                    self._desired = None
                    self._heartbeat_seconds = min(self._config.heartbeat_interval_seconds, welcome.heartbeat_seconds)
                case Resumed():
                    self._in_contact = True
                case Broken():
                    self._in_contact = False
                    self._lost_at = time.monotonic()
                    self._warn_at = self._lost_at + FIRST_WARNING_SECONDS
                case ConnectionRefused(refused):
                    self._in_contact = False
                    self._refused = refused
                case Received(message=Desired() as desired):
                    if self._desired is None or self._desired.units != desired.units:
                        _log.info("the scheduler wants %d of my units: %s", desired.units, desired.reason)
                    self._desired = desired
                    self._joined.update(desired.joined)
                case Received(message=Shutdown(text)):
                    _log.info("the cluster is shut down: %s", text)
                    self._shutdown = True
                case Received():
                    # The answer to a status: a round for it would bring the next status, and that an answer, for ever.
                    continue
            self._wake.set()

    def _goal(self) -> Goal:
        desired = self._desired
        drained = frozenset(desired.drained if desired is not None else ())
        joined = frozenset(self._joined)
        self._joined.clear()
        if self._backend.capacity.fixed:
            return Goal(self._backend.capacity.max_units, drained, joined)
        return Goal(desired.units if desired is not None and self._in_contact else None, drained, joined)

    async def _round(self) -> float:
        """Look, decide, act. Returns after how many seconds to do it again if nothing changes before."""
        if (wait := self._list_at - time.monotonic()) > 0:
            self._report()
            return min(wait, self._heartbeat_seconds)
        try:
            self._note(await self._call(self._backend.list))
        except BackendError as error:
            pause = min(MAX_LIST_PAUSE_SECONDS, self._heartbeat_seconds * 2.0 ** min(16, self._failed_lists))
            pause *= 0.5 + random.random()  # noqa: S311 (it spreads retries)
            self._failed_lists += 1
            self._list_at = time.monotonic() + pause
            self._say_trouble(f"cannot list units: {error}")
            self._report()
            return min(pause, self._heartbeat_seconds)
        self._failed_lists = 0
        actions = self._reconciler.step(self._goal(), self._units, time.monotonic(), random.random())  # noqa: S311
        self._say_trouble(actions.trouble)
        self._report()
        await self._act(actions)
        return min(actions.look_again_seconds, self._heartbeat_seconds)

    async def _act(self, actions: Actions) -> None:
        if actions.stop:
            _log.info("stopping %d units: %s", len(actions.stop), ", ".join(actions.stop))
            try:
                await self._call(self._backend.stop, actions.stop)
            except BackendError as error:
                _log.warning("cannot stop units, will try again: %s", error)
        if not actions.start:
            return
        try:
            started = await self._call(self._backend.start, actions.start)
        except BackendError as error:
            self._reconciler.failed(str(error), error.started, time.monotonic(), random.random())  # noqa: S311
            _log.warning("started %d of %d units: %s", len(error.started), actions.start, error)
        else:
            self._reconciler.started(started, time.monotonic())
            _log.info("started %s", ", ".join(started))

    async def _call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call the backend in its thread, and go on reporting while it takes its time."""
        answer = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        while not (await asyncio.wait({answer}, timeout=self._heartbeat_seconds))[0]:
            self._report()
        return answer.result()

    async def _rest(self, seconds: float) -> None:
        """Wait until something changes, at most this long."""
        loop = asyncio.get_running_loop()
        descriptor = self._backend.fileno()
        if descriptor is not None:
            loop.add_reader(descriptor, self._wake.set)
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            if descriptor is not None:
                loop.remove_reader(descriptor)
        self._warn_of_loss(time.monotonic())

    def _warn_of_loss(self, now: float) -> None:
        if self._in_contact or self._connector is None or self._connector.connected or now < self._warn_at:
            return
        self._warn_at = now + LOST_WARNING_SECONDS
        _log.warning(
            "no scheduler answers at %s: waited %.0f s (%s); still trying",
            self._config.scheduler_address,
            now - self._lost_at,
            self._connector.last_error,
        )

    def _note(self, units: list[Unit]) -> None:
        # What had ended before this manager began is none of its news.
        before = self._units if self._has_listed else units
        self._has_listed = True
        known = {unit.unit_id for unit in before if unit.state not in ALIVE}
        for unit in units:
            if unit.state not in ALIVE and unit.unit_id not in known:
                level = logging.WARNING if unit.state is UnitState.FAILED else logging.INFO
                _log.log(
                    level,
                    "unit %s ended after %.1f s: %s",
                    unit.unit_id,
                    unit.age_seconds,
                    unit.reason,
                    extra=about(unit=unit.unit_id),
                )
        self._units = units

    def _say_trouble(self, trouble: str) -> None:
        if trouble and not self._trouble:
            _log.warning("%s", trouble)
        elif self._trouble and not trouble:
            _log.info("trying to start units again")
        self._trouble = trouble

    def _report(self) -> None:
        if self._connector is None or not self._connector.connected:
            return
        now = time.monotonic()
        slots = self._backend.capacity.unit_slots
        units = [
            UnitStatus(unit.unit_id, unit.state, unit.slots, unit.age_seconds, unit.reason[:MAX_REASON_CHARACTERS])
            for unit in self._units
        ]
        listed = {unit.unit_id for unit in self._units}
        units += [
            UnitStatus(unit_id, UnitState.PENDING, slots, age)
            for unit_id, age in self._reconciler.unlisted(now).items()
            if unit_id not in listed
        ]
        self._connector.send(ManagerStatus(now, units, self._trouble[:MAX_REASON_CHARACTERS]))

    async def _end(self) -> None:
        """Stop all units, and end what is left of them after the backend's stop_seconds.

        A manager that was refused leaves units that outlive it: they are those of the one that stays.
        """
        self._warn_at = math.inf
        seconds = self._backend.capacity.stop_seconds
        try:
            async with asyncio.timeout(seconds):
                if self._refused is None or not self._backend.capacity.outlive_manager:
                    await self._stop_all()
        except TimeoutError:
            if not self._backend.capacity.outlive_manager:
                _log.warning("units did not end within %g s and are killed", seconds)
            else:
                self._left = self._what_is_left(seconds)
        await self._call(self._backend.close)
        self._thread.shutdown()
        if self._connector is not None:
            self._connector.close("the worker manager ends")

    def _what_is_left(self, seconds: float) -> str:
        staying = [unit.unit_id for unit in self._units if unit.state in (UnitState.PENDING, UnitState.RUNNING)]
        by_hand = f"; stop by hand: {', '.join(staying)}" if staying else ""
        why = f" ({self._trouble})" if self._trouble else ""
        return f"units may be left, which could not be stopped within {seconds:g} s{why}{by_hand}"

    async def _stop_all(self) -> None:
        asked: set[str] = set()
        self._trouble = ""
        while True:
            self._wake.clear()
            try:
                rest_seconds = await self._stop_some(asked)
            except BackendError as error:
                if str(error) != self._trouble:
                    _log.warning("cannot stop units, will try again: %s", error)
                self._trouble = str(error)
                rest_seconds = STOP_RETRY_SECONDS
            if rest_seconds is None:
                return
            await self._rest(rest_seconds)

    async def _stop_some(self, asked: set[str]) -> float | None:
        """Ask those to stop that stay. Returns how long to rest before the next look, None when all is done."""
        self._note(await self._call(self._backend.list))
        self._report()
        alive = [unit for unit in self._units if unit.state in ALIVE]
        staying = [unit.unit_id for unit in alive if unit.state is not UnitState.STOPPING]
        # What was started a moment ago may not be listed yet, and must not stay behind.
        known = {unit.unit_id for unit in self._units} | asked
        staying += [unit_id for unit_id in self._reconciler.unlisted(time.monotonic()) if unit_id not in known]
        if staying:
            await self._call(self._backend.stop, staying)
            asked.update(staying)
            return 0.0
        return self._heartbeat_seconds if alive and not self._backend.capacity.outlive_manager else None


def _connect(config: WorkerManagerConfig) -> Connect:
    def connect(details: ManagerDetails, on_events: Callable[[list[ConnectorEvent]], None]) -> Connector:
        return SocketConnector(
            config.scheduler_address,
            peer=new_peer_id(),
            hello=own_hello(Role.MANAGER, details),
            on_events=on_events,
            io_threads=config.io_threads,
        )

    return connect
