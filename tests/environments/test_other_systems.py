"""The client's own tests, in processes that look like macOS or Windows, against a cluster on Linux.

The real systems are not tested. See `other_system.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.environments.other_system import CLUSTER, VARIABLE

ROOT = Path(__file__).parents[2]
SYSTEMS = ("darwin", "win32")
FILES = ("integration/test_client.py", "extensions/maps/test_maps.py")
NOT_THERE = "not shuts_down and not protected and not nested and not a_process_that_dies and not interrupted"
"""Tests of the cluster itself, and of signals and forks, which Windows lacks."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client that connects as from another machine: by address, with a key."""
    keys = KeysDirectory.create(tmp_path_factory.mktemp("keys") / "keys", "portable")
    credential = tmp_path_factory.mktemp("client") / "client.credentials"
    write_private(credential, keys.add("client", "client").to_text())
    screen = credential.with_name("monitor.credentials")
    write_private(screen, keys.add("screen", "monitor").to_text())
    with SchedulerClusterCombo(n_workers=2, credentials=str(keys.path)) as combo:
        yield {
            **os.environ,
            CLUSTER: combo.get_address(),
            "SCALER_CREDENTIALS": str(credential),
            "MONITOR": combo.get_monitor_address(),
            "MONITOR_CREDENTIALS": str(screen),
        }


def run(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("system", SYSTEMS)
def test_client_works_on_other_platforms(environment: dict[str, str], system: str, tmp_path: Path) -> None:
    options = (
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.environments.other_system",
        "-k",
        NOT_THERE,
        "--timeout-method=thread",
        "--timeout=120",
    )
    files = [f"tests/{name}" for name in FILES]
    done = run(
        *("-m", "pytest", *options, f"--basetemp={tmp_path / 'inner'}", *files),
        environment=environment | {VARIABLE: system, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("system", SYSTEMS)
def test_cluster_on_another_platform_is_refused_with_a_remedy(environment: dict[str, str], system: str) -> None:
    program = (
        "import os; from tests.environments.other_system import pretend; pretend(os.environ['OTHER_SYSTEM'])\n"
        "from scaler import Client\nClient()"
    )
    lacking = {name: value for name, value in environment.items() if not name.startswith("SCALER_")}
    done = run("-c", program, environment=lacking | {VARIABLE: system})
    assert "which requires Linux: give the address of one" in done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_scaler_top_works_on_other_platforms(environment: dict[str, str], system: str) -> None:
    program = (
        "import os; from tests.environments.other_system import pretend; pretend(os.environ['OTHER_SYSTEM'])\n"
        "from scaler.cli import run_command\n"
        "where = [os.environ['MONITOR'], '--credentials', os.environ['MONITOR_CREDENTIALS']]\n"
        "raise SystemExit(run_command('scaler_top', [*where, '--once']))"
    )
    done = run("-c", program, environment=environment | {VARIABLE: system})
    assert (done.returncode, done.stderr) == (0, "")
    assert "local" in done.stdout
