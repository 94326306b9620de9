"""Memory limits and lifetimes of processors, with real processes."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import MemoryLimitError
from scaler.protocol.messages import Outcome
from tests.integration.worker_rig import Rig, played
from tests.waiting import until, wait_for_file

MIB = 1024**2
LIMIT = 150 * MIB


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with SchedulerClusterCombo(n_workers=2, processor_memory_limit_bytes=LIMIT, worker_manager_id="small") as cluster:
        yield cluster.get_address()


def hold(size_bytes: int) -> int:
    """Use memory that is freed when the task ends."""
    return len(b"\1" * size_bytes)


def hold_until(path: Path, size_bytes: int = 0) -> int:
    held = b"\1" * size_bytes
    wait_for_file(path)
    return len(held)


def test_task_above_its_limit_fails_with_limit_and_peak_alone(address: str, tmp_path: Path) -> None:
    with Client(address=address) as client:
        neighbour = client.submit(hold_until, tmp_path / "go", 40 * MIB)
        failed = client.submit(hold_until, tmp_path / "never", 220 * MIB)
        queued = [client.submit(hold, 1000) for _ in range(10)]
        with pytest.raises(MemoryLimitError, match=f"more than processor_memory_limit_bytes = {LIMIT}"):
            failed.result(10)
        assert [each.result(10) for each in queued] == [1000] * 10
        assert failed.profiling_info().peak_memory > LIMIT
        (tmp_path / "go").touch()
        assert neighbour.result(10) == 40 * MIB
        assert isinstance(failed.exception(), MemoryError)


def hold_and_say(path: Path, began: Path, size_bytes: int) -> int:
    held = b"\1" * size_bytes
    began.touch()
    wait_for_file(path)
    return len(held)


def test_largest_task_of_a_worker_is_killed_first_and_retried(tmp_path: Path) -> None:
    # A separate worker process, because forks of a rig would include the memory of this process, which many tests use.
    # While the second task takes the worker beyond its limit, it is the larger of the two, and below the limit itself.
    go, began = tmp_path / "go", tmp_path / "began"
    with (
        SchedulerClusterCombo(n_workers=2, memory_limit_bytes=LIMIT) as cluster,
        Client(cluster.get_address()) as client,
    ):
        small = client.submit(hold_and_say, go, began, 40 * MIB)
        until(began.exists)
        large = client.submit_verbose(hold_until, (go, 90 * MIB), retries=1)
        with pytest.raises(MemoryLimitError, match="2 attempts, retries=1") as caught:
            large.result(20)
        text = rf"memory_limit_bytes = {LIMIT}, and its processor was the largest, with (\d+) bytes"
        sizes = [int(size) for size in re.findall(text, str(caught.value))]
        assert sizes
        assert all(LIMIT / 2 < size <= LIMIT for size in sizes)
        go.touch()
        assert small.result(20) == 40 * MIB


def pid_of(_: int) -> int:
    return os.getpid()


@played(max_tasks_per_processor=3)
async def test_processor_is_replaced_after_a_number_of_tasks(rig: Rig) -> None:
    pids = [await rig.value(each) for each in rig.submit(pid_of, *[(number,) for number in range(9)])]
    assert pids[0:3] == pids[0:1] * 3
    assert pids[3:6] == pids[3:4] * 3
    assert pids[6:9] == pids[6:7] * 3
    assert len(set(pids)) == 3
    await rig.poll(lambda: {each.pid for each in rig.processors()}.isdisjoint(pids))


_kept: list[Any] = []


def keep(size_bytes: int) -> int:
    gc.disable()
    _kept.append(b"\1" * size_bytes)
    return os.getpid()


@pytest.fixture
def small_cgroup(tmp_path: Path) -> Iterator[Path]:
    """A memory cgroup of version 1 or 2 with a limit; skips if this process may not create one."""
    own = {
        line.split(":")[1]: line.strip().split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
    }
    base, limit = Path("/sys/fs/cgroup" + own.get("", "/")), "memory.max"
    if "memory" in own:
        base, limit = Path("/sys/fs/cgroup/memory" + own["memory"]), "memory.limit_in_bytes"
    group = base / f"scaler-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield group
    group.rmdir()


@played()
async def test_kernel_oom_kill_is_reported_with_the_peak(rig: Rig, small_cgroup: Path, tmp_path: Path) -> None:
    (processor,) = await rig.poll(rig.processors)
    (small_cgroup / "cgroup.procs").write_text(str(processor.pid))
    killed = rig.submit(hold_until, (tmp_path / "never", 2 * LIMIT))[0]
    outcome, payload = await rig.outcome(killed)
    assert outcome is Outcome.OUT_OF_MEMORY
    text = payload.decode()
    assert "killed by signal 9 (SIGKILL), with at most" in text
    assert "the kernel ended it because memory ran out (oom_kill in /" in text
    assert await rig.value(rig.submit(abs, (-1,))[0]) == 1
    killed = rig.submit(os.kill, (0, signal.SIGKILL))[0]
    outcome, payload = await rig.outcome(killed)
    assert outcome is Outcome.PROCESSOR_DIED, "no process was ended for its memory this time"
