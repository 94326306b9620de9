"""Each extension, worker manager type, and policy can be deleted: everything else works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.plugins import EXTENSIONS, POLICIES, WORKER_MANAGERS, extensions

ROOT = Path(__file__).parents[2]
ROOMS = sorted(EXTENSIONS.built_in)
MANAGERS = sorted({*WORKER_MANAGERS.built_in} - {"baremetal_native"})  # which starts the workers of a local cluster
USED_BY = {"aws_ec2": ["orb_aws_ec2"]}


def delete(name: str, package: str, copy: Path) -> None:
    """Delete the folder of an extension or manager type in this package, its name in the table, and its tests."""
    for folder in ("scaler", "tests"):
        shutil.rmtree(copy / folder / package / name, ignore_errors=folder == "tests")
    delete_entry(rf'("scaler\.{package}\.{{}}:[^)]*?)\b{name}\b', copy)


def delete_entry(pattern: str, copy: Path) -> None:
    table = copy / "scaler" / "plugins.py"
    text, found = re.subn(pattern, r"\1", table.read_text())
    assert found == 1, f"{pattern} has {found} entries in the table"
    table.write_text(text)


def copied(to: Path) -> Path:
    for folder in ("scaler", "tests"):  # with byte code, which takes longer to create than everything else
        shutil.copytree(ROOT / folder, to / folder)
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def run(copy: Path, *arguments: str) -> str:
    """Run Python in the copy; return its output."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rooms", [[each] for each in ROOMS] + [ROOMS], ids=[*ROOMS, "all"])
def test_everything_else_works_without_an_extension(rooms: list[str], tmp_path: Path) -> None:
    copied(tmp_path)
    users = {each.name for each in extensions() if {*each.requires} & {*rooms}}
    for room in users.union(rooms):
        delete(room, "extensions", tmp_path)
    found = run(tmp_path, "-c", "import scaler; print(scaler.__file__)")
    assert found.startswith(str(tmp_path))
    assert json.loads(run(tmp_path, "tests/rooms/program.py"))["workers"]
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base", "tests/scenarios")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("managers", [[each] for each in MANAGERS] + [MANAGERS], ids=[*MANAGERS, "all"])
def test_clusters_work_without_the_manager_type(managers: list[str], tmp_path: Path) -> None:
    copied(tmp_path)
    for name in {*managers, *(user for each in managers for user in USED_BY.get(each, []))}:
        delete(name, "worker_manager", tmp_path)
    assert json.loads(run(tmp_path, "tests/rooms/program.py"))["workers"]
    command = "from scaler.cli import run_command; run_command('scaler_worker_manager', ['-h'])"
    offered = re.findall(r"\w+", run(tmp_path, "-c", command))
    assert not {*managers} & {*offered}
    assert "baremetal_native" in offered


@pytest.mark.timeout(180)
@pytest.mark.parametrize("policy", sorted(POLICIES.built_in))
def test_clusters_work_without_the_policy(policy: str, tmp_path: Path) -> None:
    copied(tmp_path)
    module = POLICIES.built_in[policy].partition(":")[0]
    (tmp_path / module.replace(".", "/")).with_suffix(".py").unlink()
    delete_entry(rf'()"{policy}": "{re.escape(module)}:\w+",?\s*', tmp_path)
    other = next(name for name in POLICIES.built_in if name not in (policy, "waterfall_v1"))  # which needs managers
    assert json.loads(run(tmp_path, "tests/rooms/program.py", other))["workers"]
