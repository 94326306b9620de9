"""The page about two machines, tried on two network namespaces of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.blocks import SCRIPTS, STOP_SECONDS, blocks_of, promised_output

BLOCKS = blocks_of("docs/two-machines.md")
MACHINES = {"10.77.0.1": f"first-{os.getpid()}", "10.77.0.2": f"second-{os.getpid()}"}
"""Network namespaces by the address in the page's blocks."""
SERVICES = ("scaler_scheduler", "scaler_cluster")
REVOKED_SECONDS = 2.0
SHOWN = "text"
"""The language of blocks that need another program, such as ssh."""
WIRES = ("sc77a", "sc77b")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def machines() -> Iterator[None]:
    with ExitStack() as stack:
        try:
            for name in MACHINES.values():
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("link", "add", WIRES[0], "type", "veth", "peer", "name", WIRES[1])
            for wire, (address, name) in zip(WIRES, MACHINES.items(), strict=True):
                ip("link", "set", wire, "netns", name)
                ip("-n", name, "address", "add", f"{address}/24", "dev", wire)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", wire, "up")
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this user cannot make network namespaces")
        yield


@dataclass
class Machine:
    """One of the two: its namespace, and the home directory in which its commands and programs run."""

    namespace: str
    home: Path
    tools: Path

    def command(self, line: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, "bash", "-c", f"exec {line}"]

    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SCALER_", "XDG_"))}
        path = os.pathsep.join([str(self.tools), str(SCRIPTS), os.environ["PATH"]])
        runtime = self.home / ".run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        # Both machines share the names of local listeners: each has a directory of its own for what runs there.
        return {**inherited, "HOME": str(self.home), "PATH": path, "XDG_RUNTIME_DIR": str(runtime)}

    def run(self, line: str) -> str:
        """Run a command to its end, and return what it printed. It must succeed."""
        done = subprocess.run(
            self.command(line),
            cwd=self.home,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, stack: ExitStack, line: str) -> None:
        """Start a service, and wait until it says that it is ready. It ends with the stack."""
        ready, told = os.pipe()
        stack.callback(os.close, ready)
        environment = {**self.environment(), "SCALER_READY_FD": str(told)}
        process = subprocess.Popen(self.command(line), cwd=self.home, env=environment, pass_fds=[told])
        os.close(told)

        def end() -> None:
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0

        stack.callback(end)
        assert os.read(ready, 65536), f"{line} has ended"


def machines_in(folder: Path) -> dict[str, Machine]:
    """Return both machines by address, with an `scp` that copies between their home directories."""
    tools = folder / "tools"
    tools.mkdir()
    found = {}
    for number, (address, namespace) in enumerate(MACHINES.items(), 1):
        home = folder / f"home{number}"
        home.mkdir()
        found[address] = Machine(namespace, home, tools)
    homes = {f"{address}:": str(each.home) for address, each in found.items()}
    (tools / "scp").write_text(
        f"#!{sys.executable}\nimport shutil, sys\n*files, to = sys.argv[1:]\n"
        f"[shutil.copy2(file, {homes!r}[to]) for file in files if file != '-p']\n"
    )
    (tools / "scp").chmod(0o755)
    return found


@pytest.mark.timeout(150)
def test_the_page_about_two_machines_works_as_written(machines: None, tmp_path: Path) -> None:
    printed = []
    found = machines_in(tmp_path)
    with ExitStack() as stack:
        for block in BLOCKS:
            if block.language == SHOWN:
                continue
            first, _, text = block.text.partition("\n")
            machine = found[first.removeprefix("# ")]
            if block.language == "toml":
                (machine.home / "cluster.toml").write_text(text)
                machine.start(stack, "scaler cluster.toml")
            elif block.language == "bash":
                for line in text.splitlines():
                    if line.startswith(SERVICES):
                        machine.start(stack, line)
                    else:
                        machine.run(line)
            else:
                assert block.language == "python"
                (machine.home / "program.py").write_text(text)
                # What was revoked just before may come in for up to REVOKED_SECONDS.
                until = time.monotonic() + REVOKED_SECONDS
                while True:
                    began = time.monotonic()
                    lines = machine.run(f"{sys.executable} program.py").splitlines()
                    if lines == promised_output(block) or began > until:
                        break
                printed.append((lines, promised_output(block)))
    assert [lines for lines, _ in printed] == [promised for _, promised in printed]
    assert len(printed) == 2


def test_the_guide_has_the_same_walk() -> None:
    page = [line for block in BLOCKS for line in block.text.splitlines()]
    blocks = [block for block in blocks_of("docs/guide.md") if block.text.startswith("# 10.77.0.")]
    assert len(blocks) >= 4
    assert [line for block in blocks for line in block.text.splitlines() if line not in page] == []
