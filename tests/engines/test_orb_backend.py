"""The ORB backend: the real package against moto, if installed, with machines as local processes."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client
from scaler.config.load import model_of
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.backend import BackendError, Unit
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.orb_aws_ec2.backend import OrbBackend, OrbBroker
from tests.integration.settings_rig import command
from tests.waiting import until, within

needs_orb = pytest.mark.skipif(
    find_spec("orb") is None, reason="orb-py is not installed, so nothing of ORB is tested: pip install '.[orb]'"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ORB itself
TEMPLATE = "scaler"
WAIT_SECONDS = 40.0


def config(**values: Any) -> OrbAwsEc2Config:
    given = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "m", "orb_template": TEMPLATE}
    return model_of(OrbAwsEc2Config, {**given, "heartbeat_interval_seconds": 0.01, **values})


class Site:
    """An account with an initialized ORB and one template."""

    def __init__(self, aws: AwsEmulator, folder: Path) -> None:
        self.aws = aws
        self.ec2 = AwsClient(config(aws_endpoint_url=aws.endpoint_url), "ec2")
        subnet = self.ec2.call("DescribeSubnets")["Subnets"][0]["SubnetId"]
        group = self.ec2.call("DescribeSecurityGroups")["SecurityGroups"][0]["GroupId"]
        provider = {"name": "aws", "type": "aws", "enabled": True, "config": {"region": "us-east-1"}}
        self.path = folder / "config" / "config.json"
        self.path.parent.mkdir()
        self.path.write_text(
            json.dumps(
                {
                    "scheduler": {"type": "default"},
                    "provider": {"providers": [provider], "default_provider_instance": "aws"},
                }
            )
        )
        self.orb = OrbBroker(str(self.path))
        handlers = logging.getLogger().handlers[:]
        self.orb.call(
            "create_template",
            TEMPLATE,
            "EC2Fleet",
            self.ec2.call("DescribeImages")["Images"][0]["ImageId"],
            machine_types={"m5.large": 1},
            fleet_type="instant",
            subnet_ids=[subnet],
            security_group_ids=[group],
            max_instances=100,
        )
        self.keeps_the_log = logging.getLogger().handlers == handlers

    def backend(self, **values: Any) -> OrbBackend:
        return OrbBackend(config(aws_endpoint_url=self.aws.endpoint_url, **values), self.orb)

    def alive(self) -> set[str]:
        found = self.ec2.items("DescribeInstances", "Reservations")
        machines = [machine for reservation in found for machine in reservation["Instances"]]
        return {machine["InstanceId"] for machine in machines if machine["State"]["Name"] == "running"}

    def script(self, machine: str) -> str:
        found = self.ec2.call("DescribeInstanceAttribute", InstanceId=machine, Attribute="userData")
        return base64.b64decode(found["UserData"]["Value"]).decode()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("orb")
    with pytest.MonkeyPatch.context() as patch, AwsEmulator() as aws:
        for name, value in aws.environment.items():
            patch.setenv(name, value)
        for name in ("CONFIG", "WORK", "LOG", "SCRIPTS", "HEALTH"):
            patch.setenv(f"ORB_{name}_DIR", str(folder / name.lower()))
        site = Site(aws, folder)
        yield site
        site.orb.close()
        site.ec2.close()


@pytest.fixture
def site(opened: Site) -> Iterator[Site]:
    yield opened
    opened.aws.faults.clear()
    if left := opened.alive():
        opened.ec2.call("TerminateInstances", InstanceIds=sorted(left))


def until_listed(backend: OrbBackend, fits: Callable[[dict[str, Unit]], bool]) -> dict[str, Unit]:
    def listed() -> dict[str, Unit] | None:
        units = {unit.unit_id: unit for unit in backend.list()}
        return units if fits(units) else None

    return dict(until(listed, WAIT_SECONDS))


@needs_orb
def test_uninitialized_orb_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ORB is not initialized: there is no .*config.json; run `orb init`, or set"):
        OrbBackend(config(orb_config=str(tmp_path / "config.json")))


@needs_orb
def test_machines_are_requested_listed_and_returned(site: Site) -> None:
    assert site.keeps_the_log, "ORB's log does not take that of the manager"
    backend = site.backend(orb_slots=2, max_task_concurrency=5)
    assert (backend.capacity.unit_slots, backend.capacity.max_units) == (2, 3)
    started = backend.start(2)
    assert set(started) == site.alive()
    running = until_listed(backend, lambda units: len(units) == 2)
    assert {(unit.state, unit.slots) for unit in running.values()} == {(UnitState.RUNNING, 2)}
    backend.stop(started[:1])
    ended = until_listed(backend, lambda units: units[started[0]].state is UnitState.STOPPED)
    assert ended[started[1]].state is UnitState.RUNNING
    assert site.alive() == {started[1]}
    backend.close()


@needs_orb
def test_detects_a_lost_or_stopped_machine_that_orb_misses(site: Site) -> None:
    backend = site.backend()
    lost, done, stays = backend.start(3)
    until_listed(backend, lambda units: len(units) == 3)
    site.ec2.call("TerminateInstances", InstanceIds=[lost])
    site.ec2.call("StopInstances", InstanceIds=[done])
    units = until_listed(backend, lambda units: units[lost].state is units[done].state is UnitState.FAILED)
    assert units[lost].reason
    assert units[done].reason.startswith("its worker exited: /var/log/cloud-init-output.log")
    assert units[stays].state is UnitState.RUNNING
    assert site.alive() == {stays}
    backend.close()


@needs_orb
def test_only_machines_of_the_same_template_are_adopted(site: Site) -> None:
    first = site.backend()
    started = first.start(2)
    first.close()
    second, other = site.backend(), site.backend(orb_template="other")
    assert set(until_listed(second, bool)) == set(started)
    assert other.list() == []
    second.stop(started)
    assert within(WAIT_SECONDS, lambda: not site.alive())
    for backend in (second, other):
        backend.close()


@needs_orb
def test_failed_request_and_missing_template_raise_with_the_reason(site: Site) -> None:
    site.orb.call("create_template", "bare", "EC2Fleet", "ami-12345678", fleet_type="instant", max_instances=9)
    bare, missing = site.backend(orb_template="bare"), site.backend(orb_template="none")
    for _ in range(2):  # the failed request no longer counts
        with pytest.raises(BackendError, match=r"ORB did not start all machines: .*machine_types must be specified"):
            bare.start(1)
    with pytest.raises(
        BackendError, match=r"ORB update_template failed \(EntityNotFoundError\): Template .* not found"
    ):
        missing.start(1)
    for each in (bare, missing):
        each.close()


@needs_orb
def test_tasks_run_on_a_machine_that_shuts_down_after_its_worker_exits(site: Site, tmp_path: Path) -> None:
    programs, down = tmp_path / "bin", tmp_path / "down"
    programs.mkdir()
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        address = scheduler.addresses()["scheduler"]
        backend = site.backend(
            scheduler_address=address,
            insecure_no_auth=True,
            orb_slots=2,
            orb_python="site-python",
            orb_setup=("export SITE='of its own'",),
        )
        [machine] = backend.start(1)
        # The machine's parts: metadata, a Python with scaler, and a shutdown command other than ours.
        for name, text in (("site-python", f'exec {sys.executable} "$@"'), ("shutdown", f'echo "$@" > {down}')):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{site.aws.endpoint_url}/instances/{machine}",
        }
        booted = site.aws.containers.start(["sh", "-c", site.script(machine)], environment, machine)
        with Client(address) as client:
            assert client.map(abs, range(-20, 0)) == list(range(20, 0, -1))
            assert client.submit(_site).result(WAIT_SECONDS) == ("of its own", machine)
        assert not down.exists()
        [worker] = psutil.Process(booted.pid).children()
        worker.terminate()
        assert booted.wait(WAIT_SECONDS) == 0
        assert down.read_text() == "-h now\n"
        backend.close()


def _site() -> tuple[str, str]:
    import os  # noqa: PLC0415 (runs on a worker)

    return os.environ["SITE"], os.environ["SCALER_EC2_INSTANCE_ID"]
