"""The simulated network that tests and benchmarks run several hosts on."""

from __future__ import annotations

import sys
import time

import pytest

from tests.hosts import Host, HostsError, Network, hosts, ip, why_not
from tests.waiting import until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}")

SIZE = 3_000_000
LISTEN = """
import socket, sys
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listens", flush=True)
    while True:
        with server.accept()[0] as link:
            while link.recv(1 << 20):
                pass
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=1.0) as link:
    link.sendall(bytes(int(sys.argv[2])))
    link.shutdown(socket.SHUT_WR)
    link.recv(1)
"""


def listen(host: Host) -> None:
    process = host.start(sys.executable, "-c", LISTEN, stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listens\n"
    process.stdout.close()


def send(host: Host, to: Host, size: int = SIZE) -> None:
    host.run(sys.executable, "-c", SEND, to.address, str(size))


def test_bytes_count_on_the_links_that_they_cross() -> None:
    with hosts(3) as network:
        listen(network[1])
        before = network.traffic()
        send(network[0], network[1])
        crossed = {name: now - before[name] for name, now in network.traffic().items()}
    assert SIZE < crossed["host0"].sent_bytes < 1.01 * SIZE
    assert SIZE < crossed["host1"].received_bytes < 1.01 * SIZE
    assert crossed["host1"].sent_bytes < 0.05 * SIZE
    assert crossed["host2"].sent_bytes + crossed["host2"].received_bytes < 10_000


def test_a_limited_link_takes_the_time_of_its_rate() -> None:
    with hosts(2) as network:
        listen(network[1])
        network.limit(network[1], 40_000_000)
        began = time.monotonic()
        send(network[0], network[1])
        assert time.monotonic() - began > 0.8 * SIZE * 8 / 40e6


def test_hosts_that_are_cut_reach_all_but_each_other() -> None:
    with hosts(3) as network:
        for host in network.hosts:
            listen(host)
        send(network[1], network[2], 10)
        network.cut(network[1], network[2])
        for one, other in ((1, 2), (2, 1)):
            with pytest.raises(HostsError, match="timed out"):
                send(network[one], network[other], 10)
        send(network[1], network[0], 10)
        send(network[2], network[0], 10)
        network.mend(network[1], network[2])
        send(network[1], network[2], 10)


def test_a_host_has_a_name_a_home_and_an_address_of_its_own() -> None:
    with hosts(2) as network:
        program = "import os, pathlib, socket; print(socket.gethostname(), pathlib.Path.home())"
        told = [host.run(sys.executable, "-c", program).split() for host in network.hosts]
    assert told == [[host.name, str(host.home)] for host in network.hosts]
    assert told[0] != told[1]


def test_nothing_stays_when_the_body_fails() -> None:
    made: list[Network] = []

    def fail() -> None:
        with hosts(2) as network:
            made.append(network)
            # The second process is in a session of its own, and does not end when the first one is asked to.
            network[1].start("sh", "-c", "setsid sleep 60 & echo $! > pid; wait")
            until((network[1].home / "pid").exists)
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.hosts.STOP_SECONDS", 0.2)
        with pytest.raises(KeyboardInterrupt):
            fail()
    assert made[0].leftovers == ["sleep 60"]
    assert [host.namespace for host in made[0].hosts if host.namespace in ip("netns", "list")] == []
    assert not made[0][0].home.exists()
