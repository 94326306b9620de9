"""Every setting of the scheduler, by what its peers see of it."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.config.commands import parse_scheduler
from scaler.config.servers import SchedulerConfig
from scaler.errors import LimitError, ProtectedError, TaskRejectedError, UsageError
from scaler.ids import IdFactory, content_id, new_peer_id
from scaler.object_storage import server as storage_server
from scaler.object_storage.client import StorageClient
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import (
    Desired,
    Done,
    ManagerDetails,
    ManagerStatus,
    MonitorStatus,
    Outcome,
    Recall,
    RefusalReason,
    Role,
    Run,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
)
from tests.integration.settings_rig import Peer, Stage, document, document_where, on_a_scheduler

FUNCTION = pickle.dumps(abs)


def worker_details(queue_size: int = 100, **capabilities: float | None) -> WorkerDetails:
    return WorkerDetails("manager", "unit", slots=1, queue_size=queue_size, capabilities=capabilities)


def manager_details(name: str, **capabilities: float | None) -> ManagerDetails:
    return ManagerDetails(name, "played", max_concurrency=8, unit_slots=1, capabilities=capabilities)


def submit(client: Peer, count: int, **spec: Any) -> list[bytes]:
    """Say some tasks as a client does; return their ids."""
    factory = IdFactory(client.id)
    ids = [factory.task() for _ in range(count)]
    group = TaskGroup(Spec(content_id(FUNCTION), **spec), ids, [pickle.dumps(((1,), {}))] * count)
    client.connector.send(Submit([(content_id(FUNCTION), FUNCTION)], [group]))
    return ids


def received(worker: Peer) -> list[bytes]:
    return [task for run in worker.all(Run) for group in run.groups for task in group.ids]


def has_received(worker: Peer, count: int) -> bool:
    return len(received(worker)) >= count


# -- which peers are accepted, and what they receive


def test_a_scheduler_is_where_its_addresses_say(tmp_path: Path) -> None:
    addresses = {"scheduler": f"ipc://{tmp_path}/s", "monitor": f"ipc://{tmp_path}/m"}

    async def story(stage: Stage) -> None:
        assert addresses.items() <= stage.server.addresses.items()
        client = await stage.peer(Role.CLIENT)
        assert client.connector.connected
        monitor = await stage.peer(Role.MONITOR)
        assert monitor.connector.connected

    on_a_scheduler(story, bind_address=addresses["scheduler"], monitor_address=addresses["monitor"])


def test_monitors_connect_beside_the_scheduler_when_nothing_else_is_said(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        assert stage.server.addresses["monitor"] == f"ipc://{tmp_path}/s.monitor"
        await stage.peer(Role.MONITOR)

    on_a_scheduler(story, bind_address=f"ipc://{tmp_path}/s")


def test_without_an_address_the_object_storage_is_the_schedulers_own() -> None:
    async def story(stage: Stage) -> None:
        welcome = await (await stage.peer(Role.CLIENT)).welcomed()
        assert welcome.object_storage_address == stage.server.addresses["object_storage"]
        assert await holds(welcome.object_storage_address) == 0

    on_a_scheduler(story)


def test_with_an_address_the_object_storage_is_the_one_that_runs_there(tmp_path: Path) -> None:
    storage = EmbeddedStorage(f"ipc://{tmp_path}/storage")

    async def story(stage: Stage) -> None:
        welcome = await (await stage.peer(Role.CLIENT)).welcomed()
        assert welcome.object_storage_address == storage.address
        assert stage.server.addresses["object_storage"] == storage.address

    try:
        on_a_scheduler(story, object_storage_address=storage.address)
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {3, 2}),
        ({"history_retention_seconds": 150_000.0}, {2}),
        ({"history_limit_bytes": 2_000}, {2}),
        ({"history_limit_bytes": -1, "history_retention_seconds": 9e6}, {40, 3, 2}),
    ],
)
def test_the_history_on_disk_is_as_old_and_as_large_as_the_scheduler_was_told(
    tmp_path: Path, settings: dict[str, Any], kept: set[int]
) -> None:
    folder, now = tmp_path / "history", time.time()
    folder.mkdir()
    files = {days: folder / f"{int((now - days * 86_400) * 1e9):020d}.log" for days in (40, 3, 2)}
    for path in files.values():
        path.write_text("x" * 1_000)

    async def story(stage: Stage) -> None:
        del stage

    on_a_scheduler(story, state_directory=str(tmp_path), **settings)
    assert {days for days, path in files.items() if path.exists()} == kept
    assert len(list(folder.iterdir())) == len(kept) + 1


def test_the_object_storage_inside_spills_where_and_as_much_as_the_scheduler_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_server, "default_memory_limit_bytes", lambda: 4_000_000)
    monkeypatch.setattr(storage_server, "PUT_WAIT_SECONDS", 0.5)

    async def story(stage: Stage) -> None:
        factory = IdFactory(new_peer_id())
        storage = StorageClient(stage.server.addresses["object_storage"], factory.owner, Role.CLIENT)
        objects = {factory.object(): bytes([number]) * 500_000 for number in range(20)}
        stored = await asyncio.gather(
            *(storage.put(key, [content]) for key, content in objects.items()), return_exceptions=True
        )
        refused = [each for each in stored if each is not None]
        assert 2 <= len(refused) <= 8
        assert all("spill_limit_bytes = 4000000" in str(each) for each in refused)
        for (identifier, content), error in zip(objects.items(), stored, strict=True):
            if error is None:
                assert b"".join(await storage.get(identifier, 0.0)) == content
        storage.close()

    on_a_scheduler(story, spill_directory=str(tmp_path), spill_limit_bytes=4_000_000)


def test_a_scheduler_without_an_object_storage_inside_refuses_a_directory_for_its_objects() -> None:
    with pytest.raises(ValueError, match=r"names tcp://127.0.0.1:9: set it in \[object_storage_server\]"):
        SchedulerConfig(
            bind_address="tcp://127.0.0.1:0", object_storage_address="tcp://127.0.0.1:9", spill_directory="/tmp"
        )


def test_clients_and_workers_are_told_the_advertised_address_of_the_storage() -> None:
    async def story(stage: Stage) -> None:
        for role, details in ((Role.CLIENT, None), (Role.WORKER, worker_details())):
            welcome = await (await stage.peer(role, details)).welcomed()
            assert welcome.object_storage_address == "tcp://storage.example:7"

    on_a_scheduler(
        story,
        object_storage_address="tcp://127.0.0.1:9",
        advertised_object_storage_address="tcp://storage.example:7",
    )


# -- clients


def test_only_an_unprotected_scheduler_ends_when_a_client_asks() -> None:
    async def refused(stage: Stage) -> None:
        with pytest.raises(ProtectedError, match="protected"):
            await asyncio.to_thread(shut_down, stage.address)
        assert not stage.stop.is_set()

    async def accepted(stage: Stage) -> None:
        await asyncio.to_thread(shut_down, stage.address)
        await stage.stop.wait()

    on_a_scheduler(refused)
    on_a_scheduler(accepted, protected=False)


def shut_down(address: str) -> None:
    with Client(address, timeout_seconds=10) as client:
        client.shutdown()


def test_a_task_beyond_those_that_may_wait_is_rejected_with_the_limits_name() -> None:
    def two_clients(address: str) -> None:
        with Client(address, timeout_seconds=0.2) as first, Client(address, timeout_seconds=10) as second:
            kept = first.submit(abs, -1)
            with pytest.raises(LimitError, match="max_number_of_tasks_waiting=1 was reached"):
                first.submit(abs, -1)
            with pytest.raises(TaskRejectedError, match="max_number_of_tasks_waiting is 1"):
                second.submit(abs, -1).result(10)
            assert not kept.done()

    async def story(stage: Stage) -> None:
        await asyncio.to_thread(two_clients, stage.address)

    on_a_scheduler(story, max_number_of_tasks_waiting=1)


DYING_CLIENT = """
import os, sys
from scaler import Client
client = Client(sys.argv[1], name="dying")
client.send_object(bytes(100_000))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("retention_seconds", [0, 60])
def test_a_silent_client_is_given_up_after_its_timeout_and_its_objects_after_their_retention(
    retention_seconds: float,
) -> None:
    async def story(stage: Stage) -> None:
        monitor = await stage.peer(Role.MONITOR)
        dead = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DYING_CLIENT, stage.address], check=False)
        assert dead.returncode == -9
        await document_where(monitor, lambda told: told["totals"]["clients"] == 0)
        storage = stage.server.addresses["object_storage"]
        if retention_seconds:
            assert await holds(storage) == 1
        else:
            while await holds(storage):  # noqa: ASYNC110 (the storage announces nothing)
                await asyncio.sleep(0.01)

    on_a_scheduler(
        story,
        client_timeout_seconds=0.5,
        object_retention_seconds=retention_seconds,
        status_report_interval_seconds=0.02,
    )


async def holds(address: str) -> int:
    """Ask an object storage how many objects it has."""
    client = StorageClient(address, IdFactory(b"asks----").owner, Role.CLIENT)
    try:
        return (await client.stat()).objects
    finally:
        client.close()


# -- workers


def test_a_silent_worker_is_given_up_after_its_timeout() -> None:
    async def story(stage: Stage) -> None:
        worker = await stage.peer(Role.WORKER, worker_details())
        assert (await worker.welcomed()).lease_seconds == 0.3
        await worker.until(lambda: worker.refused)
        assert worker.refused is not None
        assert worker.refused.reason is RefusalReason.EXPIRED
        assert "silent" in worker.refused.text

    on_a_scheduler(story, worker_timeout_seconds=0.3)


@pytest.mark.parametrize("queue_size", [3, 50])
def test_no_more_tasks_wait_behind_a_worker_than_its_queue_size(queue_size: int) -> None:
    async def story(stage: Stage) -> None:
        worker = await stage.peer(Role.WORKER, worker_details(queue_size))
        submit(await stage.peer(Role.CLIENT), 400)
        most = done = 0
        while done < 300:
            await worker.until(partial(has_received, worker, done + 1))
            ids = received(worker)
            most = max(most, len(ids) - done)
            new = ids[done : done + 1]
            worker.connector.send(Done(new, [1], [Outcome.SUCCESS], [FUNCTION], [10]))
            done += 1
        assert most == 1 + queue_size

    on_a_scheduler(story)


@pytest.mark.parametrize(("seconds", "times"), [(0.02, 20), (0.02, 40), (0.3, 1)])
def test_a_worker_without_progress_is_relieved_after_so_many_looks_so_far_apart(seconds: float, times: int) -> None:
    async def story(stage: Stage) -> None:
        worker = await stage.peer(Role.WORKER, worker_details())
        client = await stage.peer(Role.CLIENT)
        ids = submit(client, 2)
        await worker.until(lambda: len(received(worker)) == 2)
        began = time.monotonic()
        async with asyncio.timeout(4):
            (recall, *_) = await worker.hear(Recall)
        assert recall.ids == ids[1:]
        assert time.monotonic() - began >= seconds * times * 0.75

    on_a_scheduler(story, load_balance_seconds=seconds, load_balance_trigger_times=times)


def test_by_default_a_worker_without_progress_is_left_alone_for_two_looks_of_a_second() -> None:
    async def story(stage: Stage) -> None:
        worker = await stage.peer(Role.WORKER, worker_details())
        submit(await stage.peer(Role.CLIENT), 2)
        await worker.until(lambda: len(received(worker)) == 2)
        began = time.monotonic()
        await worker.hear(Recall)
        assert time.monotonic() - began > 0.9

    on_a_scheduler(story)


# -- policies


async def units_told(stage: Stage, names: dict[str, dict[str, float | None]]) -> dict[str, int]:
    """Return the wanted units of each of these managers, for four tasks that any worker can run."""
    managers = {name: await stage.peer(Role.MANAGER, manager_details(name, **offers)) for name, offers in names.items()}
    for manager in managers.values():
        manager.connector.send(ManagerStatus(0.0, []))
    submit(await stage.peer(Role.CLIENT), 4)
    monitor = await stage.peer(Role.MONITOR)
    await document_where(monitor, lambda told: told["tasks"]["ready"] == 4)
    for manager in managers.values():
        # Whatever the scheduler has said before is here when its answer to this is.
        manager.connector.send(ManagerStatus(1.0, []))
    monitor.said.clear()
    await monitor.hear(MonitorStatus, 12)
    return {name: manager.all(Desired)[-1].units if manager.all(Desired) else 0 for name, manager in managers.items()}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"gpu": 4, "plain": 0}),
        ({"policy_content": "allocate=even_load; scaling=no"}, {"gpu": 0, "plain": 0}),
        ({"policy_content": "allocate=capability; scaling=capability"}, {"gpu": 0, "plain": 4}),
        ({"policy_engine_type": "waterfall_v1", "policy_content": "1,plain,1\n2,gpu,8"}, {"gpu": 3, "plain": 1}),
    ],
)
def test_managers_are_told_what_the_policy_wants(settings: dict[str, str], expected: dict[str, int]) -> None:
    async def story(stage: Stage) -> None:
        assert await units_told(stage, {"gpu": {"gpu": 1.0}, "plain": {}}) == expected

    on_a_scheduler(story, status_report_interval_seconds=0.05, **settings)


@pytest.mark.parametrize(("allocate", "first"), [("even", "gpu"), ("capability", "plain")])
def test_allocate_policy_chooses_which_idle_worker_a_plain_task_goes_to(allocate: str, first: str) -> None:
    config = parse_scheduler("scaler_scheduler", ["tcp://127.0.0.1:0", "--allocate-policy", allocate], {})

    async def story(stage: Stage) -> None:
        workers = {
            "gpu": await stage.peer(Role.WORKER, worker_details(gpu=1)),
            "plain": await stage.peer(Role.WORKER, worker_details()),
        }
        client = await stage.peer(Role.CLIENT)
        submit(client, 1)
        await workers[first].hear(Run)

    on_a_scheduler(story, policy_content=config.policy_content)


SLOW = """
import threading
from scaler.policy.view import Allocation

ASKED, MAY_ANSWER, HAS_ANSWERED = threading.Event(), threading.Event(), threading.Event()

class Policy:
    allocation = Allocation()
    def __init__(self, content): pass
    def plan(self, view):
        ASKED.set()
        MAY_ANSWER.wait(20)
        HAS_ANSWERED.set()
        return {}
"""


def test_a_policy_of_ones_own_that_thinks_for_long_holds_up_neither_tasks_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_policy.py").write_text(SLOW)
    info = tmp_path / "never-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: never\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[scaler.scaling_policies]\nnever = slow_policy:Policy\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("slow_policy")

    async def story(stage: Stage) -> None:
        manager = await stage.peer(Role.MANAGER, manager_details("manager"))
        manager.connector.send(ManagerStatus(0.0, []))
        worker = await stage.peer(Role.WORKER, worker_details())
        submit(await stage.peer(Role.CLIENT), 1)
        await worker.hear(Run)
        assert module.ASKED.is_set()
        assert not module.HAS_ANSWERED.is_set()

    on_a_scheduler(story, policy_engine_type="never")
    module.MAY_ANSWER.set()


def test_an_unknown_policy_does_not_start() -> None:
    async def story(stage: Stage) -> None:
        pass

    with pytest.raises(UsageError, match="simple"):
        on_a_scheduler(story, policy_engine_type="simpel")


# -- monitors


def test_monitors_are_told_as_often_as_the_status_interval_says() -> None:
    async def story(stage: Stage) -> None:
        monitor = await stage.peer(Role.MONITOR)
        began = time.monotonic()
        statuses = await monitor.hear(MonitorStatus, 5)
        assert time.monotonic() - began < 3, "five times the default takes longer"
        assert {"scheduler", "tasks", "workers", "totals"} <= document(statuses[0]).keys()

    on_a_scheduler(story, status_report_interval_seconds=0.05)
