"""Invalid calls, peers, and bytes: a clear error for the sender, and no loss for any other peer."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cluster.supervisor import ReservedPorts
from scaler.errors import LimitError
from tests.integration.settings_rig import command
from tests.waiting import within

# -- versions


@pytest.mark.parametrize(
    ("role", "program", "change", "reason"),
    [
        (
            "client",
            "from scaler import Client; Client('ADDRESS')",
            "versions.m = type('', (), {**vars(versions.m), 'PROTOCOL_VERSION': 99})",
            "speaks protocol 99, this server on .* speaks protocol",
        ),
        (
            "worker",
            (
                "import json, os, runpy; os.environ['SCALER_WORKER_CONFIG'] = json.dumps(dict("
                "scheduler_address='ADDRESS', worker_manager_id='m', unit_id='u')); "
                "runpy.run_module('scaler.worker', run_name='__main__')"
            ),
            "versions.python_version = lambda: '3.9'",
            "runs Python 3.9, this server on .* runs Python 3",
        ),
    ],
    ids=["client", "worker"],
)
def test_incompatible_versions_are_named_before_the_first_task(
    role: str, program: str, change: str, reason: str, cluster: SchedulerClusterCombo
) -> None:
    program = f"from scaler.net import versions; {change}; {program.replace('ADDRESS', cluster.get_address())}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert re.search(rf"refused this {role}: the {role} on \S+ \(pid .*{reason}", done.stderr)


# -- tasks


def test_oversized_object_is_refused_with_the_limit_and_the_client_continues(tmp_path: Path) -> None:
    ports = ReservedPorts(3)
    file = tmp_path / "small.toml"
    file.write_text(
        f'[object_storage_server]\nbind_address = "{ports.address(1)}"\nmax_object_bytes = 100_000\n'
        f'[scheduler]\nbind_address = "{ports.address()}"\n[cluster]\nnum_of_workers = 1\n'
    )
    large = os.urandom(200_000)

    def carries(extra: bytes = large) -> int:
        return len(extra)

    with command("scaler", str(file), directory=tmp_path) as running:
        running.addresses()
        ports.release()
        with Client(ports.address()) as client:
            calls: list[Callable[[], Any]] = [
                lambda: client.submit(len, large).result(),
                lambda: client.send_object(large),
                lambda: client.submit(carries).result(),
                lambda: client.submit(bytes, 200_000).result(),
                lambda: client.map(len, [b"", large]),
            ]
            for call in calls:
                with pytest.raises(LimitError, match=r"\d+ bytes are more than max_object_bytes = 100000"):
                    call()
            assert client.submit(len, large[:90_000]).result() == 90_000


# -- strangers

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
NOISES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" + b"x" * 300,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
    "random bytes": os.urandom(5000),
    "random bytes after a greeting": GREETING + os.urandom(5000),
    "frames that are no envelopes": GREETING + READY + b"\x00\x05hello" * 20,
    "a frame of a terabyte": GREETING + READY + b"\x02" + struct.pack(">Q", 2**40),
    "nothing at all": b"",
    "a part of a greeting": GREETING[:5],
}


def test_unidentified_peers_disturb_no_work_and_are_logged_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ports = ReservedPorts(1)
    storage = ports.address()
    with (
        ExitStack() as open_sockets,
        SchedulerClusterCombo(
            n_workers=1, object_storage_address=storage, logging_level="INFO", logging_paths=[str(log)]
        ) as combo,
        Client(combo.get_address()) as client,
    ):
        ports.release()
        addresses = (combo.get_address(), combo.get_object_storage_address(), combo.get_monitor_address())
        before = [client.submit(pow, number, 2) for number in range(100)]
        for address in addresses:
            for noise in NOISES.values():
                stranger = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
                open_sockets.enter_context(stranger)
                stranger.sendall(noise)
        large = os.urandom(100_000)
        assert client.submit(len, large).result() == 100_000, "while all of them are connected"
        open_sockets.close()
        assert [future.result() for future in before] == [number**2 for number in range(100)]
        assert client.submit(bytes, 100_000).result() == bytes(100_000), "when all of them are gone"
        for address in addresses:
            said = f"{address}: a connection from "  # the peer's address is unknown when it closes at once
            assert within(5, lambda said=said: said in log.read_text())  # type: ignore[misc]
            assert log.read_text().count(said) == 1


# -- preload


def test_launcher_reports_a_preload_hook_with_a_missing_module(tmp_path: Path) -> None:
    ports = ReservedPorts(3)
    file = tmp_path / "preload.toml"
    file.write_text(
        f'[scheduler]\nbind_address = "{ports.address()}"\n'
        '[cluster]\nnum_of_workers = 1\npreload = "no_such_module:warm_up"\n'
    )
    with command("scaler", str(file), directory=tmp_path) as running:
        running.addresses()
        ports.release()
        reason = "exit code 1: 3 processors in a row could not start: preload no_such_module:warm_up failed: "
        assert within(20, lambda: f"{reason}ModuleNotFoundError: No module named 'no_such_module'" in running.output())
