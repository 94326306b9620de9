"""The security page: its `scaler keys` sessions match the real output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.examples.blocks import SCRIPTS, blocks_of

HOME = "/home/lab"
"""The home directory on the page."""


def steps() -> list[tuple[str, str]]:
    """Return the lines after a `$`, each with its output on the page."""
    text = "".join(block.text for block in blocks_of("docs/security.md") if block.text.startswith("$"))
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def without_times(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "TIME", text)


def test_documented_commands_print_the_documented_output(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SCALER_", "XDG_"))}
    environment |= {"HOME": str(home)}
    compared = 0
    for command, shown in steps():
        name, *arguments = shlex.split(command)
        if [name, *arguments[:1]] == ["scaler_scheduler", "tcp://10.77.0.1:8516"]:
            continue  # the page about two machines runs it
        if arguments == ["keys", "init"]:
            arguments += ["--cluster", "node1"]  # the name of the page's host
        if name == "scaler_cluster":
            (home / "box.credentials").chmod(0o644)
        done = subprocess.run(
            [SCRIPTS / name, *arguments],
            cwd=home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=False,
        )
        if shown:
            assert without_times(done.stdout.replace(str(home), HOME)) == without_times(shown), command
            compared += 1
        else:
            assert done.returncode == 0, done.stdout
    assert compared == 3
