"""Servers on all addresses of their host: peers reach the storage at the address of the scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts import Host, Network, hosts, ip, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}"),
    pytest.mark.timeout(150),  # each host starts its own processes
]

FILE = """
[object_storage_server]
bind_address = "tcp://0.0.0.0:8517"
insecure_no_auth = true

[scheduler]
bind_address = "tcp://0.0.0.0:8516"
insecure_no_auth = true

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "near"
max_task_concurrency = 1
per_worker_capabilities = "near"
"""
PROGRAM = """
import sys
from scaler import Client
for address in sys.argv[2:]:
    with Client(address, insecure_no_auth=True) as client:
        value = client.send_object(bytes(3_000_000))
        for place in sys.argv[1].split(","):
            value = client.submit_verbose(lambda value: value + value, (value,), capabilities={place: None})
        print(len(value.result()))
"""
SCALER = [sys.executable, "-m", "scaler.cli"]


def serve(host: Host, bound: str) -> None:
    host.serve(*SCALER, "scaler_scheduler", f"tcp://{bound}:8516", "--insecure-no-auth", "True")


def add_workers(host: Host, address: str, name: str) -> None:
    workers = ["-n", "1", "-pwc", name, "-wmi", name, "--insecure-no-auth", "True"]
    host.serve(*SCALER, "scaler_cluster", address, *workers)


def answers(host: Host, places: str, *addresses: str) -> list[str]:
    return host.run(sys.executable, "-c", PROGRAM, places, *addresses).splitlines()


def test_remote_workers_and_clients_find_a_storage_on_all_addresses() -> None:
    with hosts(2) as network:
        first, second = network.hosts
        ip("-n", first.namespace, "route", "add", "default", "via", second.address)
        (first.home / "stack.toml").write_text(FILE)
        first.serve(*SCALER, "scaler", "stack.toml")
        address = f"tcp://{first.address}:8516"
        add_workers(second, address, "far")
        told = [answers(first, "near,far", "tcp://127.0.0.1:8516"), answers(second, "near,far", address)]
    assert told == [["12000000"]] * 2


@pytest.mark.full
def test_peers_on_unconnected_networks_share_a_cluster() -> None:
    with hosts(3) as network:
        head, one, other = network.hosts
        ip("-n", head.namespace, "address", "add", "10.99.0.1/24", "dev", "eth0")
        ip("-n", other.namespace, "address", "flush", "dev", "eth0")
        ip("-n", other.namespace, "address", "add", "10.99.0.3/24", "dev", "eth0")
        serve(head, "[::]")
        addresses = {one: f"tcp://{head.address}:8516", other: "tcp://10.99.0.1:8516"}
        for host, address in addresses.items():
            add_workers(host, address, host.name)
        told = [answers(host, f"{one.name},{other.name}", address) for host, address in addresses.items()]
    assert told == [["12000000"]] * 2


@contextmanager
def ipv6_hosts(count: int) -> Iterator[Network]:
    """Create hosts fd00::1, fd00::2, and so on without IPv4 addresses; `head` is a name of the first."""
    with hosts(count) as network, hosts_file(network, "fd00::1 head"):
        for number, host in enumerate(network.hosts, 1):
            ip("netns", "exec", host.namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")
            ip("-n", host.namespace, "address", "flush", "dev", "eth0")
            ip("-n", host.namespace, "address", "add", f"fd00::{number}/64", "dev", "eth0", "nodad")
        yield network


@contextmanager
def hosts_file(network: Network, line: str) -> Iterator[None]:
    """Give the hosts an /etc/hosts with this line, in addition to `localhost`."""
    folders = [Path("/etc/netns", host.namespace) for host in network.hosts]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{line}\n")
        yield
    finally:
        for folder in folders:
            (folder / "hosts").unlink(missing_ok=True)
            folder.rmdir()


def test_server_whose_name_resolves_to_loopback_warns(tmp_path: Path) -> None:
    """Debian maps the host's own name to 127.0.1.1 in /etc/hosts."""
    with hosts(1) as network, hosts_file(network, "127.0.1.1 head"), (tmp_path / "log").open("w") as log:
        command = [*SCALER, "scaler_scheduler", "tcp://head:8516", "--insecure-no-auth", "True"]
        network.hosts[0].serve(*command, stdout=log)
    warning = (
        "tcp://head:8516 is tcp://127.0.1.1:8516 here, which other hosts cannot reach: listen on tcp://0.0.0.0:PORT"
    )
    assert warning in (tmp_path / "log").read_text()


@pytest.mark.full
def test_cluster_runs_on_an_ipv6_only_network() -> None:
    with ipv6_hosts(2) as network:
        head, far = network.hosts
        serve(head, "*")
        add_workers(head, "tcp://head:8516", "near")
        add_workers(far, "tcp://[fd00::1]:8516", "far")
        told = answers(far, "near,far", "tcp://[fd00::1]:8516", "tcp://head:8516")
    assert told == ["12000000"] * 2
