"""The backend of docs/backends.md as a separate package: it conforms, and its workers run tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from tests.examples.blocks import blocks_of
from tests.integration.launcher_rig import launched

MODULE, PROJECT, SECTION, SUITE = (block.text for block in blocks_of("docs/backends.md"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Install the package into a directory without pip: a module and its metadata."""
    project = tomllib.loads(PROJECT)
    name, version = project["project"]["name"], project["project"]["version"]
    [module] = project["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{module}.py").write_text(MODULE)
    info = tmp_path / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["project"]["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(Path.cwd())])}


def test_passes_the_conformance_suite(package: Path) -> None:
    (package / "test_conformance.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "test_conformance.py")]
    ran = subprocess.run(
        command, cwd=package, env=environment(package), capture_output=True, text=True, timeout=50, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "7 passed" in ran.stdout


def test_flags_and_help_are_derived_from_the_settings(package: Path) -> None:
    command = [sys.executable, "-m", "scaler.cli", "scaler_worker_manager", "processes"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        made = [*command, *arguments]
        return subprocess.run(made, env=environment(package), capture_output=True, text=True, timeout=30, check=False)

    assert "--niceness NUMBER" in run("-h").stdout
    refused = run("tcp://127.0.0.1:1", "-wmi", "m", "--niceness", "20")
    assert refused.returncode == 2
    assert "niceness" in refused.stderr
    assert "there is nothing to set up" in run("setup").stderr


def test_workers_of_the_example_run_tasks_and_stop_with_the_cluster(package: Path) -> None:
    ports = ReservedPorts(2)
    file = package / "stack.toml"
    file.write_text(f'[scheduler]\nbind_address = "{ports.address()}"\n\n{SECTION}')
    with launched(file, **environment(package)) as launcher:
        assert launcher.wait_ready()
        with Client(ports.address()) as client:
            assert client.submit(os.nice, 0).result(timeout=30) == os.nice(0) + 5
            assert list(client.map(abs, range(-20, 0))) == list(range(20, 0, -1))
        code, _, errors = launcher.stop()
    ports.release()
    assert code == 0, errors
