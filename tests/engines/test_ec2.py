"""The type aws_ec2 on the emulator: moto plays EC2, and instances run their user data as processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.config.commands import Verb
from scaler.protocol.messages import UnitState
from scaler.testing.aws import AwsEmulator, Error, LoseReply, Partial
from scaler.worker_manager.aws.calls import AwsClient, with_region
from scaler.worker_manager.aws_ec2 import AwsEc2Config, cpus_of
from scaler.worker_manager.aws_ec2.backend import Ec2Backend, fleet_request, state_of, user_data
from scaler.worker_manager.aws_ec2.setup import provision
from scaler.worker_manager.backend import BackendError
from tests.engines.clouds_rig import IMAGE, ec2_config
from tests.integration.settings_rig import command
from tests.waiting import until, within

WAIT_SECONDS = 30.0


class Account:
    """An account after `setup`, and a manager's actions there."""

    def __init__(self, aws: AwsEmulator, **values: Any) -> None:
        quiet = {"ec2_setup": "exec sleep 3600", "heartbeat_interval_seconds": 0.01}
        self.config = ec2_config(aws_endpoint_url=aws.endpoint_url, **{**quiet, **values})
        self.client = AwsClient(self.config, "ec2")

    def do(self, verb: Verb, config: AwsEc2Config | None = None) -> list[str]:
        lines: list[str] = []
        provision(config or self.config, verb, False, lines.append)
        return lines

    def newest(self) -> dict[str, Any]:
        name = self.config.ec2_launch_template
        found = self.client.call("DescribeLaunchTemplateVersions", LaunchTemplateName=name, Versions=["$Latest"])
        newest: dict[str, Any] = found["LaunchTemplateVersions"][0]
        return newest


@contextmanager
def backend_of(account: Account) -> Iterator[Ec2Backend]:
    backend = Ec2Backend(account.config)
    try:
        yield backend
    finally:
        backend.close()
        account.client.close()


# -- setup


def test_setup_creates_resources_once_and_versions_for_new_settings(aws: AwsEmulator) -> None:
    account = Account(aws)
    assert [line.split()[0] for line in account.do("setup")] == ["created"] * 3
    assert [line.split()[0] for line in account.do("setup")] == ["exists"] * 3
    more = Account(aws, per_worker_capabilities={"gpu": None}, object_storage_backend="s3://data/objects")
    assert [line.split()[0] for line in more.do("setup")] == ["exists", "changed", "exists", "exists", "changed"]
    assert more.newest()["VersionNumber"] == 2
    assert [line.split()[0] for line in more.do("show")] == ["exists"] * 3
    iam = AwsClient(more.config, "iam")
    role = more.newest()["LaunchTemplateData"]["IamInstanceProfile"]["Name"]
    [statement] = iam.call("GetRolePolicy", RoleName=role, PolicyName="scaler")["PolicyDocument"]["Statement"]
    assert statement["Resource"] == "arn:aws:s3:::data/objects/run-*"
    assert [line.split()[0] for line in account.do("teardown")] == ["removed"] * 3
    iam.close()


# -- installation on instances

INSTALLED: dict[str, Any] = {"s3_bucket": "our-packages", "ec2_python": None}


def remove_package(account: Account) -> None:
    s3 = AwsClient(account.config, "s3")
    for entry in s3.call("ListObjectsV2", Bucket="our-packages")["Contents"]:
        if entry["Key"].endswith(".whl"):
            s3.call("DeleteObject", Bucket="our-packages", Key=entry["Key"])
    s3.close()


def test_setup_uploads_the_package_and_grants_instances_only_that(aws: AwsEmulator) -> None:
    account = Account(aws, **INSTALLED, worker_requirements=("msgpack",))
    lines = account.do("setup")
    assert [line.split()[:2] for line in lines[:2]] == [["created", "bucket"], ["created", "package"]]
    assert "role scaler-worker-us-east-1-instance for the instances, to read their packages and credential" in lines[2]
    keys = aws.s3.keys("our-packages")
    assert {key.split("/")[1] for key in keys} == {"scaler-worker"}
    assert [key.rpartition("/")[2].rpartition(".")[2] for key in keys] == ["txt", "whl"]
    iam = AwsClient(account.config, "iam")
    role = account.newest()["LaunchTemplateData"]["IamInstanceProfile"]["Name"]
    [statement] = iam.call("GetRolePolicy", RoleName=role, PolicyName="scaler")["PolicyDocument"]["Statement"]
    assert (statement["Action"], statement["Resource"]) == (
        "s3:GetObject",
        "arn:aws:s3:::our-packages/scaler-packages/scaler-worker/*",
    )
    iam.close()
    assert [line.split()[0] for line in account.do("setup")] == ["exists"] * 5
    other = Account(aws, **INSTALLED)
    done = [line.split()[0] for line in other.do("setup")]
    assert done == ["exists", "created", "exists", "exists", "exists", "changed"]
    assert [line.split()[0] for line in account.do("teardown")] == ["removed"] * 5


def test_instance_without_its_package_exits_with_a_remedy(aws: AwsEmulator, tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    account = Account(aws, **INSTALLED, ec2_setup=f"while [ ! -e {goes_on} ]; do sleep 0.01; done; exit 1")
    account.do("setup")
    with backend_of(account) as backend:
        backend.start(1)
        remove_package(account)
        goes_on.touch()
        ended = until(lambda: [unit for unit in backend.list() if unit.state is UnitState.FAILED])
        assert "does not contain this build of scaler" in ended[0].reason
        assert ended[0].reason.endswith(": run `scaler_worker_manager aws_ec2 setup`")
        with pytest.raises(BackendError, match="does not contain this build of scaler"):
            backend.start(1)


# -- requests to EC2


def test_instances_match_the_managers_settings(aws: AwsEmulator) -> None:
    account = Account(
        aws,
        ec2_instance_types=("m5.large", "c5.2xlarge"),
        ec2_subnets=("subnet-7", "subnet-8"),
        ec2_security_groups=("sg-7",),
        ec2_purchase="spot",
        ec2_launch_template="theirs",
        ec2_key_name="pair",
        ec2_volume_gigabytes=50,
        ec2_root_device="/dev/sda1",
        ec2_setup="echo prepared",
        ec2_python="/opt/venv/bin/python",
    )
    account.do("setup")
    told = account.newest()["LaunchTemplateData"]
    assert (told["ImageId"], told["KeyName"], told["SecurityGroupIds"]) == (IMAGE, "pair", ["sg-7"])
    assert told["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert told["MetadataOptions"]["HttpTokens"] == "required"
    [volume] = told["BlockDeviceMappings"]
    assert (volume["DeviceName"], volume["Ebs"]["VolumeSize"]) == ("/dev/sda1", 50)
    fleet = fleet_request(account.config, "3", 5, "token")
    [template] = fleet["LaunchTemplateConfigs"]
    assert template["LaunchTemplateSpecification"] == {"LaunchTemplateName": "theirs", "Version": "3"}
    assert template["Overrides"] == [
        {"InstanceType": name, "SubnetId": subnet}
        for name in ("m5.large", "c5.2xlarge")
        for subnet in ("subnet-7", "subnet-8")
    ]
    assert fleet["TargetCapacitySpecification"] == {"TotalTargetCapacity": 5, "DefaultTargetCapacityType": "spot"}
    script = user_data(with_region(account.config), "")
    assert "\necho prepared\n" in script
    agent = "exec /opt/venv/bin/python -P -m scaler.worker_manager.aws_ec2.instance --slots 0 --region us-east-1"
    assert f"\n{agent}\n" in script
    assert script.endswith("\nshutdown -h now\n")
    account.client.close()


def test_slots_follow_the_instance_type_up_to_the_limit(aws: AwsEmulator) -> None:
    account = Account(aws, ec2_instance_types=("m5.large", "m5.2xlarge"), max_task_concurrency=17)
    account.do("setup")
    with backend_of(account) as backend:
        assert (backend.capacity.unit_slots, backend.capacity.max_units) == (2, 2)
        [unit_id] = backend.start(1)
        [unit] = backend.list()
        [found] = account.client.call("DescribeInstances", InstanceIds=[unit_id])["Reservations"][0]["Instances"]
        assert unit.slots == cpus_of(found["InstanceType"])


def test_unanswered_start_starts_nothing_twice(aws: AwsEmulator) -> None:
    account = Account(aws)
    account.do("setup")
    with backend_of(account) as backend:
        aws.faults.add("CreateFleet", LoseReply(), times=2)
        with pytest.raises(BackendError):
            backend.start(3)
        assert len(backend.start(3)) == 3
        assert len(aws.ec2.alive()) == 3


def test_lacking_ec2_capacity_is_the_reason_and_the_rest_starts(aws: AwsEmulator) -> None:
    account = Account(aws)
    account.do("setup")
    with backend_of(account) as backend:
        aws.faults.add("CreateFleet", Partial(1, "There is no capacity"))
        with pytest.raises(
            BackendError, match=r"m5\.large: InsufficientInstanceCapacity: There is no capacity"
        ) as caught:
            backend.start(3)
        assert len(caught.value.started) == len(aws.ec2.alive()) == 1


def test_many_instances_are_terminated_with_one_call(aws: AwsEmulator) -> None:
    account = Account(aws)
    account.do("setup")
    with backend_of(account) as backend:
        started = backend.start(5)
        backend.stop(started)
        assert aws.faults.calls()["TerminateInstances"] == 1
        assert aws.ec2.alive() == []
        assert {unit.state for unit in backend.list()} == {UnitState.STOPPED}


def test_instance_that_ec2_will_not_terminate_does_not_affect_others(aws: AwsEmulator) -> None:
    account = Account(aws)
    account.do("setup")
    with backend_of(account) as backend:
        started = backend.start(2)
        protected = Error("OperationNotPermitted", "The instance may not be terminated", 400)
        aws.faults.add("TerminateInstances", protected, times=2)
        with pytest.raises(BackendError, match="may not be terminated"):
            backend.stop(started)
        assert len(aws.ec2.alive()) == 1, "the call for both is refused, and that for one of them"


def test_missing_launch_template_error_says_how_to_create_it(aws: AwsEmulator) -> None:
    account = Account(aws)
    with (
        backend_of(account) as backend,
        pytest.raises(BackendError, match="no launch template scaler-worker: run `scaler_w"),
    ):
        backend.start(1)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("Client.UserInitiatedShutdown", UnitState.STOPPED),
        ("Client.InstanceInitiatedShutdown", UnitState.FAILED),
        ("Server.SpotInstanceTermination", UnitState.FAILED),
        ("Server.InternalError", UnitState.FAILED),
    ],
)
def test_only_requested_stops_count_as_orderly(code: str, state: UnitState) -> None:
    assert state_of({"State": {"Name": "terminated"}, "StateReason": {"Code": code}}) is state


# -- whole clusters


def wait_for(started: str, goes_on: str) -> int:
    """Run until a file exists, and return the number of calls."""
    import time  # noqa: PLC0415 (runs on a worker)
    from pathlib import Path  # noqa: PLC0415

    with Path(started).open("a") as file:
        file.write("x")
    while not Path(goes_on).exists():
        time.sleep(0.01)  # an instance has no tests/waiting.py
    return len(Path(started).read_text())


def flags_of(aws: AwsEmulator) -> tuple[str, ...]:
    return ("--ec2-image", IMAGE, "--ec2-python", "python3", "--ec2-slots", "1", "--aws-endpoint-url", aws.endpoint_url)


@contextmanager
def cluster(directory: Path, aws: AwsEmulator) -> Iterator[Client]:
    """Yield a client of a scheduler whose only manager runs instances."""
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=directory) as scheduler:
        address = scheduler.addresses()["scheduler"]
        told = ("aws_ec2", address, "-wmi", "burst", "-mtc", "2", "-his", "0.25", *flags_of(aws))
        account = Account(aws, scheduler_address=address, worker_manager_id="burst", ec2_slots=1, ec2_setup="")
        account.do("setup")
        account.client.close()
        with command("scaler_worker_manager", *told, directory=directory) as running:
            running.addresses()
            with Client(address) as client:
                yield client
            assert running.stop() == 0, running.errors()
        assert within(WAIT_SECONDS, lambda: aws.ec2.alive() == []), "nothing is left that costs money"


def test_spot_notice_drains_the_worker_which_finishes_its_task(tmp_path: Path, aws: AwsEmulator) -> None:
    with cluster(tmp_path, aws) as client:
        started, goes_on = tmp_path / "started", tmp_path / "goes-on"
        future = client.submit(wait_for, str(started), str(goes_on))
        assert within(WAIT_SECONDS, started.exists)
        [instance] = aws.ec2.alive()
        output = aws.ec2.running[instance].output
        aws.ec2.notices[instance] = "2026-01-01T00:00:00Z"
        assert within(WAIT_SECONDS, lambda: "the worker drains" in output())
        goes_on.touch()
        assert future.result(WAIT_SECONDS) == 1, "the task ran once"
        assert within(WAIT_SECONDS, lambda: instance not in aws.ec2.alive()), "the instance terminates itself"
        assert client.submit(len, "ab").result(WAIT_SECONDS) == 2
