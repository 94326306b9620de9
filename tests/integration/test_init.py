"""`scaler init` writes working files for every installed worker manager."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.config.clusters import LauncherConfig
from scaler.config.commands import launcher_config
from scaler.config.init import ADDRESS, file_text
from scaler.config.load import read_file
from scaler.plugins import WORKER_MANAGERS
from tests.short_forms import short_form

REQUIRED = {
    "aws_hpc": {"job_queue": '"queue"', "job_definition": '"job"', "s3_bucket": '"our-bucket"'},
    "aws_ec2": {"ec2_image": '"ami-0123456789abcdef0"'},
    "aws_raw_ecs": {"ecs_subnets": '["subnet-1"]'},
    "ssh": {"hosts": '["ann@far.example:2222"]'},
    "orb_aws_ec2": {"orb_template": '"scaler"'},
    "slurm": {"slurm_time_minutes": "60"},
    "symphony": {"service_name": '"Service"'},
}
TYPES = sorted(WORKER_MANAGERS.built_in)


def scaler(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "scaler.cli", "scaler", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def filled_in(text: str, kinds: list[str]) -> str:
    for kind in kinds:
        for key, value in REQUIRED.get(kind, {}).items():
            text, count = re.subn(rf'^{key} = (""|\[\])$', f"{key} = {value}", text, flags=re.MULTILINE)
            assert count == 1, key
    return text


def load(text: str, folder: Path) -> LauncherConfig:
    path = folder / "written.toml"
    path.write_text(text)
    return launcher_config(read_file(str(path)), {})


def test_file_starts_and_runs_tasks(tmp_path: Path) -> None:
    assert scaler("init", cwd=tmp_path) == (0, "wrote scaler.toml: start it with scaler scaler.toml\n", "")
    path = tmp_path / "scaler.toml"
    ports = ReservedPorts(3)
    text = path.read_text().replace(ADDRESS, ports.address())
    path.write_text(text.replace("#web_port = 50001", "web_port = 0"))
    command = [sys.executable, "-m", "scaler.cli", "scaler", "scaler.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            with Client(ports.address()) as client:
                assert client.submit(abs, -1).result(20) == 1
        finally:
            launcher.send_signal(signal.SIGINT)
        printed, _ = launcher.communicate(timeout=20)
    ports.release()
    assert (launcher.returncode, "web page http://127.0.0.1:" in printed) == (0, True)


@pytest.mark.parametrize("kind", short_form([*TYPES], 3))
def test_file_loads_once_its_required_keys_are_set(kind: str, tmp_path: Path) -> None:
    text = file_text([kind])
    [table] = tomllib.loads(text)["worker_manager"]
    assert {key for key, value in table.items() if not value} == REQUIRED.get(kind, {}).keys()
    for key, value in REQUIRED.get(kind, {}).items():
        with pytest.raises(ValueError, match=rf"written.toml, \[\[worker_manager\]\]: {key} = "):
            load(
                filled_in(text, [kind]).replace(f"{key} = {value}", f"{key} = " + ("[]" if "[" in value else '""')),
                tmp_path,
            )
    [manager] = load(filled_in(text, [kind]), tmp_path).worker_managers
    assert (manager.type, manager.worker_manager_id) == (kind, kind)


def test_does_not_overwrite_an_existing_file_but_accepts_stdout(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    code, _, errors = scaler("init", "-o", "mine.toml", cwd=tmp_path)
    assert (code, errors) == (2, "scaler init: 'mine.toml' already exists: choose another file with --output\n")
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert scaler("init", "symphony", "--output", "-", cwd=tmp_path) == (0, file_text(["symphony"]), "")
    code, _, errors = scaler("init", "aws_hcp", cwd=tmp_path)
    assert (code, errors.endswith("is installed; did you mean 'aws_hpc'?\n")) == (2, True)
    code, _, errors = scaler("init", "-o", "no/such/folder.toml", cwd=tmp_path)
    assert (code, errors) == (2, "scaler init: cannot write 'no/such/folder.toml': No such file or directory\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_type_of_another_package_has_its_own_keys_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thermostat.py").write_text(
        textwrap.dedent(
            '''
            from dataclasses import dataclass
            from typing import Annotated
            from scaler.config.setting import Setting
            from scaler.config.values import Name
            from scaler.config.worker_managers import WorkerManagerConfig
            from scaler.plugins import WorkerManagerType

            TYPE = WorkerManagerType(backend="thermostat:none", settings="thermostat:ThermostatConfig")

            @dataclass(frozen=True, kw_only=True)
            class ThermostatConfig(WorkerManagerConfig):
                """Worker manager thermostat: workers in the cellar."""

                room: Annotated[Name, Setting(metavar="ROOM")]
                """Where it is cold."""
                degrees: int = 21
            '''
        )
    )
    (tmp_path / "thermostat-1.dist-info").mkdir()
    (tmp_path / "thermostat-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: thermostat\nVersion: 1\n")
    (tmp_path / "thermostat-1.dist-info/entry_points.txt").write_text(
        "[scaler.worker_managers]\nthermostat = thermostat:TYPE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = file_text(["thermostat"])
    assert "# Worker manager thermostat: workers in the cellar.\n[[worker_manager]]" in text
    assert '# Required. Where it is cold.\nroom = ""\n' in text
    assert "\n#degrees = 21\n" in text
    assert load(text.replace('room = ""', 'room = "42"'), tmp_path).worker_managers[0].type == "thermostat"
