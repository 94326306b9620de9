"""Tab completion in the shells, with the scripts printed by `scaler completion`."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.cli import COMMANDS, SUBCOMMANDS
from scaler.cli.completion import SHELLS, script, words_by_place
from scaler.config.setting import describe
from scaler.config.worker_managers import settings_model
from scaler.plugins import WORKER_MANAGERS


@pytest.fixture(scope="module")
def bash_script() -> str:
    command = [sys.executable, "-m", "scaler.cli", "scaler", "completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cloud.toml", "my cluster.toml", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    return tmp_path


def bash(bash_script: str, program: str, folder: Path) -> list[str]:
    # Longer than an argument may be.
    command = ["bash", "--norc", "--noprofile", "-u", "-s"]
    given = f"{bash_script}\n{program}\n"
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=folder, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def completed(bash_script: str, line: str, folder: Path) -> list[str]:
    """Return the completions of Tab at the end of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    program = (
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _scaler; printf '%s\\n' \"${{COMPREPLY[@]-}}\""
    )
    return sorted(filter(None, bash(bash_script, program, folder)))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("scaler ex", ["explain"]),
        ("scaler c", ["cloud.toml", "completion", "costs"]),
        ("scaler m", ["more", "my cluster.toml"]),
        ("scaler n", []),  # notes.txt is not a settings file
        ("/usr/bin/scaler init a", ["aws_ec2", "aws_hpc", "aws_raw_ecs"]),
        ("scaler init aws_hpc s", ["slurm", "ssh", "symphony"]),
        ("scaler init aws_hpc --out", ["--output"]),
        ("scaler init -o n", ["notes.txt"]),
        ("scaler completion ", ["--help", "--version", "-h", "bash", "fish", "zsh"]),
        ("scaler trace --sec", ["--seconds"]),
        ("scaler_scheduler --event-loop ", ["builtin", "uvloop"]),
        ("scaler_scheduler -el u", ["uvloop"]),
        ("scaler_scheduler tcp://127.0.0.1:1 --prot", ["--protected"]),
        ("scaler_scheduler --bind", ["--bind-address"]),
        ("scaler_ui --web-port ", []),
        ("scaler_scheduler -c ", ["cloud.toml", "more", "my cluster.toml"]),
        ("scaler_scheduler -c cloud.toml --logging-l", ["--logging-level"]),
        ("scaler_scheduler -lcf n", ["notes.txt"]),
        ("scaler_worker_manager b", ["baremetal_native"]),
        ("scaler_worker_manager aws_hpc s", ["setup", "show"]),
        ("scaler_worker_manager aws_hpc setup --dry", ["--dry-run"]),
        ("scaler_worker_manager aws_raw_ecs --ecs-task-c", ["--ecs-task-cpu"]),
        ("scaler_worker_manager baremetal_native --mode ", ["dynamic", "fixed"]),
        ("scaler_top --o", ["--once"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], bash_script: str, folder: Path) -> None:
    assert completed(bash_script, line, folder) == offered


def test_bash_completes_every_command(bash_script: str, folder: Path) -> None:
    for command in COMMANDS:
        assert bash(bash_script, f"complete -p {command}", folder) == [f"complete -o filenames -F _scaler {command}"]


def test_every_command_type_and_setting_can_be_completed() -> None:
    words = words_by_place()
    assert words.keys() >= {*COMMANDS, *SUBCOMMANDS}
    for kind in WORKER_MANAGERS.names():
        keys = {"--" + key.replace("_", "-") for key in describe(settings_model(kind))} - {"--type"}
        assert keys <= {*words[f"scaler_worker_manager {kind}"]}


def test_scripts_of_all_shells_have_the_same_words() -> None:
    for shell in SHELLS:
        text = script(shell)
        assert all(shlex.quote(place) in text for place in words_by_place())
        assert ("bashcompinit" in text.partition("_scaler_words")[0].replace("by bashcompinit", "")) == (shell == "zsh")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("scaler in", ["init"]),
        ("scaler_worker_manager bare", ["baremetal_native"]),
        ("scaler_scheduler --event-loop ", ["builtin", "uvloop"]),
    ],
)
def test_fish_completes(line: str, offered: list[str], folder: Path) -> None:
    fish = shutil.which("fish") or pytest.skip("fish is not installed")
    program = f"{script('fish')}\ncomplete -C {shlex.quote(line)}\n"
    command = [fish, "--no-config"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, cwd=folder, check=True)
    assert sorted(each.partition("\t")[0] for each in done.stdout.split("\n") if each) == offered


@pytest.mark.parametrize(
    ("line", "completed"), [("scaler in", "scaler init"), ("scaler_top --on", "scaler_top --once")]
)
def test_zsh_completes(line: str, completed: str, folder: Path) -> None:
    zsh = shutil.which("zsh") or pytest.skip("zsh is not installed")
    (folder / "script").write_text(script("zsh"))
    own, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "ZDOTDIR": str(folder), "PS1": "ready> "}
    with subprocess.Popen(
        [zsh, "-f"], stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment
    ) as shell:
        os.close(terminal)
        os.write(own, b"source ./script; echo loa''ded\n")
        read_until(own, "loaded")
        os.write(own, line.encode() + b"\t")
        read_until(own, completed)
        shell.kill()
    os.close(own)


def read_until(terminal: int, text: str) -> None:
    """Read terminal output until it contains this text; the test's time limit ends a vain wait."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 4096).decode()


def test_rejects_an_unknown_shell() -> None:
    for arguments in ([], ["csh"]):
        command = [sys.executable, "-m", "scaler.cli", "scaler", "completion", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        expected = "scaler completion: give one of the shells: scaler completion bash|zsh|fish\n"
        assert (done.returncode, done.stderr) == (2, expected)
