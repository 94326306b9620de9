"""What every backend of a worker manager must do, run over the one in memory and those of processes and services."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from scaler.protocol.messages import UnitState
from scaler.testing.aws import AwsEmulator
from scaler.testing.backends import MemoryBackend
from scaler.testing.soamapi import ON_PATH
from scaler.worker_manager import baremetal_native, offload
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_hpc.backend import BatchBackend
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_raw_ecs import definition
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig
from scaler.worker_manager.backend import Backend, Capacity, Unit
from scaler.worker_manager.baremetal_native import BaremetalNative, BaremetalNativeConfig
from scaler.worker_manager.offload import OffloadBackend
from scaler.worker_manager.symphony import make_backend as make_symphony_backend
from scaler.worker_manager.symphony.settings import SymphonyConfig

DEADLINE_SECONDS = 10.0

AGENT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if "SCALER_READY_FD" in os.environ:
    with os.fdopen(int(os.environ["SCALER_READY_FD"]), "w") as pipe:
        pipe.write("ready")
while True:
    time.sleep(60)
"""
"""Stands for a worker: it starts faster, and does as little as a worker may do."""


@dataclass
class Case:
    backend: Backend
    lose: Callable[[str], None]
    """Let a unit end by itself."""
    lost_reason: str = "killed by signal 9 (SIGKILL)"
    another: Callable[[], Backend] | None = None
    """Make the backend of a manager that comes later, where units outlive their manager."""

    def until(self, fits: Callable[[list[Unit]], bool]) -> list[Unit]:
        """List units, as often as something changes, until they fit."""
        descriptor = self.backend.fileno()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not fits(units := self.backend.list()):
            assert time.monotonic() < deadline, units
            if descriptor is not None:
                select.select([descriptor], [], [], DEADLINE_SECONDS)
            else:
                time.sleep(0.01)  # nobody tells when a service has news
        return units


def alive(units: list[Unit]) -> list[Unit]:
    return [unit for unit in units if unit.state not in (UnitState.FAILED, UnitState.STOPPED)]


def running(count: int) -> Callable[[list[Unit]], bool]:
    return lambda units: [unit.state for unit in alive(units)] == [UnitState.RUNNING] * count


@contextmanager
def memory_case() -> Iterator[Case]:
    memory = MemoryBackend(Capacity(1, 8, 8))
    yield Case(memory, lambda unit_id: memory.lose(unit_id, Case.lost_reason))
    memory.close()


@contextmanager
def baremetal_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(baremetal_native, "COMMAND", (sys.executable, str(script)))
    config = BaremetalNativeConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", max_task_concurrency=8, worker_type="local"
    )
    backend = BaremetalNative(config)
    yield Case(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def offload_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(offload, "COMMAND", (sys.executable, str(script)))
    config = BaremetalNativeConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m")
    backend = OffloadBackend(config, "nobody:nothing", 1, {})
    yield Case(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def symphony_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(offload, "COMMAND", (sys.executable, str(script)))
    monkeypatch.syspath_prepend(ON_PATH)
    config = SymphonyConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", service_name="app", max_task_concurrency=1
    )
    backend = make_symphony_backend(config)
    yield Case(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def ecs_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(definition, "WORKER_COMMAND", ("python", str(script)))
    with AwsEmulator() as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        config = AwsRawEcsConfig(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            aws_endpoint_url=aws.endpoint_url,
            ecs_subnets=("subnet-1",),
            ecs_task_cpu=1,
            ecs_task_memory=2,
            max_task_concurrency=8,
            heartbeat_interval_seconds=0.01,
        )
        client = AwsClient(config, "ecs")
        client.call("CreateCluster", clusterName=config.ecs_cluster, capacityProviders=["FARGATE"])
        client.close()
        backend = EcsBackend(config)
        reason = "EssentialContainerExited: Essential container in task exited; exit code 137 (SIGKILL)"
        yield Case(backend, aws.ecs.kill_container, reason, lambda: EcsBackend(config))
        backend.close()


@contextmanager
def batch_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with AwsEmulator() as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        # What stands for a worker does without the module that it is told to run.
        aws.batch.furnish(command=["python", str(script), "Ref::module"])
        config = AwsHpcConfig(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            aws_endpoint_url=aws.endpoint_url,
            job_queue="queue",
            job_definition="definition",
            s3_bucket="bucket",
            mode="worker",
            max_concurrent_jobs=8,
            heartbeat_interval_seconds=0.01,
        )
        backend = BatchBackend(config)
        yield Case(backend, aws.batch.kill_container, "exit code 137 (SIGKILL)", lambda: BatchBackend(config))
        backend.close()


@pytest.fixture(params=["memory", "baremetal_native", "offload", "symphony", "aws_raw_ecs", "aws_hpc"])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    match request.param:
        case "memory":
            made = memory_case()
        case "baremetal_native":
            made = baremetal_case(script, monkeypatch)
        case "offload":
            made = offload_case(script, monkeypatch)
        case "symphony":
            made = symphony_case(script, monkeypatch)
        case "aws_raw_ecs":
            made = ecs_case(script, monkeypatch)
        case _:
            made = batch_case(script, monkeypatch)
    with made as found:
        yield found


def test_started_units_are_listed_until_they_run(case: Case) -> None:
    ids = case.backend.start(2)
    assert {unit.unit_id for unit in case.backend.list()} == set(ids)
    units = case.until(running(2))
    assert [unit.slots for unit in units] == [1, 1]
    assert all(unit.age_seconds >= 0 for unit in units)


def test_ids_are_never_used_again(case: Case) -> None:
    first = case.backend.start(2)
    case.backend.stop(first)
    assert not set(first) & set(case.backend.start(2))


def test_stopped_units_end_in_order_and_the_others_stay(case: Case) -> None:
    first, second = case.backend.start(2)
    case.until(running(2))
    case.backend.stop([first])
    units = case.until(lambda units: len(alive(units)) == 1)
    assert {unit.unit_id: unit.state for unit in units} == {first: UnitState.STOPPED, second: UnitState.RUNNING}


def test_stopping_what_is_gone_or_unknown_is_no_error(case: Case) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.backend.stop([unit_id, "never-was"])
    case.until(lambda units: not alive(units))
    case.backend.stop([unit_id])


def test_a_unit_that_ended_unseen_may_be_stopped(case: Case) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.lose(unit_id)
    if (descriptor := case.backend.fileno()) is not None:
        select.select([descriptor], [], [], 10.0)
    case.backend.stop([unit_id])
    [unit] = case.until(lambda units: not alive(units))
    assert unit.unit_id == unit_id


def test_a_unit_that_is_lost_is_listed_as_failed_with_the_reason(case: Case) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.lose(unit_id)
    [unit] = case.until(lambda units: not alive(units))
    assert (unit.state, unit.reason) == (UnitState.FAILED, case.lost_reason)


def test_close_leaves_nothing_that_does_not_outlive_the_manager(case: Case) -> None:
    before = {child.pid for child in psutil.Process().children()}
    started = case.backend.start(3)
    case.backend.close()
    if case.another is None:
        assert {child.pid for child in psutil.Process().children()} <= before
        return
    case.backend = case.another()
    assert {unit.unit_id for unit in case.until(running(3))} == set(started), "the next manager adopts them"
    case.backend.stop(started)
    case.until(lambda units: not alive(units))
