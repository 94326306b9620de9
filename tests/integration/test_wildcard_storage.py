"""`scaler FILE` with servers on every address of their host: workers on other hosts find the object storage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.hosts import hosts, ip, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}"),
    pytest.mark.timeout(150),  # each host starts processes of its own
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
from scaler import Client
with Client("tcp://{host}:8516", insecure_no_auth=True) as client:
    sent = client.send_object(bytes(3_000_000))
    for place in ("near", "far"):
        future = client.submit_verbose(lambda value: value + value, (sent,), capabilities={{place: None}})
        print(place, len(future.result()))
    print(client.cluster().storage.address)
"""
WORKERS = ["-n", "1", "-pwc", "far", "-wmi", "far", "--insecure-no-auth", "True"]


@pytest.mark.parametrize("has_route", [True, False])
def test_workers_and_clients_of_other_hosts_find_a_storage_on_every_address(tmp_path: Path, has_route: bool) -> None:
    with hosts(2) as network:
        first, second = network.hosts
        if has_route:
            ip("-n", first.namespace, "route", "add", "default", "via", second.address)
        (first.home / "stack.toml").write_text(FILE)
        scaler = [sys.executable, "-m", "scaler.cli"]
        first.serve(*scaler, "scaler", "stack.toml")
        second.serve(*scaler, "scaler_cluster", f"tcp://{first.address}:8516", *WORKERS)
        told = [
            host.run(sys.executable, "-c", PROGRAM.format(host=address)).splitlines()
            for host, address in ((first, "127.0.0.1"), (second, first.address))
        ]
    assert told == [["near 6000000", "far 6000000", f"tcp://{first.address}:8517"]] * 2
