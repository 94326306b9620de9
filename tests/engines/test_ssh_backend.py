"""Units on hosts that are real sshds: requirements of every backend, obstacles on a host, and lifetimes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig, WorkerSettings
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.testing.backends import CHECKS, BackendCase, alive
from scaler.worker_manager.backend import BackendError, Unit
from scaler.worker_manager.ssh.backend import SshBackend
from tests.contracts.backend_cases import AGENT
from tests.engines.ssh_rig import WAIT_SECONDS, Hosts, Sshd, make_key, needs_sshd, running_hosts, until_gone
from tests.waiting import until

pytestmark = needs_sshd

WATCHER_OF_STAND_INS = """
import sys
from scaler.worker_manager import baremetal_native
baremetal_native.COMMAND = (sys.executable, {agent!r})
from scaler.worker_manager.ssh import watcher
sys.exit(watcher.main())
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running_hosts(tmp_path_factory.mktemp("ssh") / "hosts", 2) as hosts:
        yield hosts


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return a Python whose watcher starts a fake worker, which is fast and needs no scheduler."""
    agent, watcher, program = tmp_path / "agent.py", tmp_path / "watcher.py", tmp_path / "python"
    agent.write_text(AGENT)
    watcher.write_text(WATCHER_OF_STAND_INS.format(agent=str(agent)))
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *ssh.watcher*) exec {sys.executable} {watcher} "$4";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def until_listed(backend: SshBackend, fits: Callable[[list[Unit]], object]) -> list[Unit]:
    """List units after every change until they match."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not fits(units := backend.list()):
        assert time.monotonic() < deadline, units
        select.select([backend.fileno()], [], [], 0.1)
    return units


def in_state(state: UnitState, count: int) -> Callable[[list[Unit]], bool]:
    return lambda units: sum(unit.state is state for unit in units) == count


def reasons(units: Sequence[Unit]) -> set[str]:
    return {unit.reason for unit in units}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_behaves_like_every_backend(check: Callable[[BackendCase], None], hosts: Hosts, python: str) -> None:
    host = hosts.all[0]
    with hosts.backend(str(host), slots_per_host=8, ssh_python=python) as backend:
        lost = f"{host}: killed by signal 9 (SIGKILL)"
        check(BackendCase(backend, lambda unit_id: os.kill(host.unit(unit_id), signal.SIGKILL), lost))
    assert not until_gone(host)


def test_slots_default_to_each_hosts_cores_and_are_never_exceeded(hosts: Hosts, python: str) -> None:
    first, second = map(str, hosts.all)
    cores = len(os.sched_getaffinity(0))
    path = hosts.directory / "list"
    path.write_text(f"# ours\n{second}  # as many as it has cores\n")
    profile = Path(hosts.all[1].variables["HOME"]) / ".bashrc"
    profile.write_text("printf 'welcome, without a line end'\n")
    with hosts.backend(f"{first} slots=3", f"@{path}", slots_per_host=0, ssh_python=python) as backend:
        assert (backend.capacity.unit_slots, backend.capacity.max_units) == (1, 3 + cores)
        backend.start(4 + cores)
        units = until_listed(backend, in_state(UnitState.RUNNING, 3 + cores))
        [waiting] = [unit for unit in units if unit.state is not UnitState.RUNNING]
        assert (waiting.state, waiting.reason) == (UnitState.WAITING, "all slots on the hosts are in use")
        running = next(unit for unit in units if unit.state is UnitState.RUNNING)
        backend.stop([running.unit_id])
        until_listed(backend, lambda units: waiting.unit_id in {unit.unit_id for unit in units if not unit.reason})
    profile.unlink()
    with hosts.backend(f"{first} slots=3", second, max_task_concurrency=4) as backend:
        assert backend.capacity.max_units == 4


def test_unreachable_host_does_not_delay_units_that_fit_elsewhere(hosts: Hosts, python: str) -> None:
    up = str(hosts.all[0])
    with hosts.backend("127.0.0.1:1", up, slots_per_host=2, ssh_python=python) as backend:
        first, second, third = backend.start(3)
        units = until_listed(
            backend, lambda units: in_state(UnitState.RUNNING, 2)(units) and in_state(UnitState.WAITING, 1)(units)
        )
        [waiting] = [unit for unit in units if unit.state is UnitState.WAITING]
        assert "127.0.0.1:1: ssh: connect to host 127.0.0.1 port 1: Connection refused" in waiting.reason
        backend.stop([first])
        until_listed(backend, lambda units: third in {unit.unit_id for unit in units if not unit.reason})
        # Even if the working host is also lost, nothing waits forever.
        os.kill(hosts.all[0].client(), signal.SIGKILL)
        units = until_listed(backend, lambda units: not alive(units))
        assert {unit.state for unit in units if unit.unit_id in {second, third}} == {UnitState.FAILED}


def document_of(host: Sshd, unit_id: str) -> WorkerConfig:
    """Return the settings that a unit was started with."""
    variables = Path(f"/proc/{host.unit(unit_id)}/environ").read_bytes().decode().split("\0")
    [text] = [each.partition("=")[2] for each in variables if each.startswith(f"{WORKER_CONFIG_VARIABLE}=")]
    return WorkerConfig.from_json(text)


def unusable(case: str, hosts: Hosts, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """Return settings that make the first host unusable, and part of the reason."""
    options = tmp_path / "ssh_config"
    text = hosts.options_file.read_text()
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    old, other = tmp_path / "old-python", tmp_path / "other-python"
    old.write_text("#!/bin/sh\necho 3.8\n")
    wrong = '{"units": [], "started": null}'
    other.write_text(
        f"#!/bin/sh\nif test \"$1\" = -c; then echo {here}; else echo hello; echo 'scaler-ssh units {wrong}'; fi\n"
    )
    for path in (old, other):
        path.chmod(0o755)
    match case:
        case "key":
            make_key(tmp_path / "other")
            options.write_text(text.replace(f"{hosts.directory}/id\n", f"{tmp_path}/other\n"))
            return {"ssh_options": ("-F", str(options))}, "Permission denied (publickey).: `ssh "
        case "host key":
            options.write_text(text.replace(str(hosts.known), str(tmp_path / "none")))
            return {"ssh_options": ("-F", str(options))}, "Host key verification failed.: log in once with `ssh "
        case "old Python":
            return {"ssh_python": str(old)}, f"{old} is Python 3.8, and the manager runs {here}: use the same"
        case "no Python":
            return {"ssh_python": str(tmp_path / "none")}, f"{tmp_path}/none: not found"
        case "no scaler":
            bare = os.path.realpath(sys.executable)  # the system's Python, without our packages
            return {"ssh_python": bare}, "No module named 'scaler"
        case "no uv":
            return {"ssh_python": ""}, "uv is not installed there: install it, or set ssh_python"
        case "other scaler":
            return {"ssh_python": str(other)}, f"unexpected answer 'units {wrong}': check scaler's version there"
        case _:
            return {"ssh_options": ("-F", str(hosts.options_file), "-o", "Unknown=1")}, "Bad configuration option"


@pytest.mark.parametrize(
    "case", ["key", "host key", "old Python", "no Python", "no scaler", "no uv", "other scaler", "option"]
)
def test_obstacles_on_a_host_are_the_reason_of_its_units(case: str, hosts: Hosts, tmp_path: Path) -> None:
    values, expected = unusable(case, hosts, tmp_path)
    host = str(hosts.all[0])
    with hosts.backend(host, **values) as backend:
        started = backend.start(2)
        units = until_listed(backend, in_state(UnitState.FAILED, 2))
        assert {unit.unit_id for unit in units} == set(started)
        [reason] = reasons(units)
        assert reason.startswith(f"{host}: ")
        assert expected in reason
        # Until the next attempt, it fails at once with the same text.
        with pytest.raises(BackendError) as error:
            backend.start(1)
        assert str(error.value) == f"no host can be used: {reason}"


@pytest.mark.parametrize("fault", ["ssh", "session"])
def test_units_of_a_broken_connection_fail_end_there_and_are_restarted(fault: str, hosts: Hosts, python: str) -> None:
    first, second = hosts.all
    with hosts.backend(slots_per_host=1, ssh_python=python) as backend:
        backend.start(2)
        before = {unit.unit_id for unit in until_listed(backend, in_state(UnitState.RUNNING, 2))}
        if fault == "ssh":
            os.kill(first.client(), signal.SIGKILL)
        else:
            for session in first.sessions():
                session.kill()
        units = until_listed(backend, in_state(UnitState.FAILED, 1))
        [lost] = [unit for unit in units if unit.state is UnitState.FAILED]
        assert lost.reason.startswith(f"{first}: ")
        assert not until_gone(first)
        [new] = backend.start(1)
        units = until_listed(backend, in_state(UnitState.RUNNING, 2))
        running = {unit.unit_id for unit in units if unit.state is UnitState.RUNNING}
        assert running == before - {lost.unit_id} | {new}
        assert first.unit(new)
    assert not until_gone(second)


def test_new_connection_removes_leftovers_of_an_earlier_one(hosts: Hosts, python: str) -> None:
    host = hosts.all[0]
    with hosts.backend(str(host), ssh_python=python) as backend:
        [left] = backend.start(1)
        until_listed(backend, in_state(UnitState.RUNNING, 1))
        stopped = host.unit(left), next(pid for pid, line in host.remote().items() if "watcher" in line)
        for pid in stopped:  # does not detect the end of its connection
            os.kill(pid, signal.SIGSTOP)
        os.kill(host.client(), signal.SIGKILL)
        until_listed(backend, in_state(UnitState.FAILED, 1))
        until(lambda: stopped[0] not in host.remote() or _tried(backend), WAIT_SECONDS)
        until_listed(backend, in_state(UnitState.RUNNING, 1))
        assert not set(stopped) & host.remote().keys()


def _tried(backend: SshBackend) -> bool:
    """Start a unit once the host may be tried again."""
    try:
        return bool(backend.start(1))
    except BackendError:
        return False


def test_host_without_a_suitable_python_gets_one_environment(hosts: Hosts, tmp_path: Path) -> None:
    host = hosts.all[1]
    uv = Path(host.variables["HOME"]) / ".local/bin/uv"
    uv.parent.mkdir(parents=True)
    calls = tmp_path / "calls"
    site = next(path for path in sys.path if path.endswith("site-packages"))
    # A fake uv: unpacks the wheel, and finds its requirements here.
    uv.write_text(
        f"""#!{sys.executable}
import pathlib, sys, venv, zipfile
with open({str(calls)!r}, "a") as file:
    print(*sys.argv[1:], file=file)
place = pathlib.Path(sys.argv[-1] if sys.argv[1] == "venv" else sys.argv[5]).expanduser()
if sys.argv[1] == "venv":
    venv.create(place)
else:
    packages = next(place.parents[1].glob("lib/*/site-packages"))
    zipfile.ZipFile(sys.argv[6].split("[")[0]).extractall(packages)
    (packages / "needed.pth").write_text({site!r})
"""
    )
    uv.chmod(0o755)
    for _ in range(2):
        with hosts.backend(str(host), ssh_python="", event_loop="uvloop") as backend:
            [unit_id] = backend.start(1)
            until_listed(backend, lambda units: units[0].state is UnitState.PENDING and not units[0].reason)
            pid = host.unit(unit_id)
            program = host.remote()[pid].split()[0]
            assert program.startswith(f"{host.variables['HOME']}/.cache/scaler/environments/")
            place = subprocess.run(
                [program, "-P", "-c", "import scaler; print(scaler.__file__)"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert place.stdout.startswith(f"{host.variables['HOME']}/.cache/scaler/environments/")
    made, install = calls.read_text().splitlines()
    assert made.startswith(f"venv -q --python {sys.version_info[0]}.{sys.version_info[1]} ")
    assert install.endswith("-py3-none-any.whl[uvloop]")


def test_units_get_all_settings_of_their_manager(hosts: Hosts, python: str) -> None:
    host = hosts.all[0]
    settings: dict[str, Any] = {
        "worker_scheduler_address": "tcp://127.0.0.1:2",
        "object_storage_address": "tcp://127.0.0.1:3",
        "per_worker_capabilities": {"gpu": 2.0},
        "per_worker_task_queue_size": 7,
        "task_timeout_seconds": 9.0,
        "preload": "os:getpid()",
        "compression": "off",
    }
    with hosts.backend(str(host), ssh_python=python, **settings) as backend:
        [unit_id] = backend.start(1)
        until_listed(backend, in_state(UnitState.RUNNING, 1))
        document = document_of(host, unit_id)
    config = hosts.config(str(host), **settings)
    assert (document.unit_id, document.slots, document.worker_manager_id) == (unit_id, 1, "far")
    assert (document.scheduler_address, document.compression) == ("tcp://127.0.0.1:2", "off")
    names = {item.name for item in fields(WorkerSettings)}
    assert {name: getattr(document, name) for name in names} == {name: getattr(config, name) for name in names}


def test_user_configured_forwards_do_not_break_a_connection(hosts: Hosts, python: str, tmp_path: Path) -> None:
    host = hosts.all[0]
    options = tmp_path / "ssh_config"
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        options.write_text(
            f"{hosts.options_file.read_text()}LocalForward {taken} 127.0.0.1:1\nDynamicForward {taken}\n"
            f"RemoteForward {host.port} 127.0.0.1:1\nExitOnForwardFailure yes\n"
            f"ControlMaster auto\nControlPath {tmp_path}/own\nControlPersist yes\n"
        )
        here = f"tcp://127.0.0.1:{taken}"
        given = {"worker_scheduler_address": here, "object_storage_address": "tcp://10.0.0.1:2", "tunnel": True}
        for again in (False, True):
            with hosts.backend(str(host), ssh_python=python, ssh_options=("-F", str(options)), **given) as backend:
                backend.start(1)
                [unit] = until_listed(backend, in_state(UnitState.RUNNING, 1))
                document = document_of(host, unit.unit_id)
                port = int(document.scheduler_address.rpartition(":")[2])
                assert port != taken
                with socket.create_connection(("127.0.0.1", port)):
                    server.accept()[0].close()
                assert not (tmp_path / "own").exists()
                if again:
                    os.kill(host.client(), signal.SIGKILL)
                    until_listed(backend, lambda units: not alive(units))
                    until(lambda: _tried(backend), WAIT_SECONDS)
                    until_listed(backend, in_state(UnitState.RUNNING, 1))
    assert not until_gone(host)


def test_reports_a_host_that_forbids_forwards(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "hosts", 1)
    [host] = hosts.all
    host.start("AllowTcpForwarding no")
    try:
        with hosts.backend(tunnel=True, object_storage_address="tcp://10.0.0.1:2") as backend:
            backend.start(1)
            [unit] = until_listed(backend, in_state(UnitState.FAILED, 1))
            assert unit.reason == (
                f"{host}: remote port forwarding failed for listen port 0: "
                "allow AllowTcpForwarding in its sshd_config, or set tunnel = false"
            )
    finally:
        host.close()


def test_unreadable_hosts_files_are_refused_with_their_path(hosts: Hosts) -> None:
    path = hosts.directory / "wrong"
    for text, expected in (
        ("a slots=x\n", "host 'a slots=x': write host"),
        ("# none\n", "contains no hosts"),
        ("a\na\n", "twice"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=expected):
            SshBackend(hosts.config(f"@{path}"))
    with pytest.raises(UsageError, match="cannot read the hosts file"):
        SshBackend(hosts.config(f"@{hosts.directory}/none"))
