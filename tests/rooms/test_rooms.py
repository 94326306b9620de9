"""Each extension can be deleted: everything else works, and its own tests pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.plugins import EXTENSIONS

ROOT = Path(__file__).parents[2]
ROOMS = sorted(EXTENSIONS.built_in)


def delete(room: str, copy: Path) -> None:
    """Delete the folder of an extension, its line in the table, and its tests."""
    for folder in ("scaler", "tests"):
        shutil.rmtree(copy / folder / "extensions" / room)
    table = copy / "scaler" / "plugins.py"
    text, lines = re.subn(rf'"{room}": "scaler\.extensions\.{room}:EXTENSION",?\s*', "", table.read_text())
    assert lines == 1, f"{room} has {lines} lines in the table"
    table.write_text(text)


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
def test_everything_else_works_without_it(rooms: list[str], tmp_path: Path) -> None:
    for folder in ("scaler", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder
        )  # with byte code, which takes longer to create than everything else
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room in rooms:
        delete(room, tmp_path)
    found = run(tmp_path, "-c", "import scaler; print(scaler.__file__)")
    assert found.startswith(str(tmp_path))
    assert json.loads(run(tmp_path, "tests/rooms/program.py"))["workers"]
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base", "tests/scenarios")
