"""Backends of every type for the checks in `scaler.testing.backends`: in memory, local processes, and services."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler.testing.aws import AwsEmulator
from scaler.testing.backends import BackendCase, MemoryBackend
from scaler.testing.kubernetes import KubernetesEmulator
from scaler.testing.soamapi import ON_PATH
from scaler.worker_manager import baremetal_native, offload
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_ec2.backend import Ec2Backend
from scaler.worker_manager.aws_ec2.setup import provision
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs import backend as definition
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from scaler.worker_manager.backend import Capacity
from scaler.worker_manager.baremetal_native import BaremetalNative, BaremetalNativeConfig
from scaler.worker_manager.kubernetes import KubernetesConfig, pods
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from scaler.worker_manager.offload import OffloadBackend
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.backend import SlurmBackend
from scaler.worker_manager.symphony import SymphonyConfig
from scaler.worker_manager.symphony.executor import make_backend as make_symphony_backend
from tests.engines.queue_stand_in import end_all, install, jobs_in, stop

AGENT = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if "SCALER_READY_FD" in os.environ:
    with os.fdopen(int(os.environ["SCALER_READY_FD"]), "w") as pipe:
        pipe.write("ready")
while True:
    signal.pause()
"""
"""Replaces a worker: starts faster, and does only the minimum that a worker must do."""


@contextmanager
def memory_case() -> Iterator[BackendCase]:
    memory = MemoryBackend(Capacity.of_units(1, 8))
    yield BackendCase(memory, lambda unit_id: memory.lose(unit_id, BackendCase.lost_reason))
    memory.close()


@contextmanager
def baremetal_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    monkeypatch.setattr(baremetal_native, "COMMAND", (sys.executable, str(script)))
    config = BaremetalNativeConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", max_task_concurrency=8)
    backend = BaremetalNative(config)
    yield BackendCase(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def offload_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    monkeypatch.setattr(offload, "COMMAND", (sys.executable, str(script)))
    config = BaremetalNativeConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m")
    backend = OffloadBackend(config, "nobody:nothing", 1, {})
    yield BackendCase(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def symphony_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    monkeypatch.setattr(offload, "COMMAND", (sys.executable, str(script)))
    monkeypatch.syspath_prepend(ON_PATH)
    config = SymphonyConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", service_name="app", max_task_concurrency=1
    )
    backend = make_symphony_backend(config)
    yield BackendCase(backend, lambda unit_id: os.kill(backend.pid_of(unit_id), signal.SIGKILL))
    backend.close()


@contextmanager
def ecs_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    monkeypatch.setattr(definition, "WORKER_COMMAND", ("python", str(script)))
    with AwsEmulator() as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        config = AwsRawEcsConfig(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            aws_endpoint_url=aws.endpoint_url,
            ecs_subnets=("subnet-1",),
            ecs_task_image="emulated",
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
        yield BackendCase(backend, aws.ecs.kill_container, reason, lambda: EcsBackend(config))
        backend.close()


@contextmanager
def ec2_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    with AwsEmulator() as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        config = AwsEc2Config(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            aws_endpoint_url=aws.endpoint_url,
            ec2_image="ami-12c6146b",
            ec2_slots=1,
            ec2_python="python3",
            ec2_setup=f"exec python {script}",
            max_task_concurrency=8,
            heartbeat_interval_seconds=0.01,
        )
        provision(config, "setup", False, lambda _: None)
        backend = Ec2Backend(config)

        def lose(unit_id: str) -> None:
            aws.ec2.lose(unit_id, "Server.SpotInstanceTermination", "Spot instance termination")

        reason = "Server.SpotInstanceTermination: Spot instance termination"
        yield BackendCase(backend, lose, reason, lambda: Ec2Backend(config))
        backend.close()


@contextmanager
def kubernetes_case(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    monkeypatch.setattr(pods, "WORKER_COMMAND", ("python", str(script)))
    with KubernetesEmulator() as kubernetes:
        kubernetes.times.watch = 0.02
        config = KubernetesConfig(
            scheduler_address="tcp://127.0.0.1:1",
            worker_manager_id="m",
            k8s_kubeconfig=str(kubernetes.kubeconfig(script.with_suffix(".yaml"))),
            k8s_image="emulated",
            max_task_concurrency=8,
            heartbeat_interval_seconds=0.01,
        )
        made: list[KubernetesBackend] = []

        def backend() -> KubernetesBackend:
            made.append(KubernetesBackend(config))
            return made[-1]

        yield BackendCase(backend(), kubernetes.kill_container, "exit code 137 (SIGKILL)", backend)
        for each in made:
            each.close()


@contextmanager
def queue_case(system: str, script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    """Yield the slurm backend, with commands that act on a queue in a directory."""
    commands = install(script.parent)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    python = script.parent / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    python.chmod(0o755)
    config = SlurmConfig(
        scheduler_address="tcp://127.0.0.1:1",
        worker_manager_id="m",
        slurm_system="pbs" if system == "pbs" else "lsf",
        slurm_time_minutes=10,
        slurm_python=str(python),
        slurm_log_directory=str(script.parent),
        max_task_concurrency=8,
        heartbeat_interval_seconds=0.01,
    )
    backend = SlurmBackend(config)
    yield BackendCase(
        backend,
        lambda unit_id: stop(jobs_in(commands)[unit_id]["pid"], signal.SIGKILL),
        another=lambda: SlurmBackend(config),
    )
    backend.close()
    end_all(commands)


LOCAL = ("memory", "baremetal_native", "offload", "symphony")
REMOTE = ("aws_raw_ecs", "aws_ec2", "aws_hpc", "kubernetes", "pbs", "lsf")


@contextmanager
def backend_case(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendCase]:
    """Yield a new backend of this type, whose units run a fake worker."""
    script = directory / "agent.py"
    script.write_text(AGENT)
    cases = {
        "baremetal_native": baremetal_case,
        "offload": offload_case,
        "symphony": symphony_case,
        "aws_raw_ecs": ecs_case,
        "aws_ec2": ec2_case,
        "kubernetes": kubernetes_case,
    }
    if kind == "memory":
        made = memory_case()
    elif kind in cases:
        made = cases[kind](script, monkeypatch)
    else:
        made = queue_case(kind, script, monkeypatch)
    with made as found:
        yield found
