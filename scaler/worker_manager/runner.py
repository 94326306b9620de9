"""Runs one worker manager: its backend and its connection to the scheduler.

A round lists the units, decides (`reconcile`), and acts. Rounds run on every heartbeat and after every change.
Backend calls run in a thread, so that the scheduler gets a status on every heartbeat. A manager that is stopped before
its backend has answered has started nothing and exits at once. Without contact with the scheduler, units keep running,
and only a fixed manager replaces lost units.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from scaler import logs
from scaler.backoff import Backoff
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import RefusedError, ScalerError, UnreachableError, UsageError
from scaler.grammar import counted
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.policy.view import facts_of
from scaler.policy.warm import WARM_KEYS
from scaler.protocol.messages import Desired, ManagerDetails, ManagerStatus, RefusalReason, Refused, Shutdown, UnitState
from scaler.worker_manager.backend import ENDED, Backend, BackendError, CallThread, Capacity, Unit, answered_before
from scaler.worker_manager.polled import PolledBackend
from scaler.worker_manager.reconcile import Reconciler, UnitsWanted

ROUND_GAP_SECONDS = 0.05  # minimum interval between rounds, so that simultaneous changes share a round
FIRST_WARNING_SECONDS = 3.0  # time without a scheduler before the first warning
LOST_WARNING_SECONDS = 30.0
TAKEOVER_RETRY_SECONDS = 0.5  # pause before a retry while the manager's id is in use
STOP_RETRY_SECONDS = 0.5  # pause of a stopping manager after a failed call to list or stop units
MAX_LIST_PAUSE_SECONDS = 30.0
MAX_REASON_CHARACTERS = 500

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


Connect = Callable[[ManagerDetails, Callable[[list[ConnectorEvent]], None]], Connector]


def _unanswered(reason: str = "") -> str:
    why = f" ({reason})" if reason else ""
    return f"exiting before the backend answered{why}: units of an earlier manager remain for the next one"


class Runner:
    """One worker manager, created on the running loop. make: creates the backend; while it raises BackendError, the
    manager has no slots. takeover_seconds: how long to retry while the manager's id is in use."""

    def __init__(
        self, config: WorkerManagerConfig, make: Callable[[], Backend], connect: Connect, takeover_seconds: float = 0.0
    ) -> None:
        self._config = config
        self._made = make
        self._backend: Backend | None = None
        self._capacity = Capacity.of_units(1, 0)
        self._reconciler = Reconciler(max_units=0)
        self._thread = CallThread()
        self._heartbeat_seconds = config.heartbeat_interval_seconds
        self._list_backoff = Backoff(self._heartbeat_seconds, max(self._heartbeat_seconds, MAX_LIST_PAUSE_SECONDS))
        self._failed_lists = 0
        self._list_at = 0.0
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self._desired: Desired | None = None
        self._connected: set[str] = set()  # units with a connected worker
        self._refused: Refused | None = None
        self._takeover_seconds = takeover_seconds
        self._takeover_until: float | None = None  # None: no other manager has the id
        self._redial: asyncio.TimerHandle | None = None
        self._is_over = False  # the cluster is shut down, or the scheduler has refused this manager
        self._units: list[Unit] | None = None  # units in the last listing; None: no answer yet, and nothing was started
        self._degraded_reason = ""
        self._in_contact = False
        self._lost_at = self._warn_at = 0.0
        self.patience_seconds = math.inf
        self._left = ""  # error text about possible leftover units
        self._connect = connect
        self._connector: Connector  # set by the first attempt to create the backend

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> int:
        """Run until stop is set, the cluster is shut down, or the scheduler refuses this manager. Then stop all units.
        ready: called once the scheduler has the first status. Raises RefusedError, UnreachableError after
        patience_seconds without a scheduler, ScalerError if units may remain, and errors of make except
        BackendError."""
        making = self._thread.call(self._make)
        if not await answered_before(making, stop):
            self._thread.shutdown()
            _log.warning("%s", _unanswered())
            return 0
        try:
            self._use(making.result())
        except BackendError as error:
            _log.warning("the backend is not available yet; retrying: %s", error)
        self._lose_contact()
        self._dial()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: self._end_soon())
        is_ready = False
        try:
            while not (stop.is_set() or self._is_over):
                self._wake.clear()
                again = await (self._round() if self._units is not None else self._first_round())
                if self._in_contact and not is_ready:
                    ready()
                    is_ready = True
                if not self._in_contact and time.monotonic() - self._lost_at >= self.patience_seconds:
                    raise UnreachableError(
                        f"no scheduler answered at {self._config.scheduler_address} for {self.patience_seconds:g} s "
                        f"(death_timeout_seconds): {self._connector.last_error}"
                    )
                await self._rest(again)
                await asyncio.sleep(ROUND_GAP_SECONDS)
        finally:
            stopped.cancel()
            await self._end()
        if self._refused is not None and self._is_over:
            raise RefusedError(f"{self._config.scheduler_address} refused this worker manager: {self._refused.text}")
        if self._left:
            raise ScalerError(self._left)
        return 0

    def _end_soon(self) -> None:
        self._ending.set()
        self._wake.set()

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Welcomed(welcome):
                    self._in_contact = True
                    self._refused = self._takeover_until = None
                    # In a new session, the scheduler has not sent its request yet.
                    self._desired = None
                    self._connected.clear()
                    self._heartbeat_seconds = min(self._config.heartbeat_interval_seconds, welcome.heartbeat_seconds)
                case Resumed():
                    self._in_contact = True
                case Broken():
                    self._lose_contact()
                case ConnectionRefused(refused):
                    self._in_contact = False
                    self._refused = refused
                    self._warn_at = self._takeover(refused)
                    self._is_over = self._warn_at == math.inf
                case Received(message=Desired() as desired):
                    is_new = self._desired is None or self._desired.units != desired.units
                    if is_new and not self._capacity.fixed:
                        _log.info("the scheduler wants %s: %s", counted(desired.units, "unit"), desired.reason)
                    self._desired = desired
                    self._connected.update(desired.joined)
                    self._connected.difference_update(desired.left)
                case Received(message=Shutdown(text)):
                    _log.info("the cluster was shut down: %s", text)
                    self._is_over = True
                case Received():
                    # The answer to a status: a round here would send another status, in an endless loop.
                    continue
            if self._is_over:
                self._ending.set()
            self._wake.set()

    def _lose_contact(self) -> None:
        self._in_contact = False
        self._lost_at = time.monotonic()
        self._warn_at = self._lost_at + FIRST_WARNING_SECONDS

    def _takeover(self, refused: Refused) -> float:
        now = time.monotonic()
        if refused.reason is not RefusalReason.DUPLICATE or not self._takeover_seconds:
            return math.inf
        if self._takeover_until is None:
            self._takeover_until = now + self._takeover_seconds
            _log.warning(
                "%s. An earlier one may still be exiting: retrying for %g s", refused.text, self._takeover_seconds
            )
        if now >= self._takeover_until:
            return math.inf
        self._redial = asyncio.get_running_loop().call_later(TAKEOVER_RETRY_SECONDS, self._connect_again)
        return self._takeover_until

    def _dial(self) -> None:
        self._connector = self._connect(_details(self._config, self._capacity), self._on_events)

    def _connect_again(self) -> None:
        self._connector.close()
        self._dial()

    @property
    def _service(self) -> Backend:
        assert self._backend is not None, "without a backend there are no units"
        return self._backend

    def _use(self, backend: Backend) -> None:
        self._backend, self._capacity = backend, backend.capacity
        self._reconciler = Reconciler(self._capacity.max_units, self._capacity.starting, self._capacity.backlog)

    def _make(self) -> Backend:
        backend = self._made()
        try:
            _check_warm(self._config, backend.capacity)
        except UsageError as error:
            backend.close()
            raise UsageError(f"worker manager {self._config.worker_manager_id!r}: {error}") from None
        return backend

    def _make_again(self) -> Backend:
        try:
            return self._make()
        except UsageError as error:
            raise BackendError(str(error)) from error  # retried, because a user may repair the service

    async def _first_round(self) -> float:
        working = asyncio.create_task(self._round())
        return await working if await answered_before(working, self._ending) else 0.0

    async def _round(self) -> float:
        if (wait := self._list_at - time.monotonic()) > 0:
            self._report()
            return min(wait, self._heartbeat_seconds)
        try:
            units = await self._list()
        except BackendError as error:
            self._failed_lists += 1
            pause = self._list_backoff.seconds(self._failed_lists, _chance())
            self._list_at = time.monotonic() + pause
            self._degrade(f"cannot list units: {error}")
            self._report()
            return min(pause, self._heartbeat_seconds)
        self._failed_lists = 0
        desired = self._desired
        wanted = desired.units + desired.draining if desired is not None and self._in_contact else None
        drained = frozenset(desired.drained if desired is not None else ())
        units_wanted = self._capacity.max_units if self._capacity.fixed else wanted
        wanted_units = UnitsWanted(units_wanted, drained, frozenset(self._connected))
        decision = self._reconciler.step(wanted_units, units, time.monotonic(), _chance())
        self._degrade(decision.reason)
        self._report()
        if decision.stop:
            await self._stop(decision.stop)
        if decision.start:
            await self._start(decision.start)
        return min(self._heartbeat_seconds, decision.again)

    async def _stop(self, unit_ids: Sequence[str]) -> None:
        _log.info("stopping %s: %s", counted(len(unit_ids), "unit"), ", ".join(unit_ids))
        try:
            await self._call(self._service.stop, unit_ids)
        except BackendError as error:
            _log.warning("cannot stop units; retrying: %s", error)

    async def _start(self, count: int) -> None:
        if isinstance(self._backend, PolledBackend) and self._desired is not None:
            self._backend.together = self._desired.together
        try:
            unit_ids = await self._call(self._service.start, count)
        except BackendError as error:
            _log.warning("started %d of %s: %s", len(error.started), counted(count, "unit"), error)
            self._reconciler.started(time.monotonic(), str(error), _chance())
        else:
            _log.info("started %s", ", ".join(unit_ids))
            self._reconciler.started(time.monotonic())

    async def _call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        answer = self._thread.call(function, *arguments)
        try:
            while not (await asyncio.wait({answer}, timeout=self._heartbeat_seconds))[0]:
                self._report()
        finally:
            answer.cancel()
        return answer.result()

    async def _rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        descriptor = None if self._backend is None else self._backend.fileno()
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
        now = time.monotonic()
        if not self._in_contact and not self._connector.connected and now >= self._warn_at:
            self._warn_at = now + LOST_WARNING_SECONDS
            _log.warning(
                "no scheduler answers at %s: waited %.0f s (%s); still trying",
                self._config.scheduler_address,
                now - self._lost_at,
                self._connector.last_error,
            )

    async def _list(self) -> list[Unit]:
        if self._backend is None:
            self._use(await self._call(self._make_again))
            if not self._ending.is_set():
                self._lose_contact()
                self._connect_again()
        if isinstance(self._backend, PolledBackend):
            knows = self._in_contact and self._desired is not None
            self._backend.connected = frozenset(self._connected) if knows else None
        units = await self._call(self._service.list)
        # Units that ended before this manager started are not reported.
        before = units if self._units is None else self._units
        known = {unit.unit_id for unit in before if unit.state in ENDED}
        for unit in units:
            if unit.state in ENDED and unit.unit_id not in known:
                level = logging.WARNING if unit.state is UnitState.FAILED else logging.INFO
                extra = logs.about(unit=unit.unit_id)
                text = "unit %s ended after %.1f s: %s"
                _log.log(level, text, unit.unit_id, unit.age_seconds, unit.reason, extra=extra)
        self._units = units
        return units

    def _degrade(self, reason: str) -> None:
        if reason and not self._degraded_reason:
            _log.warning("%s", reason)
        elif self._degraded_reason and not reason:
            _log.info("retrying to start units")
        self._degraded_reason = reason

    def _report(self) -> None:
        if not self._connector.connected:
            return
        units = [replace(unit, reason=unit.reason[:MAX_REASON_CHARACTERS]) for unit in self._units or ()]
        self._connector.send(ManagerStatus(time.monotonic(), units, self._degraded_reason[:MAX_REASON_CHARACTERS]))

    async def _end(self) -> None:
        """Stop all units, then close everything. Units that outlive their manager keep running if the manager was
        refused or got no answer."""
        self._warn_at = math.inf
        self._takeover_seconds = 0.0
        if self._redial is not None:
            self._redial.cancel()
        may_have_units = self._refused is None or not self._capacity.outlive_manager
        if may_have_units and self._units is None:
            may_have_units = False
            if self._capacity.outlive_manager:
                _log.warning("%s", _unanswered(self._degraded_reason))
        seconds = self._capacity.stop_seconds
        try:
            async with asyncio.timeout(seconds):
                if may_have_units:
                    await self._stop_all()
        except TimeoutError:
            if not self._capacity.outlive_manager:
                _log.warning("units did not end within %g s and are being killed", seconds)
            else:
                alive = (UnitState.WAITING, UnitState.PENDING, UnitState.RUNNING)
                staying = [unit.unit_id for unit in self._units or () if unit.state in alive]
                by_hand = f"; stop by hand: {', '.join(staying)}" if staying else ""
                why = f" ({self._degraded_reason})" if self._degraded_reason else ""
                self._left = (
                    f"some units may remain, because they could not be stopped within {seconds:g} s{why}{by_hand}"
                )
        if self._backend is not None and (self._units is not None or not self._thread.is_busy):
            await self._call(self._backend.close)
        self._thread.shutdown()
        self._connector.close("the worker manager ends")

    async def _stop_all(self) -> None:
        self._degraded_reason = ""
        while True:
            self._wake.clear()
            try:
                alive = [unit for unit in await self._list() if unit.state not in ENDED]
                self._report()
                staying = [unit.unit_id for unit in alive if unit.state is not UnitState.STOPPING]
                if staying:
                    await self._call(self._service.stop, staying)
                elif not alive or self._capacity.outlive_manager:
                    return
                rest_seconds = 0.0 if staying else self._heartbeat_seconds
            except BackendError as error:
                if str(error) != self._degraded_reason:
                    _log.warning("cannot stop units; retrying: %s", error)
                self._degraded_reason = str(error)
                rest_seconds = STOP_RETRY_SECONDS
            await self._rest(rest_seconds)


def _chance() -> float:
    return random.random()  # noqa: S311 (it spreads retries)


def _check_warm(config: WorkerManagerConfig, capacity: Capacity) -> None:
    """Raise UsageError if a warm-capacity setting exceeds the maximum, or has no effect."""
    most, at_once = capacity.max_units, config.max_task_concurrency
    for key in WARM_KEYS:
        units = getattr(config, key)
        if units and capacity.fixed:
            raise UsageError(f"{key} ({units}) has no effect with mode=fixed, which always runs all units")
        if most is not None and units > most:
            limit = f"max_task_concurrency ({at_once}) allows" if at_once >= 0 else f"{config.type} can run"
            raise UsageError(f"{key} ({units}) must not be more than the {counted(most, 'unit')} that {limit}")
    if 0 < config.warm_units <= config.minimum_units:
        raise UsageError(
            f"warm_units ({config.warm_units}) has no effect unless it is more than minimum_units "
            f"({config.minimum_units}), which always exist"
        )


def _details(config: WorkerManagerConfig, capacity: Capacity) -> ManagerDetails:
    facts = facts_of(capacity) | {
        "capabilities": dict(config.per_worker_capabilities),
        "unit_memory_bytes": min(filter(None, (capacity.unit_memory_bytes, config.memory_limit_bytes)), default=0),
        "unit_price": capacity.unit_price if config.unit_price is None else config.unit_price,
        "minimum_units": config.minimum_units,
        "warm_units": config.warm_units,
        "buffer_units": config.buffer_units,
    }
    return ManagerDetails(config.worker_manager_id, config.type, **facts)
