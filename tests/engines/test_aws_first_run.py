"""The first run in an AWS account: missing or unavailable resources are retried, and everything else continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.aws import AwsEmulator, Error
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_raw_ecs.setup import provision as provision_ecs
from tests.engines.clouds_rig import IMAGE, ecs_config, provision
from tests.integration.settings_rig import command
from tests.waiting import within

WAIT_SECONDS = 30.0


@pytest.fixture
def aws(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> AwsEmulator:
    monkeypatch.setattr("scaler.worker_manager.aws.setup.PAUSE_SECONDS", 0.01)
    return aws


def test_first_cluster_of_an_account_waits_for_the_service_role(aws: AwsEmulator) -> None:
    text = "Unable to assume the service linked role. Please verify that the ECS service linked role exists."
    rule = aws.faults.add("CreateCluster", Error("InvalidParameterException", text), times=2)
    lines: list[str] = []
    assert provision_ecs(ecs_config(aws_endpoint_url=aws.endpoint_url), "setup", False, lines.append) == 0
    assert rule.used == 2
    assert [line.split()[0] for line in lines[:2]] == ["waiting", "created"]
    assert text.rstrip(".") in lines[0]
    assert provision_ecs(ecs_config(aws_endpoint_url=aws.endpoint_url), "teardown", False, lines.append) == 0


FILE = """
[scheduler]
bind_address = "tcp://127.0.0.1:{port}"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "here"
max_task_concurrency = 1

[[worker_manager]]
type = "aws_raw_ecs"
worker_manager_id = "there"
aws_endpoint_url = "{endpoint_url}"
ecs_subnets = ["subnet-1"]
ecs_task_image = "emulated"
ecs_task_cpu = 1
ecs_task_memory = 2
max_task_concurrency = 1
per_worker_capabilities = "cloud=-1"
heartbeat_interval_seconds = 0.5
"""


def test_service_outage_at_startup_is_a_reason_and_ends_nothing(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    file = tmp_path / "file.toml"
    file.write_text(FILE.format(port=ports.first, endpoint_url=aws.endpoint_url))
    provision_ecs(ecs_config(aws_endpoint_url=aws.endpoint_url), "setup", False, lambda _: None)
    aws.faults.add("ListTasks", Error("InternalFailure", "away", 500), times=None)
    with command("scaler", str(file), directory=tmp_path) as everything:
        everything.addresses()
        with Client(f"tcp://127.0.0.1:{ports.first}") as client:
            assert client.submit(abs, -1).result(WAIT_SECONDS) == 1
            future: Any = client.submit_verbose(abs, (-2,), capabilities={"cloud": -1})
            said = "cannot list units: ECS ListTasks failed on the service's side"
            assert within(WAIT_SECONDS, lambda: said in everything.output() + everything.errors())
            assert not future.done()
            aws.faults.clear()
            assert future.result(WAIT_SECONDS) == 2
        assert everything.stop() == 0
        ports.release()
    aws.ecs.wait_until(lambda: not aws.ecs.alive(), WAIT_SECONDS)


# -- units without an image

_WHERE = """[__import__("scaler").__file__, __import__("importlib.util").util.find_spec("starlette"),
__import__("msgpack").__name__, "SCALER_CREDENTIAL" in __import__("os").environ]"""
_BOOT_SECONDS = 120.0
"""The unit fetches uv, boto3, and more packages from the index, because no cache has them."""


def index_environment() -> dict[str, str]:
    """Return where pip and uv find packages on this machine, and keep them. Skips the test without an index."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "uv"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode:
        pytest.skip(f"no index of packages can be reached: {asked.stderr[-300:]}")
    caches = {"PIP_CACHE_DIR": Path.home() / ".cache/pip", "UV_CACHE_DIR": Path.home() / ".cache/uv"}
    known = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    return {**{name: str(path) for name, path in caches.items()}, **known}


KINDS = {
    "aws_raw_ecs": ("RunTask", 'ecs_subnets = ["subnet-1"]\necs_task_cpu = 1\necs_task_memory = 2'),
    "aws_ec2": ("CreateFleet", f'ec2_image = "{IMAGE}"\nec2_instance_types = ["m5.large"]\nec2_slots = 1'),
    "aws_hpc": ("SubmitJob", 'job_queue = "queue"\njob_definition = "job"\nmax_concurrent_jobs = 1'),
}
"""By manager type: the call that starts a unit, and settings of a small unit."""
SCHEDULER = """
[scheduler]
bind_address = "tcp://127.0.0.1:{port}"
"""
BARE = """
[[worker_manager]]
type = "{kind}"
worker_manager_id = "{kind}"
max_task_concurrency = 1
aws_endpoint_url = "{endpoint_url}"
s3_bucket = "{bucket}"
worker_requirements = ["msgpack"]
per_worker_capabilities = "{kind}=-1"
{settings}
"""


@pytest.mark.timeout(240)
def test_units_without_an_image_run_the_installed_version_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = {kind: f"packages-for-{kind.replace('_', '-')}" for kind in KINDS}
    with AwsEmulator(container_environment=index_environment()) as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        ports = ReservedPorts(4)
        managers = [
            BARE.format(kind=kind, bucket=buckets[kind], endpoint_url=aws.endpoint_url, settings=settings)
            for kind, (_, settings) in KINDS.items()
        ]
        file = tmp_path / "file.toml"
        file.write_text("".join([SCHEDULER.format(port=ports.first), *managers]))
        for kind in KINDS:
            package = f"created       package s3://{buckets[kind]}/scaler-packages/"
            assert [line for line in provision(kind, file, "setup") if line.startswith(package)]
        with command("scaler", str(file), directory=tmp_path) as everything:
            everything.addresses()
            with Client(f"tcp://127.0.0.1:{ports.first}") as client:
                futures = [client.submit_verbose(eval, (_WHERE,), capabilities={kind: -1}) for kind in KINDS]
                for future in futures:
                    home, web, needed, credential = future.result(_BOOT_SECONDS)
                    assert "/.cache/scaler/" in home
                    assert (web, needed, credential) == (None, "msgpack", False)
            assert everything.stop() == 0
            ports.release()
        for operation, _ in KINDS.values():
            assert aws.faults.calls()[operation] == 1, "every kind started at the first attempt"
        assert within(WAIT_SECONDS, lambda: not aws.containers.running())
        for kind in KINDS:
            provision(kind, file, "teardown")
        assert not set(buckets.values()) & set(aws_buckets(aws))


def aws_buckets(aws: AwsEmulator) -> list[str]:
    s3 = AwsClient(ecs_config(aws_endpoint_url=aws.endpoint_url), "s3")
    names = [bucket["Name"] for bucket in s3.call("ListBuckets")["Buckets"]]
    s3.close()
    return names
