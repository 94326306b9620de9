"""Settings of the AWS and Symphony worker managers, as seen by units, a scheduler, and Symphony."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler.config.worker import WORKER_CONFIG_VARIABLE, ProcessorSettings, WorkerConfig
from scaler.interpreter import HASH_SEED_VARIABLE
from scaler.testing.aws import AwsEmulator
from scaler.testing.soamapi import StandIn, api
from scaler.worker_manager.aws.prices import ec2_price, fargate_price
from scaler.worker_manager.aws_ec2.backend import Ec2Backend
from scaler.worker_manager.aws_hpc import executor as batch
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from scaler.worker_manager.backend import Backend
from scaler.worker_manager.baremetal_native import LocalAgents
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from scaler.worker_manager.offload import OffloadConfig, load_executor
from scaler.worker_manager.slurm.backend import SlurmBackend
from scaler.worker_manager.symphony.executor import make_backend as make_symphony_backend
from tests.engines.clouds_rig import (
    ec2_config,
    ecs_client,
    ecs_config,
    furnish_account,
    furnish_machines,
    hpc_config,
    kubernetes_config,
    slurm_config,
    symphony_config,
)
from tests.engines.kubernetes_rig import StandInSite, open_site
from tests.engines.queue_stand_in import install
from tests.engines.soamapi_rig import use
from tests.waiting import within

KINDS = ("aws_raw_ecs", "aws_ec2", "aws_hpc", "slurm", "symphony", "kubernetes")
WAIT_SECONDS = 15.0
OF_THE_UNIT = {"unit_id", "unit_id_from", "slots", "gpus", "stop_grace_seconds"}
PROCESSOR_KEYS = [item.name for item in dataclasses.fields(ProcessorSettings)]
ELSEWHERE = ("aws_raw_ecs", "aws_ec2", "slurm", "kubernetes")
"""Their units are on other machines with their own processors."""
MEMORY_BYTES = dict.fromkeys(("aws_raw_ecs", "slurm", "kubernetes"), 2 * 1024**3)
"""Of task definitions, jobs, and pods."""


SIZES: dict[str, dict[str, Any]] = {
    "aws_raw_ecs": {"ecs_task_cpu": 1, "ecs_task_memory": 2},
    "aws_ec2": {"ec2_slots": 1},
    "slurm": {"slurm_memory": "2G"},
}
FREE = 0.0, 0.0, 0.0, 0.0, False
COSTS = {
    "aws_raw_ecs": (fargate_price("us-east-1", 1, 2), 60.0, 45.0, 0.0, False),
    "aws_ec2": (ec2_price("us-east-1", "m5.large"), 60.0, 0.0, 0.0, False),
    "aws_hpc": (fargate_price("us-east-1", 1, 2), 60.0, 0.0, 45.0, True),
}
"""Price of a unit or task per hour, minimum charge, usual start-up and dispatch times, and whether tasks are
charged."""


@pytest.fixture
def aws(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> AwsEmulator:
    furnish_account(aws, monkeypatch)
    return aws


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> None:
    use(StandIn(users={"ann": "secret"}, applications=("app",)), monkeypatch)


@pytest.fixture(autouse=True)
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the PBS commands, and their submissions."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return install(tmp_path)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInSite]:
    """The fake Kubernetes, which managers find through the environment."""
    with open_site("stand-in", tmp_path, monkeypatch) as found:
        assert isinstance(found, StandInSite)
        monkeypatch.setenv("KUBECONFIG", str(found.config().k8s_kubeconfig))
        yield found


@contextmanager
def backend_of(kind: str, aws: AwsEmulator, **values: Any) -> Iterator[Backend]:
    """Yield the backend of a manager of this kind."""
    backend: Backend
    if kind == "aws_raw_ecs":
        backend = EcsBackend(ecs_config(aws_endpoint_url=aws.endpoint_url, **values))
    elif kind == "aws_ec2":
        furnish_machines(aws)
        backend = Ec2Backend(ec2_config(aws_endpoint_url=aws.endpoint_url, **values))
    elif kind == "slurm":
        backend = SlurmBackend(slurm_config(Path(os.environ["PATH"].partition(os.pathsep)[0]), **values))
    elif kind == "kubernetes":
        backend = KubernetesBackend(kubernetes_config(**values))
    elif kind == "symphony":
        backend = make_symphony_backend(symphony_config(**values))
    else:
        backend = batch.make_backend(hpc_config(aws_endpoint_url=aws.endpoint_url, **values))
    try:
        yield backend
    finally:
        backend.close()


def document_of(backend: Backend, unit_id: str, aws: AwsEmulator, pods: StandInSite) -> str:
    """Return the environment of a unit."""
    if isinstance(backend, LocalAgents):
        return document_of_agent(psutil.Process(backend.pid_of(unit_id)))
    if isinstance(backend, Ec2Backend):
        # A script that runs another script.
        outer = shlex.split(aws.ec2.user_data(unit_id), comments=True)
        inner = shlex.split(next(word for word in outer if WORKER_CONFIG_VARIABLE in word))
        return next(word.partition("=")[2] for word in inner if word.startswith(f"{WORKER_CONFIG_VARIABLE}="))
    if isinstance(backend, KubernetesBackend):
        [pod] = pods.objects("pods")
        variables = pod["spec"]["containers"][0]["env"]
    elif isinstance(backend, SlurmBackend):
        script = shutil.which("qsub")
        assert script is not None
        words = shlex.split((Path(script).parent / f"{unit_id}.sh").read_text())
        [text] = [word for word in words if word.startswith(f"{WORKER_CONFIG_VARIABLE}=")]
        return text.partition("=")[2]
    else:
        with ecs_client(aws) as client:
            [task] = client.call("DescribeTasks", cluster="scaler-cluster", tasks=[unit_id])["tasks"]
        variables = task["overrides"]["containerOverrides"][0]["environment"]
    [document] = [each["value"] for each in variables if each["name"] == WORKER_CONFIG_VARIABLE]
    return str(document)


def document_of_agent(agent: psutil.Process) -> str:
    # The system shows nothing of a process that has just started.
    assert within(WAIT_SECONDS, lambda: WORKER_CONFIG_VARIABLE in agent.environ())
    return agent.environ()[WORKER_CONFIG_VARIABLE]


@pytest.mark.parametrize("kind", KINDS)
def test_units_inherit_everything_their_manager_is_configured_with(
    kind: str, aws: AwsEmulator, grid: None, pods: StandInSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HASH_SEED_VARIABLE, "7")
    logging = tmp_path / "logging.json"
    logging.write_text('{"version": 1}')
    values: dict[str, Any] = {
        "insecure_no_auth": True,
        "compression": "off",
        "object_storage_address": "tcp://127.0.0.1:3",
        "per_worker_capabilities": {"gpu": 2.0, "linux": None},
        "per_worker_task_queue_size": 7,
        "heartbeat_interval_seconds": 0.5,
        "task_timeout_seconds": 9.0,
        "death_timeout_seconds": 77.0,
        "preload": "os:getpid()",
        "event_loop": "uvloop",
        "logging_level": "ERROR",
        "logging_format": "json",
        "logging_paths": (str(tmp_path / "log"),),
        "logging_config_file": str(logging),
    }
    if kind in ELSEWHERE:
        values |= dict.fromkeys(PROCESSOR_KEYS, 1) | {"host_name": "one"}
        values |= {"store_spill_directory": str(tmp_path), "requirements": ("numpy>=1,<3",)}
    with backend_of(kind, aws, worker_scheduler_address="tcp://127.0.0.1:2", **values) as backend:
        [unit_id] = backend.start(1)
        document = document_of(backend, unit_id, aws, pods)
        backend.stop([unit_id])
    told = (OffloadConfig if isinstance(backend, LocalAgents) else WorkerConfig).from_json(document)
    expected = {**values, "worker_manager_id": "burst", "scheduler_address": "tcp://127.0.0.1:2", "hash_seed": "7"}
    if kind in ELSEWHERE:  # containers have no files of the manager's machine
        expected |= {"logging_paths": ("/dev/stdout",), "logging_config_file": None}
    else:
        expected |= {key: getattr(WorkerConfig, key) for key in PROCESSOR_KEYS}
    assert {key: getattr(told, key) for key in expected} == expected
    keys = {item.name for item in dataclasses.fields(WorkerConfig)} - OF_THE_UNIT
    assert expected.keys() == keys, "no setting of workers is left out here"


@pytest.mark.parametrize("kind", KINDS)
def test_backend_reports_unit_capacity_and_price(kind: str, aws: AwsEmulator, grid: None, pods: StandInSite) -> None:
    with backend_of(kind, aws, max_task_concurrency=3, **SIZES.get(kind, {})) as backend:
        found = backend.capacity
    assert pods.objects("pods") == []
    assert (found.max_slots, found.unit_slots) == (3, 3 if kind in ("aws_hpc", "symphony") else 1)
    assert (found.unit_memory_bytes, found.backlog) == (MEMORY_BYTES.get(kind, 0), int(kind == "slurm"))
    times = found.unit_minimum_seconds, found.usual_startup_seconds, found.usual_dispatch_seconds
    assert (found.unit_price, *times, found.charges_tasks) == COSTS.get(kind, FREE)


def test_session_matches_the_managers_settings(grid: None, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    config = symphony_config(
        symphony_user="ann", symphony_password_file=str(password), session_name="nightly", session_priority=77
    )
    backend = make_symphony_backend(config)
    try:
        [unit_id] = backend.start(1)
        document = document_of_agent(psutil.Process(backend.pid_of(unit_id)))
    finally:
        backend.close()
    executor = load_executor(OffloadConfig.from_json(document))
    executor.start(lambda _: None)
    try:
        assert [(each.name, each.priority) for each in api.grid().sessions()] == [("nightly", 77)]
    finally:
        executor.close()
    assert api.reset(None) == []
