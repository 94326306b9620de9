"""Runs programs in children of a warm interpreter that has imported the client.

Usage: `python -W error -m tests.examples.programs`

A program with a cluster of the plain kind gets a running one, because most of its time would go to starting processes.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Self

import scaler
from scaler import Client  # noqa: F401 (imported before the fork)

Result = subprocess.CompletedProcess[str]


class RunningCluster:
    """Replaces a `SchedulerClusterCombo(n_workers=N)`."""

    addresses: dict[int, str] = {}  # noqa: RUF012 (set once, before the program)

    def __init__(self, n_workers: int) -> None:
        self._address = self.addresses[n_workers]

    def get_address(self) -> str:
        return self._address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Programs:
    """The warm interpreter. addresses: of running clusters, by number of workers."""

    def __init__(self, directory: Path, addresses: dict[int, str], environment: dict[str, str]) -> None:
        self._outputs = directory / "stdout", directory / "stderr"
        command = [sys.executable, "-W", "error", "-m", "tests.examples.programs", *map(str, self._outputs)]
        self._process = subprocess.Popen(
            [*command, json.dumps(list(addresses.items()))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def run(self, program: Path, directory: Path) -> Result:
        """Run a program to completion. directory: where it runs."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([str(program), str(directory)]) + "\n")
        stdin.flush()
        code = int(stdout.readline())
        return subprocess.CompletedProcess(program, code, *(path.read_text() for path in self._outputs))

    def close(self) -> None:
        self._process.communicate()


def serve(outputs: list[str], addresses: dict[int, str]) -> None:
    """Run each program named on standard input in a child, and write its exit code."""
    for line in sys.stdin:
        program, directory = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(program, directory, outputs, addresses)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(program: str, directory: str, outputs: list[str], addresses: dict[int, str]) -> None:
    for descriptor, path in ((0, os.devnull), (1, outputs[0]), (2, outputs[1])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(directory)
    sys.argv, sys.path[0] = [program], str(Path(program).parent)
    if addresses:
        RunningCluster.addresses = addresses
        vars(scaler)["SchedulerClusterCombo"] = RunningCluster
    runpy.run_path(program, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1:3], dict(json.loads(sys.argv[3])))
