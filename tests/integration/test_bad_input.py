"""Invalid user input: a clear text, the right exit code, and no effect on running work."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.cluster.supervisor import ReservedPorts
from scaler.config.addresses import MAX_IPC_PATH_BYTES
from scaler.errors import RefusedError, UnreachableError, UsageError
from tests.integration.settings_rig import command
from tests.short_forms import short_form
from tests.waiting import within

SCHEDULER = '[scheduler]\nbind_address = "tcp://127.0.0.1:1"\n'
MANAGER = '[[worker_manager]]\ntype = "baremetal_native"\nworker_manager_id = "m"\n'
COMMANDS: dict[str, list[str]] = {
    "scaler_object_storage_server": [],
    "scaler_scheduler": [],
    "scaler_worker_manager": ["baremetal_native", "-wmi", "m"],
    "scaler_cluster": ["-n", "1"],
    "scaler_worker_adapter_native": [],
    "scaler_worker_adapter_symphony": ["--service-name", "app"],
}


def told(capfd: pytest.CaptureFixture[str], code: int, name: str, *arguments: str) -> str:
    """Run a command that must exit with this code and print one line, and return the line."""
    assert run_command(name, arguments) == code
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.count("\n") == 1
    return errors


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "scaler.cli", name, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)


# -- files


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "section [scheduler] is missing"),
        (b'bind_address = "ipc:///a"\n', "the key 'bind_address' is above the first section"),
        (b'[scheduler]\nbind_address == "ipc:///a"\n', "Invalid value (at line 2, column 15)"),
        (b'[scheduler]\n# \xe9\nbind_address = "ipc:///a"\n', "byte 0xe9 is not UTF-8 (line 2, column 3)"),
        (
            b'\xef\xbb\xbf[scheduler]\nbind_addres = "ipc:///a"\n',
            "unknown key 'bind_addres'; did you mean 'bind_address'?",
        ),
        (f'{SCHEDULER}policy_engine_type = "simpel"\n'.encode(), "'simpel' is unknown; did you mean 'simple'?"),
        (f'{SCHEDULER}policy_content = "scaling=fast"\n'.encode(), "known: capability, no, vanilla"),
        (
            f'{SCHEDULER}policy_engine_type = "waterfall_v1"\npolicy_content = "1,n,4"\n{MANAGER}'.encode(),
            "policy_content: worker manager 'n' is unknown",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rejects_an_invalid_file_before_starting_anything(
    content: bytes, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_bytes(content)
    assert text in told(capfd, 2, "scaler", str(file))


# -- command lines


@pytest.mark.parametrize(
    ("name", "address", "text"),
    short_form(
        [
            *((name, "127.0.0.1:8516", "write tcp://host:port or ipc://path") for name in COMMANDS),
            ("scaler_scheduler", "tcp://127.0.0.1", "write tcp://host:port"),
            ("scaler_scheduler", "http://127.0.0.1:80", "write tcp://host:port"),
            ("scaler_scheduler", "tcp://127.0.0.1:70000", "a port is a number from 0 to 65535"),
            ("scaler_scheduler", "ipc://", "has no path"),
            ("scaler_scheduler", f"ipc:///{'x' * MAX_IPC_PATH_BYTES}", f"at most {MAX_IPC_PATH_BYTES} bytes"),
        ]
    ),
)
def test_every_command_and_client_rejects_an_invalid_address(
    name: str, address: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert text in told(capfd, 2, name, *COMMANDS[name], address)
    with pytest.raises(UsageError, match=text):
        Client(address)


@pytest.mark.parametrize(
    ("address", "text"), [("tcp://127.0.0.1:0", "port 0"), ("tcp://*:8516", r"only for listening")]
)
def test_rejects_a_listening_address_for_connecting(address: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.search(text, told(capfd, 2, "scaler_cluster", address))
    assert re.search(text, told(capfd, 2, "scaler_scheduler", "ipc:///a", "-osa", address))
    with pytest.raises(UsageError, match=text):
        Client(address)
    with pytest.raises(UsageError, match="an address must be a string"):
        Client(8516)  # type: ignore[arg-type]


# -- addresses in use, and addresses where nothing or another program listens


def test_names_the_owner_of_a_used_address(cluster: SchedulerClusterCombo) -> None:
    address = cluster.get_address()
    storage = cluster.get_object_storage_address()
    for name, arguments, at in (
        ("scaler_object_storage_server", [address], address),
        ("scaler_scheduler", [address], f"the object storage inside this scheduler: cannot listen on {storage}"),
        ("scaler_scheduler", [address, "-osa", storage], address),
        ("scaler_scheduler", ["tcp://127.0.0.1:0", "-osa", storage, "-ma", address], address),
    ):
        done = run(name, *arguments)
        assert done.returncode == 2
        assert re.search(rf"{at}: it is in use by scaler's scheduler \(pid \d+\); stop it or", done.stderr)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        done = run("scaler_scheduler", taken, "-osa", storage)
    assert done.returncode == 2
    assert re.search(rf"in use by another program \(.+, pid {os.getpid()}\); stop it", done.stderr)


def test_second_manager_with_the_same_id_exits_with_1_and_the_reason(cluster: SchedulerClusterCombo) -> None:
    address = cluster.get_address()
    with Client(address) as client:
        manager = client.submit(_manager_of_this_worker).result()
        done = run("scaler_cluster", address, "-n", "1", "-wmi", manager)
        assert done.returncode == 1
        assert done.stderr == (
            f"worker_manager: {address} refused this worker manager: worker manager id {manager!r} is in use by "
            "another worker manager of this scheduler: give this manager another worker_manager_id\n"
        )
        assert client.submit(pow, 2, 3).result() == 8


def _manager_of_this_worker() -> str:
    """The workers of a combo descend from a process with the name in its environment."""
    import json  # noqa: PLC0415 (this runs on a worker)

    found: str = json.loads(os.environ["SCALER_WORKER_CONFIG"])["worker_manager_id"]
    return found


@contextmanager
def silence() -> Iterator[str]:
    """Accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    ports = ReservedPorts(1)
    yield ports.address()
    ports.release()


@contextmanager
def no_such_host() -> Iterator[str]:
    yield f"tcp://{'h' * 64}.invalid:8516"


@pytest.mark.parametrize(
    ("place", "reason"),
    [(nobody, "connection refused .*"), (no_such_host, "unknown host name"), (silence, "no answer yet")],
)
def test_unreachable_scheduler_error_names_address_timeout_and_cause(place: Callable[[], Any], reason: str) -> None:
    with place() as address, pytest.raises(UnreachableError) as caught:
        Client(address, timeout_seconds=0.4)
    pattern = rf"no scheduler answers at {address}: waited 0\.4 s \({reason}\)\. Is it running at this address\?"
    assert re.fullmatch(pattern, str(caught.value))


def test_client_reports_an_address_of_another_service(cluster: SchedulerClusterCombo) -> None:
    with pytest.raises(RefusedError, match="this address is for monitors"):
        Client(cluster.get_monitor_address())
    with pytest.raises(RefusedError, match="this is an object storage's address; clients connect to the scheduler's"):
        Client(cluster.get_object_storage_address())


def test_workers_without_a_scheduler_report_it_soon_and_keep_trying(tmp_path: Path) -> None:
    with (
        nobody() as address,
        command("scaler_cluster", address, "-n", "1", "-his", "0.5", directory=tmp_path) as running,
    ):
        assert within(10, lambda: "no scheduler answers" in running.output())
        assert re.search(rf"at {address}: waited [34] s \(connection refused .*\); still trying", running.output())
