"""Resources and failure attribution with real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from scaler import Client, ScalerExecutor, SchedulerClusterCombo
from scaler.errors import PoisonTaskError, UsageError


def visible_gpus(start: str, seconds: float = 0.0) -> tuple[str, float, float]:
    began = time.monotonic()
    time.sleep(seconds)  # overlapping times show which tasks run concurrently
    return os.environ.get("CUDA_VISIBLE_DEVICES", start), began, time.monotonic()


def kill_the_agent() -> None:
    fork_server = os.getppid()
    stat = Path(f"/proc/{fork_server}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()


def call_again(executor: ScalerExecutor) -> str:
    gpu: str = executor.submit(visible_gpus, "none").result()[0]
    return gpu


def test_gpus_are_in_the_environment_and_memory_is_reserved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    offers = {"gpu": 2.0, "memory": 16e9}
    with (
        SchedulerClusterCombo(n_workers=4, per_worker_capabilities=offers) as cluster,
        Client(cluster.get_address()) as client,
    ):
        gpus = [client.submit_verbose(visible_gpus, ("none", 0.2), gpu=1) for _ in range(4)]
        both = client.submit_verbose(visible_gpus, ("none",), gpu=2)
        runs = [future.result() for future in gpus]
        assert {gpu for gpu, _, _ in runs} == {"GPU-a", "GPU-b"}
        for gpu, began, _ in runs:
            assert sum(other == gpu and start <= began < end for other, start, end in runs) == 1
        assert both.result()[0] == "GPU-a,GPU-b"
        assert client.submit(visible_gpus, "none").result()[0] == "GPU-a,GPU-b", "restored"
        times = client.map(visible_gpus, ["none"] * 4, [0.1] * 4, chunk_size=1, memory="8GB")
        for _, began, _ in times:
            assert sum(start <= began < end for _, start, end in times) <= 2
        with pytest.raises(UsageError, match="memory is '8 GX'"):
            client.submit_verbose(abs, (1,), memory="8 GX")
        with ScalerExecutor(client, gpu=1) as executor:
            for chunk_size in (1, 2):
                found = [gpu for gpu, _, _ in executor.map(visible_gpus, ["none"] * 2, [0.2] * 2, chunksize=chunk_size)]
                assert sorted(set(found)) == ["GPU-a", "GPU-b"][: 3 - chunk_size]
            assert client.submit(call_again, executor).result() == "GPU-a", "a copy in a task uses the same gpus"
        with pytest.raises(UsageError, match="cpus is 0"):
            ScalerExecutor(client, cpus=0)


# -- expected durations


@pytest.mark.full
def test_task_that_kills_its_agent_is_poison_unlike_its_neighbours() -> None:
    with SchedulerClusterCombo(n_workers=4) as cluster, Client(cluster.get_address()) as client:
        neighbours = [client.submit_verbose(visible_gpus, ("none", 0.3), retries=1) for _ in range(2)]
        culprit = client.submit(kill_the_agent)
        with pytest.raises(PoisonTaskError, match="alone: worker"):
            culprit.result()
        assert all(future.result() for future in neighbours)
