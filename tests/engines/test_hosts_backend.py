"""A bucket as backend on several hosts: traffic of the object storage, and a host without access."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.hosts import Host, Network, Traffic, hosts, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}"),
    pytest.mark.timeout(150),  # each host starts its own processes
]

SIZE = 10_000_000
SLACK = 700_000
"""Overhead of messages and of their transmission, in bytes."""
CREATE_BUCKET = """
import boto3
while True:
    try:
        boto3.client("s3").create_bucket(Bucket="bucket")
        break
    except Exception:
        continue  # boto3 waits itself
"""
PROGRAM = f"""
import os, sys
import boto3
from scaler import Client
sys.path.append({str(Path(__file__).parents[2])!r})
from tests.waiting import until

def first(value, number=0):
    return value[0]

def make(seed):
    return bytes([seed]) + os.urandom({SIZE})

def on(host, function, *arguments):
    return client.submit_verbose(function, arguments, capabilities={{host: None}})

def stored():
    found = boto3.client("s3").list_objects_v2(Bucket="bucket", Prefix="site/")
    return [each for each in found.get("Contents", []) if each["Size"] > {SIZE}]

client = Client(sys.argv[1], credentials=sys.argv[2])
"""


class Cloud:
    """Object storage and client on host0, workers on host1 and host2, and S3 on host3, which host2 cannot access."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        first, _, _, s3 = network.hosts
        self.log = directory / "log"
        self._output = self.log.open("w")
        s3.start(sys.executable, "-m", "moto.server", "-H", s3.address, "-p", "5000", **self._to())
        self.access: dict[str, Any] = {
            "AWS_ENDPOINT_URL": f"http://{s3.address}:5000",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        none = {"AWS_ENDPOINT_URL": self.access["AWS_ENDPOINT_URL"], "AWS_EC2_METADATA_DISABLED": "true"}
        first.run(sys.executable, "-c", CREATE_BUCKET, **self.access)
        keys = KeysDirectory.create(first.home / "keys", "tests")
        self._address = f"tcp://{first.address}:8516"
        storage = f"tcp://{first.address}:8515"
        backend = ("--backend", "s3://bucket/site")
        self._serve(
            first, self.access, "object_storage_server", storage, "--credentials", first.home / "keys", *backend
        )
        self._serve(first, {}, "scheduler", self._address, "-osa", storage, "--credentials", first.home / "keys")
        for host, environment in zip(network.hosts[1:3], (self.access, none), strict=True):
            write_private(host.home / "credentials", keys.add(host.name, "manager").to_text())
            named = ["--worker-manager-id", host.name, "--per-worker-capabilities", host.name]
            mine: list[str | Path] = ["-n", "2", "--credentials", host.home / "credentials"]
            self._serve(host, environment, "cluster", self._address, *mine, *named)
        write_private(first.home / "credentials", keys.add("client", "client").to_text())

    def _to(self) -> dict[str, Any]:
        return {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}

    def _serve(self, host: Host, environment: dict[str, str], name: str, *words: str | Path) -> None:
        script = Path(sys.executable).parent / f"scaler_{name}"
        host.serve(script, *words, "--logging-level", "INFO", environment=environment, **self._to())

    def run(self, program: str) -> tuple[str, dict[str, Traffic]]:
        """Run a program of `client` on host0. Returns its output and the traffic on each link."""
        first = self.network[0]
        before = self.network.traffic()
        words = [self._address, str(first.home / "credentials")]
        code = f"{PROGRAM}{program}\nclient.disconnect()\n"
        printed = first.run(sys.executable, "-c", code, *words, **self.access)
        return printed.strip(), {name: now - before[name] for name, now in self.network.traffic().items()}

    def close(self) -> None:
        self._output.close()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with hosts(4) as network:
        cloud = Cloud(network, tmp_path_factory.mktemp("cloud"))
        yield cloud
        network.stop()
        cloud.close()


def test_value_is_uploaded_once_and_hosts_read_it_from_the_bucket(cloud: Cloud) -> None:
    printed, crossed = cloud.run("""
sent = client.send_object(make(7))
until(stored)
print({task.result() for task in [on("host1", first, sent, number) for number in range(10)]})
""")
    assert printed == "{7}"
    assert SIZE < crossed["host0"].sent_bytes < SIZE + SLACK
    assert SIZE < crossed["host1"].received_bytes < SIZE + SLACK
    assert SIZE < crossed["host3"].sent_bytes < SIZE + SLACK


def test_host_without_access_reads_from_the_object_storage_and_explains(cloud: Cloud) -> None:
    printed, crossed = cloud.run("""
sent = client.send_object(make(9))
until(stored)
print({task.result() for task in [on("host2", first, sent, number) for number in range(10)]})
""")
    assert printed == "{9}"
    assert 2 * SIZE < crossed["host0"].sent_bytes < 2 * SIZE + SLACK
    assert "give this host a role, a profile (AWS_PROFILE), or AWS keys" in cloud.log.read_text()
