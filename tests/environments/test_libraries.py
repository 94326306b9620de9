"""Libraries built on the client run unmodified, each version from its own directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = Path(sys.prefix) / "libraries"
"""Where the Makefile, which lists their versions, installs them."""
PROGRAMS = Path(__file__).parent / "library_programs"

pytestmark = pytest.mark.timeout(180)  # clusters start and stop one after another

PARFUN = ["lists", "preloaded_arguments", "dataframes", "exceptions", "sessions", "nested", "remote", "pool"]
PARGRAPH = [
    "plain_graphs",
    "options",
    "functions",
    "several_results",
    "nested_graphs",
    "without_the_engine",
    "exceptions",
    "an_executor",
    "inside_a_task",
]


@pytest.mark.parametrize(
    ("library", "program", "checks"),
    [
        ("parfun", "parfun_program.py", PARFUN),
        ("opengris-parfun", "parfun_program.py", [*PARFUN, "worker_client"]),
        ("pargraph", "pargraph_program.py", PARGRAPH),
    ],
)
def test_third_party_library_runs_on_a_cluster(library: str, program: str, checks: list[str], tmp_path: Path) -> None:
    home = LIBRARIES / library
    assert home.is_dir(), f"{library} is not installed in {home}: run `make test`, which installs it there"
    result = subprocess.run(
        [sys.executable, str(PROGRAMS / program)],
        env={**os.environ, "PYTHONPATH": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    passed = [line for line in result.stdout.splitlines() if line in checks]  # between them, the cluster may log
    assert (result.returncode, passed) == (0, checks), result.stderr
