"""`scaler_worker_manager`: runs a worker manager, or sets up the cloud resources of its type."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from scaler import logs
from scaler.component import ORPHAN_GRACE_SECONDS, Component, run_component
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig
from scaler.errors import UsageError
from scaler.net.connection import Connector, ConnectorEvent
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.plugins import load, worker_manager_type
from scaler.processes import adopt_orphans, end_descendants
from scaler.protocol.messages import ManagerDetails, Role, Server
from scaler.texts import escaped
from scaler.worker_manager.backend import access_of, has_calls_left, load_backend
from scaler.worker_manager.runner import Runner

if TYPE_CHECKING:
    from scaler.config.commands import Provision, Verb

TAKEOVER_SECONDS = ORPHAN_GRACE_SECONDS + 2.0  # how long to retry while an exiting manager uses the id

Provisioner = Callable[[WorkerManagerConfig, "Verb", bool, Callable[[str], None]], int]
"""A type's `provision(config, verb, dry_run, say)`: prints each step with `say`, skips existing resources, removes only
its own, and returns the exit code. Raises ScalerError."""


def run(request: WorkerManagerConfig | ClusterConfig | Provision) -> int:
    """Run a worker manager, or provision resources. Return the exit code. 0: signal or shutdown of the cluster. 1:
    refused, or possible leftover units. 2: type not installed."""
    if not isinstance(request, WorkerManagerConfig | ClusterConfig):
        return provisioner_of(request.config.type)(request.config, request.verb, request.dry_run, _print)
    config = request.as_worker_manager() if isinstance(request, ClusterConfig) else request

    async def main(component: Component) -> int:
        logs.identify(manager=config.worker_manager_id)
        takeover_seconds = TAKEOVER_SECONDS if component.has_parent else 0.0
        runner = Runner(config, partial(load_backend, config), partial(_connect, config), takeover_seconds)
        if isinstance(request, ClusterConfig):
            # Without a scheduler, workers exit, and the manager would replace them forever.
            runner.patience_seconds = config.death_timeout_seconds
        return await runner.run(component.stop, lambda: component.ready({"scheduler": config.scheduler_address}))

    try:
        return run_component("worker_manager", config, main, config.event_loop)
    finally:
        if has_calls_left():
            # A remaining call may wait for a command, and would log that the command was killed.
            logging.disable()
            adopt_orphans()
            end_descendants()


def provisioner_of(kind: str) -> Provisioner:
    reference = worker_manager_type(kind).provision
    if not reference:
        raise UsageError(f"a worker manager of the type {kind} needs no cloud resources: there is nothing to set up")
    return cast("Provisioner", load(reference))


def _connect(
    config: WorkerManagerConfig, details: ManagerDetails, on_events: Callable[[list[ConnectorEvent]], None]
) -> Connector:
    hello = own_hello(Role.MANAGER, details)
    return SocketConnector(config.scheduler_address, Server.SCHEDULER, access_of(config), hello, on_events)


def _print(line: str) -> None:
    sys.stdout.write(f"{escaped(line)}\n")
    sys.stdout.flush()
