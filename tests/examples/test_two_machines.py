"""The page about two machines, tried on two network namespaces of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.blocks import SCRIPTS, STOP_SECONDS, Block, blocks_of, promised_output

BLOCKS = blocks_of("docs/two-machines.md")
MACHINES = {"10.77.0.1": f"first-{os.getpid()}", "10.77.0.2": f"second-{os.getpid()}"}
"""Network namespaces by the address in the page's blocks."""
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


def on_machine(block: Block, *command: str | Path) -> list[str | Path]:
    """Return the command that runs another one on the machine that the block's first line names."""
    return ["ip", "netns", "exec", MACHINES[block.text.splitlines()[0].removeprefix("# ")], *command]


def test_the_page_about_two_machines_works_as_written(machines: None, tmp_path: Path) -> None:
    printed = []
    with ExitStack() as stack:
        for block in BLOCKS:
            if block.language == "toml":
                file = tmp_path / "cluster.toml"
                file.write_text(block.text)
                start(stack, on_machine(block, SCRIPTS / "scaler", file), tmp_path)
            elif block.language == "bash":
                (line,) = block.text.splitlines()[1:]
                name, *arguments = line.split()
                start(stack, on_machine(block, SCRIPTS / name, *arguments), tmp_path)
            elif block.language == "python":
                program = tmp_path / "program.py"
                program.write_text(block.text)
                run = subprocess.run(
                    on_machine(block, sys.executable, program), capture_output=True, text=True, timeout=50, check=False
                )
                assert run.returncode == 0, run.stderr
                printed.append((run.stdout.splitlines(), promised_output(block)))
    assert [lines for lines, _ in printed] == [promised for _, promised in printed]
    assert len(printed) == 1


def start(stack: ExitStack, command: list[str | Path], directory: Path) -> None:
    """Start a service, and wait until it says that it is ready. It ends with the stack."""
    ready, told = os.pipe()
    stack.callback(os.close, ready)
    environment = {**os.environ, "SCALER_READY_FD": str(told)}
    process = subprocess.Popen(command, cwd=directory, env=environment, pass_fds=[told])
    os.close(told)

    def end() -> None:
        process.terminate()
        assert process.wait(STOP_SECONDS) == 0

    stack.callback(end)
    assert os.read(ready, 65536), f"{command} has ended"
