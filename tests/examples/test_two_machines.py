"""The page about two machines, tested with two network namespaces of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.examples.blocks import SCRIPTS, blocks_of, promised_output
from tests.hosts import Host, hosts, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}")

BLOCKS = blocks_of("docs/two-machines.md")
NETWORK = "10.77.0"
"""Prefix of the addresses in the page's blocks."""
SERVICES = ("scaler_scheduler", "scaler_cluster")
REVOKED_SECONDS = 2.0
SHOWN = "text"
"""Language of blocks that need another program, such as ssh."""


class Machine:
    """One of the two machines: a host whose shell finds Scaler's commands and the test's tools."""

    def __init__(self, host: Host, tools: Path) -> None:
        self.home = host.home
        self._host = host
        self._path = os.pathsep.join([str(tools), str(SCRIPTS), os.environ["PATH"]])

    def run(self, line: str) -> str:
        """Run a command, which must succeed, and return its output."""
        return self._host.run("bash", "-c", f"exec {line}", PATH=self._path)

    def start(self, line: str) -> None:
        """Start a service, wait for its readiness, and stop it with the network."""
        self._host.serve("bash", "-c", f"exec {line}", environment={"PATH": self._path})


def machines_of(everyone: Sequence[Host], tools: Path) -> dict[str, Machine]:
    """Return the machines by address, with an `scp` that copies between their home directories."""
    tools.mkdir()
    homes = {f"{host.address}:": str(host.home) for host in everyone}
    (tools / "scp").write_text(
        f"#!{sys.executable}\nimport shutil, sys\n*files, to = sys.argv[1:]\n"
        f"[shutil.copy2(file, {homes!r}[to]) for file in files if file != '-p']\n"
    )
    (tools / "scp").chmod(0o755)
    return {host.address: Machine(host, tools) for host in everyone}


@pytest.mark.timeout(150)
def test_guide_for_two_machines_works_as_written(tmp_path: Path) -> None:
    printed = []
    with hosts(2, NETWORK) as network:
        found = machines_of(network.hosts, tmp_path / "tools")
        for block in BLOCKS:
            if block.language == SHOWN:
                continue
            first, _, text = block.text.partition("\n")
            machine = found[first.removeprefix("# ")]
            if block.language == "toml":
                (machine.home / "cluster.toml").write_text(text)
                machine.start("scaler cluster.toml")
            elif block.language == "bash":
                for line in text.splitlines():
                    if line.startswith(SERVICES):
                        machine.start(line)
                    else:
                        machine.run(line)
            else:
                assert block.language == "python"
                (machine.home / "program.py").write_text(text)
                # A recently revoked key may still be admitted for up to REVOKED_SECONDS.
                until = time.monotonic() + REVOKED_SECONDS
                while True:
                    began = time.monotonic()
                    lines = machine.run(f"{sys.executable} program.py").splitlines()
                    if lines == promised_output(block) or began > until:
                        break
                printed.append((lines, promised_output(block)))
    assert [lines for lines, _ in printed] == [promised for _, promised in printed]
    assert len(printed) == 2
    assert network.leftovers == []
    assert [process.returncode for host in network.hosts for process in host.started if process.returncode] == []
