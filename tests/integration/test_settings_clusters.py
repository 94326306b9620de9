"""Settings of workers and of whole clusters, by what users of the cluster see of them.

The same cluster, in which almost nothing is as by default, is started in three ways: from a file, from Python, and by
commands that are started in the wrong order. All its addresses are `ipc://` ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import TaskTimeoutError
from scaler.protocol.messages import Role
from tests.conftest import Run
from tests.integration.settings_rig import Peer, command, document_where, has_uvloop, io_threads
from tests.waiting import within

TRIM_BYTES = 100_000_000
TASK_TIMEOUT_SECONDS = 2.5
SCHEDULER = {"event_loop": "uvloop", "io_threads": 3, "protected": False, "status_report_interval_seconds": 0.05}
WORKERS = {
    "worker_manager_id": "odd",
    "per_worker_capabilities": "linux,gpu=2",
    "per_worker_task_queue_size": 5,
    "heartbeat_interval_seconds": 0.1,
    "task_timeout_seconds": TASK_TIMEOUT_SECONDS,
    "death_timeout_seconds": 20.0,
    "garbage_collect_interval_seconds": 0.1,
    "trim_memory_threshold_bytes": TRIM_BYTES,
    "hard_processor_suspend": True,
    "preload": "settings_preload:fill('a', b=[1])",
    "io_threads": 3,
    "event_loop": "uvloop",
}
LOGGING = {"logging_format": "json", "logging_level": "DEBUG"}
COMPONENTS = {"object_storage_server", "scheduler", "worker_manager", "worker"}
PRELOAD = "filled = []\ndef fill(*args, **kwargs):\n    filled.append((args, kwargs))\n"


@dataclass
class World:
    """A cluster: where it listens, and the log that all its processes write."""

    directory: Path
    workers_came_first: bool = False

    def address(self, name: str) -> str:
        return f"ipc://{self.directory}/{name}"

    @property
    def logs(self) -> list[Path]:
        return [self.directory / "one.log", self.directory / "two.log"]

    def entries(self, path: Path | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (path or self.logs[0]).read_text().splitlines()]

    def pids(self) -> dict[str, int]:
        """Return the process of each component: the first thing that each of them writes is that it is ready."""
        return {entry["component"]: entry["pid"] for entry in self.entries() if entry["message"].startswith("ready")}

    def status(self, fits: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait until monitors are told what fits, and return it."""

        async def look() -> dict[str, Any]:
            monitor = Peer(self.address("monitor"), Role.MONITOR)
            try:
                async with asyncio.timeout(10):
                    return await document_where(monitor, fits)
            finally:
                monitor.connector.close()

        return asyncio.run(look())


def toml(section: str, **values: object) -> str:
    """Write a section; JSON is what TOML takes as well for texts, numbers, truths and lists of them."""
    return "\n".join([section, *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""])


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
def from_a_file(world: World) -> Iterator[None]:
    logging = {**LOGGING, "logging_paths": list(map(str, world.logs))}
    file = world.directory / "all.toml"
    file.write_text(
        toml("[object_storage_server]", bind_address=world.address("storage"), **logging)
        + toml(
            "[scheduler]",
            scheduler_address=world.address("scheduler"),
            monitor_address=world.address("monitor"),
            **SCHEDULER,
            **logging,
        )
        + toml("[[worker_manager]]", type="baremetal_native", mode="fixed", num_of_workers=2, **WORKERS, **logging)
    )
    with command("scaler", str(file), directory=world.directory, PYTHONPATH=str(world.directory)) as running:
        running.addresses()
        yield


@contextmanager
def from_python(world: World) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(world.directory)
        with SchedulerClusterCombo(
            world.address("scheduler"),
            2,
            object_storage_address=world.address("storage"),
            monitor_address=world.address("monitor"),
            logging_paths=list(map(str, world.logs)),
            **SCHEDULER,  # type: ignore[arg-type]
            **{key: value for key, value in WORKERS.items() if key not in SCHEDULER},  # type: ignore[arg-type]
            **LOGGING,  # type: ignore[arg-type]
        ):
            yield


@contextmanager
def by_commands(world: World) -> Iterator[None]:
    """The workers first, then their scheduler, then the object storage that both need."""
    logging = flags(**LOGGING, logging_paths=list(map(str, world.logs)))
    addresses = {name: world.address(name) for name in ("scheduler", "monitor", "storage")}
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Any:
            environment = {"PYTHONPATH": str(world.directory)}
            return stack.enter_context(command(name, *arguments, directory=world.directory, **environment))

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


@pytest.fixture(scope="module", params=[from_a_file, from_python, by_commands], ids=lambda way: way.__name__)
def world(request: pytest.FixtureRequest, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("w")
    (directory / "settings_preload.py").write_text(PRELOAD)
    found = World(directory, workers_came_first=request.param is by_commands)
    with request.param(found):
        yield found


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[Client]:
    with Client(world.address("scheduler"), timeout_seconds=20) as connected:
        connected.submit(int).result(20)
        yield connected


def test_everyone_listens_where_they_were_told_to(world: World, client: Client) -> None:
    def storage() -> str:
        from scaler.worker.processor.context import current  # noqa: PLC0415 (on the worker)

        context = current()
        assert context is not None
        return context.object_storage_address

    assert client.submit(storage).result(20) == world.address("storage")
    assert client.submit(bytes, 1_000_000).result(20) == bytes(1_000_000)


def test_workers_are_as_many_as_asked_for_and_their_managers(world: World, client: Client) -> None:
    told = world.status(lambda told: told["totals"]["slots"] == 2)
    assert {worker["manager"] for worker in told["workers"]} == {"odd"}
    assert [manager["id"] for manager in told["managers"]] == ["odd"]


def test_workers_offer_what_they_were_told_to_offer(world: World, client: Client) -> None:
    impossible = client.submit_verbose(abs, (-1,), capabilities={"gpu": 3})
    assert client.submit_verbose(abs, (-1,), capabilities={"gpu": 2, "linux": None}).result(20) == 1
    told = world.status(lambda told: told["tasks"]["ready"] == 1)
    assert {worker["capabilities"] for worker in told["workers"]} == {"gpu=2,linux"}
    impossible.cancel()


def test_processors_were_preloaded(client: Client) -> None:
    def look() -> Any:
        import settings_preload  # type: ignore[import-not-found] # noqa: PLC0415 (it exists on the worker)

        return settings_preload.filled

    assert client.submit(look).result(20) == [(("a",), {"b": [1]})]


def test_a_task_ends_at_the_workers_time_limit(client: Client) -> None:
    began = time.monotonic()
    with pytest.raises(TaskTimeoutError, match=r"2\.5 s"):
        client.submit(time.sleep, 30).result(20)
    assert time.monotonic() - began >= TASK_TIMEOUT_SECONDS


def test_a_task_that_waits_for_its_own_is_stopped_meanwhile(client: Client) -> None:
    def parent(nested: Client) -> bool:
        import os  # noqa: PLC0415 (on the worker)

        return bool(nested.submit(is_stopped, os.getpid()).result())

    def is_stopped(pid: int) -> bool:
        import time  # noqa: PLC0415 (on the worker)
        from pathlib import Path  # noqa: PLC0415

        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
        return False

    assert client.submit(parent, client).result(20)


def test_an_idle_processor_collects_garbage_as_often_as_it_was_told(client: Client, tmp_path: Path) -> None:
    def make_cycle(path: str) -> None:
        class Node:
            def __del__(self) -> None:
                open(path, "w").close()  # noqa: PTH123

        node = Node()
        node.me = node  # type: ignore[attr-defined]

    client.submit(make_cycle, str(tmp_path / "collected")).result(20)
    assert within(10, (tmp_path / "collected").exists)


def test_a_large_processor_gives_back_what_it_does_not_use(client: Client) -> None:
    def fill() -> int:
        import os  # noqa: PLC0415 (on the worker)

        blocks = [bytes(1000) + bytes([n % 256]) for n in range(150_000)]
        globals()["_kept"] = blocks[::1000]
        del blocks
        return os.getpid()

    processor = psutil.Process(client.submit(fill).result(20))
    assert within(10, lambda: processor.memory_info().rss < TRIM_BYTES)


def test_servers_managers_and_workers_use_the_event_loop_they_were_told(world: World, client: Client) -> None:
    pids = world.pids()
    for component in ("scheduler", "worker_manager", "worker"):
        assert (component, has_uvloop(pids[component])) == (component, True)


def test_a_scheduler_uses_the_threads_it_was_told_and_those_who_come_through_its_door_none(
    world: World, client: Client
) -> None:
    pids = world.pids()
    threads = {component: io_threads(pids[component]) for component in ("scheduler", "worker_manager", "worker")}
    assert threads["scheduler"] == 3
    # Those that were there before the scheduler may have found no door yet.
    through_the_door = (0, 3) if world.workers_came_first else (0,)
    assert threads["worker_manager"] in through_the_door
    assert threads["worker"] in through_the_door


def test_every_process_writes_its_log_to_every_path_in_the_format_asked_for(world: World, client: Client) -> None:
    for path in world.logs:
        entries = world.entries(path)
        assert {entry["component"] for entry in entries if entry["level"] == "DEBUG"} == COMPONENTS
        assert [entry for entry in entries if entry["level"] in ("ERROR", "CRITICAL")] == []


def test_an_unprotected_cluster_is_ended_by_a_client(world: World) -> None:
    """The last test of this cluster."""
    worker = world.pids()["worker"]
    with Client(world.address("scheduler"), timeout_seconds=20) as last:
        last.shutdown()
    assert within(10, lambda: not psutil.pid_exists(worker))
