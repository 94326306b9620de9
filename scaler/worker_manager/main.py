"""`scaler_worker_manager`: the process of a worker manager, and the setup of its type's cloud resources."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from scaler import logs
from scaler.component import ORPHAN_GRACE_SECONDS, Component, run_component
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig
from scaler.errors import UsageError
from scaler.ids import new_peer_id
from scaler.net.connection import Connector, ConnectorEvent
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.plugins import load, worker_manager_type
from scaler.processes import adopt_orphans, end_descendants
from scaler.protocol.messages import ManagerDetails, Role, Server
from scaler.texts import escaped
from scaler.worker_manager.backend import Backend, BackendError, Capacity, Unit, access_of, load_backend
from scaler.worker_manager.call_thread import CallThread, answered_before, has_calls_left
from scaler.worker_manager.runner import Connect, Runner, unanswered

if TYPE_CHECKING:
    from scaler.config.commands import Provision, Verb

TAKEOVER_SECONDS = ORPHAN_GRACE_SECONDS + 2.0  # for an id in use: managers of a killed launcher take this long to end

_log = logging.getLogger(__name__)

Provisioner = Callable[[WorkerManagerConfig, "Verb", bool, Callable[[str], None]], int]
"""A type's `provision(config, verb, dry_run, say)`: prints each step with `say`, skips existing resources, removes only
its own, and returns the exit code. Raises ScalerError."""


def run(request: WorkerManagerConfig | ClusterConfig | Provision) -> int:
    """Run a worker manager, or provision; return the exit code. 0: signal or shutdown of the cluster. 1: refused, or
    units may be left. 2: its type is not installed."""
    if not isinstance(request, WorkerManagerConfig | ClusterConfig):
        return provisioner_of(request.config.type)(request.config, request.verb, request.dry_run, _print)
    config = request.as_worker_manager() if isinstance(request, ClusterConfig) else request

    async def main(component: Component) -> int:
        logs.identify(manager=config.worker_manager_id)
        takeover_seconds = TAKEOVER_SECONDS if component.has_parent else 0.0
        connect = partial(_connect, config)
        ready: Callable[[], None] = lambda: component.ready({"scheduler": config.scheduler_address})  # noqa: E731
        try:
            backend = await _made(config, component.stop)
        except BackendError as error:
            _log.warning("the backend is not there yet, will try again: %s", error)
            found = await _awaited(config, connect, takeover_seconds, component.stop, ready)
            backend, ready = found, lambda: None
        if backend is None:
            return 0
        runner = Runner(config, backend, connect, takeover_seconds)
        if isinstance(request, ClusterConfig):
            # Its workers exit without a scheduler, and the manager would replace them forever.
            runner.patience_seconds = config.death_timeout_seconds
        return await runner.run(component.stop, ready)

    try:
        return run_component("worker_manager", config, main, config.event_loop)
    finally:
        if has_calls_left():
            # The call may wait for a command, and would log its end.
            logging.disable()
            adopt_orphans()
            end_descendants()


async def _made(config: WorkerManagerConfig, stop: asyncio.Event) -> Backend | None:
    thread = CallThread()
    making = thread.call(load_backend, config)
    thread.shutdown()
    if await answered_before(making, stop):
        return making.result()
    _log.warning("%s", unanswered())
    return None


async def _awaited(
    config: WorkerManagerConfig,
    connect: Connect,
    takeover_seconds: float,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> Backend | None:
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    awaited = AwaitedBackend(partial(load_backend, config), lambda: loop.call_soon_threadsafe(over.set))
    stopped = asyncio.create_task(stop.wait())
    stopped.add_done_callback(lambda _: over.set())
    try:
        await Runner(config, awaited, connect, takeover_seconds).run(over, ready)
    finally:
        stopped.cancel()
    if awaited.made is not None and stop.is_set():
        awaited.made.close()
    return None if stop.is_set() else awaited.made


def provisioner_of(kind: str) -> Provisioner:
    reference = worker_manager_type(kind).provision
    if not reference:
        raise UsageError(f"a worker manager of the type {kind} needs nothing in a cloud: there is nothing to set up")
    return cast("Provisioner", load(reference))


class AwaitedBackend:
    """A `Backend` without units until the real one can be created. Until then, listing fails with the reason."""

    capacity = Capacity(unit_slots=1, max_slots=0, max_units=0)

    def __init__(self, make: Callable[[], Backend], on_made: Callable[[], object]) -> None:
        """make: raises BackendError while the service is unavailable. on_made: called in the listing thread."""
        self._make = make
        self._on_made = on_made
        self.made: Backend | None = None

    def start(self, count: int) -> list[str]:
        raise BackendError(f"cannot start {count}: the backend is not there yet")

    def stop(self, unit_ids: Sequence[str]) -> None:
        """There are no units."""

    def list(self) -> list[Unit]:
        if self.made is None:
            try:
                self.made = self._make()
            except UsageError as error:
                raise BackendError(str(error)) from error  # the service's state may be corrected
            self._on_made()
        return []

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        """The real backend, if any, is for the next runner."""


def _connect(
    config: WorkerManagerConfig, details: ManagerDetails, on_events: Callable[[list[ConnectorEvent]], None]
) -> Connector:
    hello = own_hello(Role.MANAGER, details)
    access = access_of(config)
    return SocketConnector(
        config.scheduler_address,
        peer=new_peer_id(),
        hello=hello,
        on_events=on_events,
        io_threads=config.io_threads,
        keys=access.to(Server.SCHEDULER, config.scheduler_address),
        compression=access.compression,
    )


def _print(line: str) -> None:
    sys.stdout.write(f"{escaped(line)}\n")
    sys.stdout.flush()
