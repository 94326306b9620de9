"""Units of a manager with a credential: what they receive, where it is visible, and the effects of its removal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.config.commands import Provision, Verb, parse_worker_manager
from scaler.errors import UsageError
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from scaler.testing.aws import AwsEmulator
from scaler.testing.aws.service import ServiceCall
from scaler.worker_manager.aws.calls import with_region
from scaler.worker_manager.aws.resources import CredentialParameter, check_secrets, parameter_name, secrets_with
from scaler.worker_manager.aws.setup import Account, run
from scaler.worker_manager.aws_ec2.backend import user_data
from scaler.worker_manager.main import provisioner_of
from tests.engines.clouds_rig import IMAGE, ec2_config, ecs_config
from tests.engines.hpc_rig import furnish
from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import Command, command
from tests.waiting import within

WAIT_SECONDS = 30.0


class Cluster:
    """A scheduler with keys, reached by managers and units over TCP only: the local listener has another name."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.keys = KeysDirectory.create(home / "keys", "test")
        self.near, *_ = addresses = free_addresses()
        self.far, self.storage = (address.replace("127.0.0.1", "127.0.0.2") for address in addresses[:2])

    @contextmanager
    def running(self) -> Iterator[None]:
        everywhere = self.near.replace("127.0.0.1", "0.0.0.0")
        flags = ("--credentials", str(self.keys.path), "--advertised-object-storage-address", self.storage)
        with command("scaler_scheduler", everywhere, *flags, directory=self.home) as running:
            running.addresses()
            yield

    def credential(self, name: str, role: str = "manager") -> str:
        path = self.home / f"{name}.credentials"
        write_private(path, self.keys.add(name, role).to_text(), replace=True)
        return str(path)

    def client(self) -> Client:
        return Client(self.far, credentials=self.credential("client", "client"))

    def units_secret(self, name: str) -> str:
        return load_credential(self.home / f"{name}.credentials").for_units().keys.secret

    def manager(self, name: str, *flags: str, credentials: Path | None = None) -> Command:
        path = str(credentials or self.home / f"{name}.credentials")
        told = (self.far, "-wmi", name, "-mtc", "1", "--credentials", path)
        made = Command("scaler_worker_manager", (flags[0], *told, *flags[1:]), {}, self.home)
        try:
            made.addresses()
        except BaseException:
            made.close()
            raise
        return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with made.running():
        yield made


def seen_by_a_task() -> str:
    """Return everything a task can read about its process and a child, without inspecting memory."""
    import os  # noqa: PLC0415 (runs on a worker)
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    mine = Path("/proc/self")
    parts = [repr(dict(os.environ)), (mine / "environ").read_text(), (mine / "cmdline").read_text()]
    parts.append(
        subprocess.run([sys.executable, "-c", "import os; print(os.environ)"], stdout=-1, check=True).stdout.decode()
    )
    for link in (mine / "fd").iterdir():
        target = os.path.realpath(link)
        parts.append(f"{link.name} {target}")
    return "\n".join(parts)


def shown_of(*pids: int) -> str:
    """Return command lines and environments of processes with all their descendants."""
    found = []
    for pid in pids:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            found += [*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())]
    return "\n".join(found)


def test_local_units_authenticate_with_a_hidden_key_that_ends_with_them(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.credential(name)
    managers = {
        name: cluster.manager(name, "baremetal_native", "--mode", "fixed", "-pwc", name, "-ll", "DEBUG")
        for name in ("a", "b")
    }
    try:
        with cluster.client() as client:

            def on(name: str, function: Callable[..., object], *args: object) -> object:
                return client.submit_verbose(function, args=args, kwargs={}, capabilities={name: 1}).result(
                    WAIT_SECONDS
                )

            assert on("a", len, b"x" * 2_000_000) == 2_000_000, "the processor fetches from the storage"
            agents = {name: on(name, os.getpid) for name in managers}
            shown = "\n".join([str(on("a", seen_by_a_task)), shown_of(*(each.pid for each in managers.values()))])
            assert "SCALER_WORKER_CONFIG" in shown
            for name in managers:
                assert cluster.units_secret(name) not in shown
            assert "'SCALER_CREDENTIAL" not in shown, "tasks and their children inherit no trace of it"

            cluster.keys.revoke("a")
            assert within(2.0 + WAIT_SECONDS, lambda: managers["a"].process.poll() is not None)
            assert "was revoked" in managers["a"].errors()
            assert on("b", os.getpid) == agents["b"], "the other manager's units continue"
            printed = "".join(each.output() + each.errors() for each in managers.values())
            assert all(cluster.units_secret(name) not in printed for name in managers)
    finally:
        for each in managers.values():
            each.stop()
            each.close()


def test_manager_with_a_piped_credential_keeps_starting_units(cluster: Cluster) -> None:
    text = Path(cluster.credential("box")).read_bytes()
    pipe = cluster.home / "pipe"
    os.mkfifo(pipe, 0o600)
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    manager = cluster.manager("box", "baremetal_native", "--mode", "fixed", credentials=pipe)
    try:
        writer.join()
        with cluster.client() as client:
            first = client.submit(os.getppid).result(WAIT_SECONDS)
            [agent] = psutil.Process(manager.pid).children()
            agent.kill()
            assert client.submit(os.getppid).result(WAIT_SECONDS) != first
        assert manager.stop() == 0
    finally:
        manager.close()


# -- in containers


class Cloud:
    """AWS with a record of all requests."""

    def __init__(self, aws: AwsEmulator) -> None:
        self.aws = aws
        self.asked: list[tuple[str, bytes]] = []
        aws.on_request = self._note

    def _note(self, service: str, operation: str, call: ServiceCall) -> None:
        headers = repr(sorted(call.headers.items())).encode()
        self.asked.append((f"{service} {operation}", b"\n".join((call.query_string.encode(), headers, call.body))))

    def operations_with(self, secret: str) -> set[str]:
        return {operation for operation, text in self.asked if secret.encode() in text}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with AwsEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        furnish(emulator)
        yield Cloud(emulator)


def flags_of(kind: str, aws: AwsEmulator) -> tuple[str, ...]:
    if kind == "aws_raw_ecs":
        size = ("--ecs-task-cpu", "1", "--ecs-task-memory", "2")
        own: tuple[str, ...] = ("--ecs-subnets", "subnet-1", "--ecs-task-image", "emulated", *size)
    else:
        own = ("--ec2-image", IMAGE, "--ec2-python", "python3", "--ec2-slots", "1")
    return ("--aws-endpoint-url", aws.endpoint_url, *own)


def provisioned(kind: str, cluster: Cluster, aws: AwsEmulator, verb: str, name: str) -> list[str]:
    """Run a setup verb, and return its lines."""
    credentials = ("--credentials", str(cluster.home / f"{name}.credentials"))
    told = parse_worker_manager("m", [kind, verb, "-wmi", name, *credentials, *flags_of(kind, aws)], {})
    assert isinstance(told, Provision)
    lines: list[str] = []
    provisioner_of(kind)(told.config, told.verb, told.dry_run, lines.append)
    return lines


BASES = {"aws_raw_ecs": "scaler-task-definition", "aws_ec2": "scaler-worker"}


@pytest.mark.parametrize("kind", BASES)
def test_containers_get_their_credential_only_from_the_parameter_store(
    kind: str, cluster: Cluster, cloud: Cloud
) -> None:
    cluster.credential("burst")
    secret = cluster.units_secret("burst")
    base = BASES[kind]
    lines = provisioned(kind, cluster, cloud.aws, "setup", "burst")
    assert f"created       parameter /scaler/burst/{base} with the units' credential" in lines
    manager = cluster.manager("burst", kind, "-his", "0.25", *flags_of(kind, cloud.aws))
    try:
        with cluster.client() as client:
            assert client.submit(len, b"x" * 2_000_000).result(WAIT_SECONDS) == 2_000_000
            seen = client.submit(seen_by_a_task).result(WAIT_SECONDS)
            containers = cloud.aws.containers.running()
            shown = shown_of(manager.pid, *(container.pid for container in containers))
            outputs = "".join(container.output() for container in containers)
            cluster.keys.revoke("burst")
            assert within(WAIT_SECONDS, lambda: manager.process.poll() is not None)
            assert within(WAIT_SECONDS, lambda: not cloud.aws.containers.running()), "units end with their key"
        assert "SCALER_WORKER_CONFIG" in seen
        for text in (seen, shown, outputs, manager.output(), manager.errors(), "".join(lines)):
            assert secret not in text
        assert cloud.operations_with(secret) == {"ssm PutParameter"}
    finally:
        manager.stop()
        manager.close()


def test_credential_fetched_at_setup_is_removed_from_the_workers_environment(cluster: Cluster, cloud: Cloud) -> None:
    cluster.credential("machines")
    secret = cluster.units_secret("machines")
    fetched = cluster.home / "fetched"
    fetched.write_text(load_credential(cluster.home / "machines.credentials").for_units().to_text())
    setup = f"export SCALER_CREDENTIAL=$(cat {fetched})"
    config = ec2_config(scheduler_address=cluster.far, worker_manager_id="machines", ec2_slots=1, ec2_setup=setup)
    script = user_data(with_region(config), "")
    metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{cloud.aws.endpoint_url}/instances/i-0"}
    machine = cloud.aws.containers.start(["sh", "-c", script], metadata, "i-0")
    with cluster.client() as client:
        assert secret not in client.submit(seen_by_a_task).result(WAIT_SECONDS)
    assert secret not in shown_of(machine.pid)


def test_setup_replaces_a_changed_credential_and_removes_a_deleted_one(cloud: Cloud) -> None:
    lines: list[str] = []
    config = ecs_config(aws_endpoint_url=cloud.aws.endpoint_url)
    account = Account(config, "setup", lines.append, dry_run=False)

    def done(verb: Verb, text: str) -> str:
        lines.clear()
        with closing(Account(config, verb, lines.append, dry_run=False)) as account:
            parameter = CredentialParameter(account, config, "workers", text)
            run(account, [parameter], [parameter])
        return "".join(line.replace("parameter /scaler/burst/workers", "it") for line in lines)

    def values() -> list[tuple[str, str]]:
        ssm = account.client("ssm")
        names = [each["Name"] for each in ssm.items("DescribeParameters", "Parameters")]
        found = [ssm.call("GetParameter", Name=name, WithDecryption=True)["Parameter"] for name in names]
        return [(each["Type"], each["Value"]) for each in found]

    assert done("setup", "first").split()[:2] == ["created", "it"]
    assert done("setup", "first").split()[:2] == ["exists", "it"]
    assert done("show", "first") == done("setup", "first")
    assert done("show", "second").startswith("exists        it")
    assert lines[1].startswith("would change ")
    assert done("setup", "second").startswith("exists        it")
    assert lines[1].startswith("changed ")
    assert values() == [("SecureString", "second")]
    assert done("setup", "").split()[:2] == ["removed", "it"], "the manager has no secret anymore"
    done("setup", "third")
    assert done("teardown", "").split()[:2] == ["removed", "it"], "teardown needs no credential"
    assert values() == []
    account.close()


@pytest.mark.parametrize(
    ("given", "has_credential"),
    [
        ([], True),
        (["/scaler/other/workers"], True),
        (["/scaler/burst/others"], True),
        (["/scaler/burst/workers"], False),
    ],
    ids=["none", "of another manager", "of another definition", "without one here"],
)
def test_manager_rejects_a_definition_with_a_foreign_credential(
    given: list[str], has_credential: bool, tmp_path: Path
) -> None:
    path = None
    if has_credential:
        path = str(tmp_path / "burst.credentials")
        write_private(Path(path), KeysDirectory.create(tmp_path / "keys", "test").add("burst", "manager").to_text())
    secrets = [
        {"name": "THEIRS", "valueFrom": "arn:aws:ssm:us-east-1:1:parameter/theirs"},
        *({"name": "SCALER_CREDENTIAL", "valueFrom": f"arn:aws:ssm:us-east-1:1:parameter{name}"} for name in given),
    ]
    config = ecs_config(credentials=path)
    with pytest.raises(
        UsageError, match=r"units of workers get .* run SETUP with its worker_manager_id and credentials"
    ):
        check_secrets(config, "workers", secrets, "SETUP")
    right = f"arn:aws:ssm:us-east-1:1:parameter{parameter_name(config, 'workers')}"
    mended = secrets_with(secrets, right if has_credential else "")
    check_secrets(config, "workers", mended, "SETUP")
    assert mended[0] == secrets[0], "foreign contents are kept"
