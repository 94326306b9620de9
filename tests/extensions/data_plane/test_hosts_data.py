"""Transfers of large values between hosts: bytes on each link, and effects of losing a link or host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.host_runs import Deployment
from tests.hosts import Network, Traffic, hosts, why_not
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}"),
    pytest.mark.timeout(150),  # each host starts its own processes
]

SIZE = 10_000_000
SLACK = 500_000
"""Overhead of messages and of sending them."""
BEGIN = f"""
import os, socket, sys
from pathlib import Path
from scaler import Client
sys.path.append({str(Path(__file__).parents[2])!r})
from tests.waiting import until, wait_for_file

def make(seed):
    return bytes([seed]) + os.urandom({SIZE})

def make_and_tell(seed, path):
    Path(path).write_text(socket.gethostname())
    return make(seed)

def first(value, number=0):
    return value[0]

def on(host, function, *arguments):
    return client.submit_verbose(function, arguments, capabilities={{host: None}})

client = Client(sys.argv[1], credentials=sys.argv[2])
"""


class Cluster:
    """Scaler on a network: the scheduler and clients on the first host, a worker of two slots on every other one."""

    def __init__(self, network: Network, deployment: Deployment) -> None:
        self.network = network
        self._command = [sys.executable, "-c"]
        self._access = deployment.start("scaler", 2)

    def start(self, program: str) -> subprocess.Popen[str]:
        """Start a program of `client` on the first host."""
        command = [*self._command, f"{BEGIN}{program}\nclient.disconnect()\n", *self._access]
        return self.network[0].start(*command, stdout=subprocess.PIPE, text=True)

    def run(self, program: str) -> tuple[str, dict[str, Traffic]]:
        """Run a program of `client` on the first host. Returns its output and the traffic on each link."""
        before = self.network.traffic()
        process = self.start(program)
        printed, _ = process.communicate(timeout=40)
        assert process.returncode == 0
        return printed.strip(), {name: now - before[name] for name, now in self.network.traffic().items()}


@contextmanager
def started(path: Path) -> Iterator[Cluster]:
    with hosts(3) as network:
        deployment = Deployment(network, path)
        try:
            yield Cluster(network, deployment)
        finally:
            for host in network.hosts:
                host.kill()  # a store asked to exit would stay for a while
            deployment.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_value_shared_by_many_tasks_crosses_its_link_once(cluster: Cluster) -> None:
    printed, crossed = cluster.run("""
sent = client.send_object(make(7))
print({task.result() for task in [on("host1", first, sent, number) for number in range(20)]})
""")
    assert printed == "{7}"
    assert SIZE < crossed["host1"].received_bytes < SIZE + SLACK
    assert crossed["host2"].received_bytes < SLACK


def test_result_used_on_its_host_stays_there(cluster: Cluster) -> None:
    printed, crossed = cluster.run("""
made = on("host1", make, 7)
print({task.result() for task in [on("host1", first, made, number) for number in range(20)]})
""")
    assert printed == "{7}"
    assert sum(link.sent_bytes for link in crossed.values()) < SLACK


def test_result_moves_between_hosts_without_the_scheduler(cluster: Cluster) -> None:
    printed, crossed = cluster.run("""
made = on("host1", make, 7)
print({task.result() for task in [on("host2", first, made, number) for number in range(20)]})
""")
    assert printed == "{7}"
    assert SIZE < crossed["host2"].received_bytes < SIZE + SLACK
    assert crossed["host0"].sent_bytes + crossed["host0"].received_bytes < SLACK


def test_hosts_without_a_route_share_values_through_the_storage(cluster: Cluster) -> None:
    hosts = cluster.network.hosts[1:]
    cluster.network.cut(*hosts)
    try:
        printed, crossed = cluster.run("""
made = on("host2", make, 7)
print({task.result() for task in [on("host1", first, made, number) for number in range(20)]})
""")
    finally:
        cluster.network.mend(*hosts)
    assert printed == "{7}"
    assert SIZE < crossed["host1"].received_bytes < SIZE + SLACK
    assert SIZE < crossed["host0"].received_bytes < SIZE + SLACK


@pytest.mark.full
def test_value_of_a_dead_host_is_recomputed(tmp_path: Path) -> None:
    where, used, dead = tmp_path / "where", tmp_path / "used", tmp_path / "dead"
    program = f"""
made = client.submit_verbose(make_and_tell, (7, {str(where)!r}), retries=3)
client.submit(first, made).result()
Path({str(used)!r}).touch()
wait_for_file({str(dead)!r})
print(client.submit(first, made).result(30), flush=True)
"""
    with started(tmp_path) as cluster:
        process = cluster.start(program)
        until(used.exists)
        maker = next(host for host in cluster.network.hosts if host.name == where.read_text())
        maker.kill()
        dead.touch()
        printed, _ = process.communicate(timeout=40)
    assert printed == "7\n"
    assert where.read_text() != maker.name
