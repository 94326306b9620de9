"""Settings that the scheduler's process applies, as seen by peers and disks."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from scaler.ids import IdFactory, content_id, new_peer_id
from scaler.object_storage import server as storage_server
from scaler.object_storage.client import StorageClient
from scaler.protocol.messages import (
    ManagerDetails,
    ManagerStatus,
    RefusalReason,
    Role,
    Run,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
)
from tests.integration.settings_rig import Peer, Stage, on_a_scheduler

FUNCTION = pickle.dumps(abs)


def worker_details(queue_size: int = 100, **capabilities: float | None) -> WorkerDetails:
    return WorkerDetails("manager", "unit", slots=1, queue_size=queue_size, capabilities=capabilities)


def manager_details(name: str, **capabilities: float | None) -> ManagerDetails:
    return ManagerDetails(name, "played", capabilities=capabilities, max_slots=8, unit_slots=1)


def submit(client: Peer, count: int, **spec: Any) -> list[bytes]:
    """Submit tasks like a client; return their ids."""
    factory = IdFactory(client.id)
    ids = [factory.task() for _ in range(count)]
    group = TaskGroup(Spec(content_id(FUNCTION), **spec), ids, [pickle.dumps(((1,), {}))] * count)
    client.connector.send(Submit([(content_id(FUNCTION), FUNCTION)], [group]))
    return ids


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, {3, 2}), ({"history_retention_seconds": 150_000.0}, {2}), ({"history_retention_seconds": 9e6}, {40, 3, 2})],
)
def test_history_on_disk_respects_the_configured_age(tmp_path: Path, settings: dict[str, Any], kept: set[int]) -> None:
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


def test_embedded_object_storage_spills_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
                assert b"".join(await storage.get(identifier)) == content
        storage.close()

    on_a_scheduler(story, spill_directory=str(tmp_path), spill_limit_bytes=4_000_000)


def test_clients_and_workers_get_the_advertised_storage_address() -> None:
    async def story(stage: Stage) -> None:
        for role, details in ((Role.CLIENT, None), (Role.WORKER, worker_details())):
            welcome = await (await stage.peer(role, details)).welcomed()
            assert welcome.object_storage_address == "tcp://storage.example:7"

    on_a_scheduler(
        story, object_storage_address="tcp://127.0.0.1:9", advertised_object_storage_address="tcp://storage.example:7"
    )


# -- workers


def test_silent_worker_is_dropped_after_its_timeout() -> None:
    async def story(stage: Stage) -> None:
        worker = await stage.peer(Role.WORKER, worker_details())
        assert (await worker.welcomed()).lease_seconds == 0.3
        await worker.until(lambda: worker.refused)
        assert worker.refused is not None
        assert worker.refused.reason is RefusalReason.EXPIRED
        assert "silent" in worker.refused.text

    on_a_scheduler(story, worker_timeout_seconds=0.3)


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


def test_slow_custom_policy_delays_neither_tasks_nor_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
