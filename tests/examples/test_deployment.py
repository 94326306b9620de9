"""The deployment page: systemd accepts its units, and the commands of units and containers start."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import yaml

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.examples.blocks import SCRIPTS, STOP_SECONDS, Services, blocks_of
from tests.waiting import until

BLOCKS = blocks_of("docs/deployment.md")
UNITS = {Path(block.text.splitlines()[0]).name: block.text for block in BLOCKS if block.language == "ini"}
(COMPOSE,) = (yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml")
INSTALLED = "/opt/scaler/bin/"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        (tmp_path / name).write_text(text.replace(INSTALLED, f"{SCRIPTS}/"))
    files = [tmp_path / name for name in UNITS]
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=30, check=False
    )
    # Without a running systemd, it also complains about units of the machine itself.
    about_ours = [line for line in found.stderr.splitlines() if any(name in line for name in UNITS)]
    assert about_ours == []


def commands_of_units() -> list[str]:
    lines = [line for text in UNITS.values() for line in text.splitlines() if line.startswith("ExecStart=")]
    return [line.removeprefix(f"ExecStart={INSTALLED}").replace("%l", "rack7") for line in lines]


def commands_of_containers() -> list[str]:
    return [service["command"] for service in COMPOSE["services"].values()]


def on_this_machine(command: str, ports: ReservedPorts) -> str:
    """Return the command with free ports of this machine, and one worker."""
    for host in ("10.77.0.1", "0.0.0.0", "scheduler"):
        for number in range(3):
            command = command.replace(f"tcp://{host}:{8516 + number}", ports.address(number))
    command = command.replace("--web-host 0.0.0.0", "").replace("-n 8", "-n 1").replace("-n 4", "-n 1")
    return f"{command} --port 0" if command.startswith("scaler_ui") else command


def with_keys(command: str, folder: Path, keys: KeysDirectory) -> str:
    """Return the command with a keys folder in place of the page's."""
    before, flag, after = command.partition("--credentials ")
    assert flag, f"without keys, this does not start on other machines: {command}"
    file = Path(after.split()[0])
    own = folder / file.name
    if file.suffix == ".credentials":
        role = "monitor" if command.startswith("scaler_ui") else "manager"
        write_private(own, keys.add(file.stem, role).to_text())
    return f"{before}{flag}{after.replace(str(file), str(own))}"


@pytest.mark.parametrize("commands", [commands_of_units(), commands_of_containers()], ids=["units", "containers"])
def test_commands_start_and_exit_in_time(commands: list[str], tmp_path: Path) -> None:
    ports = ReservedPorts(4)
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    try:
        with Services(tmp_path) as services:
            for command in commands:
                services.start(shlex.split(with_keys(on_this_machine(command, ports), tmp_path, keys)))
    finally:
        ports.release()


class Unit:
    """A unit under systemd: its command, and the stop of all processes of its control group."""

    def __init__(self, text: str) -> None:
        section = configparser.ConfigParser(interpolation=None, strict=False)
        section.optionxform = str  # type: ignore[assignment,method-assign]
        section.read_string(text)
        self._keys = section["Service"]
        self.command = self._keys["ExecStart"].removeprefix(INSTALLED).replace("%l", "rack7")

    def stop(self, main: subprocess.Popen[bytes], numbers: Sequence[int]) -> int:
        """Stop it like `systemctl stop`, with these signals; return the exit code. All processes must have exited."""
        assert self._keys.get("KillMode", "control-group") == "control-group"
        process = psutil.Process(main.pid)
        group = [process, *process.children(recursive=True)]
        for number in numbers:
            for process in reversed(group):  # systemd keeps no order: the last children may get the signal first
                process.send_signal(number)
        code = main.wait(float(self._keys["TimeoutStopSec"]))
        assert not psutil.wait_procs(group, STOP_SECONDS)[1]
        return code


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGHUP]], ids=["stop", "SendSIGHUP"])
def test_stopping_a_unit_gives_running_tasks_the_documented_grace(numbers: list[int], tmp_path: Path) -> None:
    ports = ReservedPorts(4)
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    scheduler, workers = (Unit(UNITS[f"scaler-{name}.service"]) for name in ("scheduler", "workers"))
    me = tmp_path / "me.credentials"
    write_private(me, keys.add("me", "client").to_text())
    try:
        with Services(tmp_path) as services:
            services.start(shlex.split(with_keys(on_this_machine(scheduler.command, ports), tmp_path, keys)))
            command = shlex.split(with_keys(on_this_machine(workers.command, ports), tmp_path, keys))
            unit = subprocess.Popen([SCRIPTS / command[0], *command[1:]], cwd=tmp_path, start_new_session=True)
            with Client(ports.address(), credentials=str(me)) as client:
                task = client.options(retries=0).submit(time.sleep, 1.5)
                until(task.running)
                assert workers.stop(unit, numbers) == 0
                assert task.exception() is None
    finally:
        ports.release()


def test_health_check_detects_a_scheduler_that_does_not_listen(tmp_path: Path) -> None:
    ports = ReservedPorts(3)
    _, *check = COMPOSE["services"]["scheduler"]["healthcheck"]["test"]
    address = ports.address()
    port = address.rpartition(":")[2]
    command = [part.replace("8516", port) for part in check]
    try:
        with Services(tmp_path) as services:
            services.start(["scaler_scheduler", address])
            assert healthy(command)
        assert not healthy(command)
    finally:
        ports.release()


def healthy(command: list[str]) -> bool:
    found = subprocess.run(command, capture_output=True, timeout=STOP_SECONDS, check=False, env=dict(os.environ))
    return found.returncode == 0
