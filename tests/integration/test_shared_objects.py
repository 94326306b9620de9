"""Large objects between processes of one host: shared, sealed, limited, and freed with their owners."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import LimitError
from scaler.ids import IdFactory, new_peer_id
from scaler.net import local
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.object_storage.shared_memory import SharedMemory, is_supported
from scaler.protocol.messages import Role
from scaler.protocol.session import Envelope
from tests.integration.storage_rig import ObservedStorage, StorageProcess, storage_process
from tests.short_forms import short_form
from tests.simulation.machine import SIMULATED
from tests.waiting import soon, until, wait_for_file

pytestmark = pytest.mark.skipif(not is_supported(), reason="a 64-bit Linux shares memory")

PEER = new_peer_id()
MADE = IdFactory(PEER)
MB = 1_000_000
CONTENT = os.urandom(5 * MB)
OTHER_PROCESS = """
import os, sys
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.object_storage.shared_memory import SharedMemory
from scaler.protocol.messages import Role

address, what, object_id = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
storage = BlockingStorage(lambda: StorageClient(address, os.urandom(8), Role.CLIENT))
if what == "get":
    parts = storage.get(object_id)
    parts[1][:5] = b"alter"
elif what == "write":
    write = SharedMemory.written.__func__

    def stay(kind, parts):
        memory = write(kind, parts)
        print("written", flush=True)
        sys.stdin.read()
        return memory

    SharedMemory.written = classmethod(stay)
    storage.put(object_id, [b"pickle", bytes(100_000_000)])
else:
    storage.put(object_id, [b"pickle", bytes(5_000_000)])
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def client(storage: StorageProcess, timeout_seconds: float = 5.0) -> Iterator[BlockingStorage]:
    blocking = BlockingStorage(
        lambda: StorageClient(storage.address, new_peer_id(), Role.CLIENT, timeout_seconds=timeout_seconds)
    )
    yield blocking
    blocking.close()


@contextmanager
def another_process(storage: StorageProcess, what: str, object_id: bytes) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has put, got, or written and not put an object."""
    arguments = [sys.executable, "-c", OTHER_PROCESS, storage.address, what, object_id.hex()]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def memories(process: int) -> int:
    """Count the memory files that a process has open."""
    gc.collect()  # of earlier tests
    found = 0
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += "scaler-object" in str(link.readlink())
    return found


def mapped(process: int) -> int:
    gc.collect()
    return Path(f"/proc/{process}/maps").read_text().count("scaler-object")


def files(directory: Path) -> list[Path]:
    """Return our files in the directories for shared and temporary files."""
    shared = (path for path in Path("/dev/shm").glob("*scaler*") if not path.name.startswith(SIMULATED))
    return sorted([*directory.iterdir(), *shared])


def shared_bytes() -> int:
    """Return the amount of memory in memory files and the like on this machine."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return int(line.split()[1]) * 1024


def put(storage: BlockingStorage, content: bytes = CONTENT) -> bytes:
    object_id = MADE.object()
    storage.put(object_id, [b"pickle", content])
    return object_id


def test_large_object_is_shared_not_copied() -> None:
    with storage_process() as storage, client(storage) as writer, client(storage) as reader:
        object_id = put(writer)
        assert memories(storage.process.pid) == 1
        first, second = reader.get(object_id), reader.get(object_id)
        assert first == second == [b"pickle", CONTENT]
        assert mapped(os.getpid()) == 2
        assert memories(os.getpid()) == 0, "a mapping needs no descriptor"
        del first, second
        assert mapped(os.getpid()) == 0


def test_reader_cannot_modify_what_others_read() -> None:
    with storage_process() as storage, client(storage) as ours:
        object_id = put(ours)
        mine = ours.get(object_id)
        with another_process(storage, "get", object_id):
            assert mine == [b"pickle", CONTENT]
            np.frombuffer(mine[1], np.uint8)[:] = 0
            assert ours.get(object_id) == [b"pickle", CONTENT]


def test_released_object_frees_memory_without_affecting_readers() -> None:
    async def main() -> None:
        with storage_process() as storage:
            client = ObservedStorage(storage.address, PEER)
            object_id = MADE.object()
            await client.put(object_id, [b"pickle", CONTENT])
            parts = await client.get(object_id)
            client.forget([object_id])
            assert (await client.stat()).bytes == 0
            await soon(lambda: memories(storage.process.pid) == 0)  # once the reader has acknowledged its part
            assert parts == [b"pickle", CONTENT]
            client.close()

    asyncio.run(main())


def test_memory_limit_applies_before_any_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    write = SharedMemory.written.__func__  # type: ignore[attr-defined]

    def counting(kind: type[SharedMemory], parts: list[memoryview]) -> SharedMemory:
        taken.append(sum(part.nbytes for part in parts))
        return write(kind, parts)  # type: ignore[no-any-return]

    monkeypatch.setattr(SharedMemory, "written", classmethod(counting))
    flags = ("--memory-limit-bytes", str(12 * MB))
    with storage_process("tcp://127.0.0.1:0", *flags) as storage, client(storage) as ours:
        put(ours)
        put(ours)
        with pytest.raises(LimitError, match="memory_limit_bytes = 12000000"):
            put(ours)
        assert memories(storage.process.pid) == 2
        taken.clear()
        with pytest.raises(LimitError, match="memory_limit_bytes = 12000000"):
            ours.put(MADE.object(), [b"pickle", *[CONTENT] * 20])
        assert taken == []


@pytest.mark.parametrize("what", short_form(["write", "get", "put"]))
def test_killed_reader_or_writer_leaves_nothing_behind(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = files(tmp_path)
    with storage_process() as storage, client(storage) as ours:
        object_id = put(ours)
        kept = memories(storage.process.pid)
        with another_process(storage, what, object_id if what == "get" else MADE.object()) as process:
            held = shared_bytes()
            process.send_signal(signal.SIGKILL)
            process.wait()
        if what == "write":
            until(lambda: shared_bytes() < held - 50 * MB)
        assert memories(storage.process.pid) == kept + (what == "put"), "the owner still has completely stored objects"
        assert ours.get(object_id) == [b"pickle", CONTENT]
    assert files(tmp_path) == before


@pytest.mark.parametrize("way", short_form(["sent", "received"]))
def test_lost_descriptors_are_replaced_by_frames(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    def without_descriptors(
        transport: local.LocalTransport, envelopes: Sequence[Envelope], send: Any = local.LocalTransport.transmit
    ) -> bool:
        return bool(send(transport, [envelope._replace(descriptors=()) for envelope in envelopes]))

    with storage_process() as storage, client(storage) as ours:
        if way == "sent":
            monkeypatch.setattr(local.LocalTransport, "transmit", without_descriptors)
        else:
            monkeypatch.setattr(local, "_descriptors_in", lambda _: [])
        assert ours.get(put(ours)) == [b"pickle", CONTENT]
        assert memories(storage.process.pid) == (way == "received")


def test_frames_are_used_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with storage_process() as storage, client(storage) as ours:
        monkeypatch.setattr(os, "memfd_create", full)
        assert ours.get(put(ours)) == [b"pickle", CONTENT]
        assert memories(storage.process.pid) == 0


def hold(content: bytes, path: str) -> int:
    Path(path).touch()
    signal.pause()
    return len(content)


def test_cancelled_tasks_leave_no_arguments_in_memory(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=1) as cluster, Client(cluster.get_address()) as own:
        for number in range(5):
            path = tmp_path / str(number)
            future = own.submit(hold, bytes(3 * MB), str(path))
            wait_for_file(path)
            assert future.cancel()
            del future
        servers = psutil.Process().children(recursive=True)
        until(lambda: not sum(memories(each.pid) for each in servers if each.is_running()))
