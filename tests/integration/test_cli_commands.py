"""The commands as users type them: their output and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scaler import __version__, cli
from scaler.cli import COMMANDS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SCALER_")}
    command = [sys.executable, "-m", "scaler.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)


def test_help_lists_every_key_with_its_default_and_meaning() -> None:
    text = " ".join(run("scaler_worker_manager", "baremetal_native", "-h").stdout.split())
    assert "-wtqs COUNT, --per-worker-task-queue-size COUNT Maximum number of tasks queued behind a worker's" in text
    assert "[default: 1000]" in text
    assert "CPUs minus 1, at least 1" in text


def test_scaler_help_lists_its_subcommands() -> None:
    listed = set(re.findall(r"^  scaler (\S+)  ", run("scaler", "--help").stdout, re.MULTILINE))
    assert listed == {name.removeprefix("scaler ") for name in cli.SUBCOMMANDS}


def test_every_command_reports_its_version() -> None:
    assert run("scheduler", "--version").stdout == f"scaler {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["scaler", "local", "-n", "many"], ["scaler_scheduler", "somewhere"], ["nonsense"]]
)
def test_usage_errors_are_one_line_with_exit_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_misspelled_question_is_not_mistaken_for_a_file() -> None:
    assert run("scaler", "explane", "0123", "tcp://127.0.0.1:1").stderr == (
        "scaler: there is no file 'explane'; did you mean 'scaler explain'?\n"
    )


def test_package_scripts_are_the_commands() -> None:
    scripts = (ROOT / "pyproject.toml").read_text()
    for name in COMMANDS:
        assert f'{name} = "scaler.cli:{name.removeprefix("scaler_")}"' in scripts
