"""Settings of a whole cluster, as seen by its users.

Commands start in the wrong order, with almost no setting at its default. All addresses are `ipc://` ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client
from scaler.protocol.messages import Role
from tests.conftest import Run
from tests.integration.settings_rig import Peer, command, document_where
from tests.waiting import within

SCHEDULER = {"event_loop": "uvloop", "protected": False}
WORKERS = {
    "worker_manager_id": "odd",
    "per_worker_capabilities": "linux,gpu=2",
    "per_worker_task_queue_size": 5,
    "heartbeat_interval_seconds": 0.1,
    "death_timeout_seconds": 20.0,
    "event_loop": "uvloop",
}
LOGGING = {"logging_format": "json", "logging_level": "DEBUG"}
COMPONENTS = {"object_storage_server", "scheduler", "worker_manager", "worker"}


@dataclass
class World:
    """A cluster: its listening addresses, and the log of all its processes."""

    directory: Path

    def address(self, name: str) -> str:
        return f"ipc://{self.directory}/{name}"

    @property
    def logs(self) -> list[Path]:
        return [self.directory / "one.log", self.directory / "two.log"]

    def entries(self, path: Path | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (path or self.logs[0]).read_text().splitlines()]

    def pids(self) -> dict[str, int]:
        """Return the process of each component, whose first log line reports readiness."""
        return {entry["component"]: entry["pid"] for entry in self.entries() if entry["message"].startswith("ready")}

    def status(self, fits: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait until monitors receive a matching document, and return it."""

        async def look() -> dict[str, Any]:
            monitor = Peer(self.address("monitor"), Role.MONITOR)
            try:
                async with asyncio.timeout(10):
                    return await document_where(monitor, fits)
            finally:
                monitor.connector.close()

        return asyncio.run(look())


def flags(**values: object) -> list[str]:
    written: list[str] = []
    for key, value in values.items():
        words = value if isinstance(value, list) else [value]
        written += [
            f"--{key.replace('_', '-')}",
            *(str(word).lower() if word is True or word is False else str(word) for word in words),
        ]
    return written


@contextmanager
def by_commands(world: World) -> Iterator[None]:
    """The workers first, then their scheduler, then the object storage that both need."""
    logging = flags(**LOGGING, logging_paths=list(map(str, world.logs)))
    addresses = {name: world.address(name) for name in ("scheduler", "monitor", "storage")}
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Any:
            return stack.enter_context(command(name, *arguments, directory=world.directory))

        workers = start("scaler_cluster", addresses["scheduler"], "-n", "2", *flags(**WORKERS), *logging)
        scheduler = start(
            "scaler_scheduler",
            *(addresses["scheduler"], "-ma", addresses["monitor"], "-osa", addresses["storage"]),
            *flags(**SCHEDULER),
            *logging,
        )
        scheduler.addresses()
        start("scaler_object_storage_server", addresses["storage"], *logging).addresses()
        workers.addresses()
        yield


@pytest.fixture(scope="module")
def world(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("w"))
    with by_commands(found):
        yield found


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[Client]:
    with Client(world.address("scheduler"), timeout_seconds=20) as connected:
        connected.submit(int).result(20)
        yield connected


def test_components_listen_on_their_configured_addresses(world: World, client: Client) -> None:
    def storage() -> str:
        from scaler.worker.processor.context import current  # noqa: PLC0415 (on the worker)

        context = current()
        assert context is not None
        return context.object_storage_address

    assert client.submit(storage).result(20) == world.address("storage")
    assert client.submit(bytes, 1_000_000).result(20) == bytes(1_000_000)


def test_workers_offer_their_configured_capabilities(world: World, client: Client) -> None:
    impossible = client.submit_verbose(abs, (-1,), capabilities={"gpu": 3})
    assert client.submit_verbose(abs, (-1,), capabilities={"gpu": 2, "linux": None}).result(20) == 1
    told = world.status(lambda told: told["tasks"]["ready"] == 1)
    assert {worker["capabilities"] for worker in told["workers"]} == {"gpu=2,linux"}
    impossible.cancel()


def test_every_process_logs_to_every_path_in_the_requested_format(world: World, client: Client) -> None:
    for path in world.logs:
        entries = world.entries(path)
        assert {entry["component"] for entry in entries if entry["level"] == "DEBUG"} == COMPONENTS
        assert [entry for entry in entries if entry["level"] in ("ERROR", "CRITICAL")] == []


def test_client_shuts_down_an_unprotected_cluster(world: World) -> None:
    """The last test of this cluster."""
    worker = world.pids()["worker"]
    with Client(world.address("scheduler"), timeout_seconds=20) as last:
        last.shutdown()
    assert within(10, lambda: not psutil.pid_exists(worker))
