"""Every row of the table in its short form. Fails only on a gross loss to the standard library, confirmed once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rows import ROWS

ALL = Path(__file__).parents[2] / "benchmarks" / "all.py"


@pytest.mark.alone
@pytest.mark.parametrize("row", ROWS)
def test_row_is_not_grossly_worse_than_its_aim(row: str, tmp_path: Path) -> None:
    # Run from another directory, because the scripts must find their imports from anywhere.
    run = subprocess.run(
        [sys.executable, ALL, "--short", "--rows", row], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
