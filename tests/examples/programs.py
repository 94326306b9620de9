"""Runs programs in children of a process that has imported Scaler, which takes longer than most of the programs.

`-m tests.examples.programs` reads a JSON line for each program from its standard input, and forks.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 50.0


class Programs:
    """Starts programs of this run of the tests, from any thread."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.examples.programs"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._running: dict[str, Future[int]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(SECONDS)
        self._process.wait(SECONDS)

    def run(self, program: Path, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a directory, with these variables beside those of the tests."""
        assert self._process.stdin is not None
        ended: Future[int] = Future()
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder, "stdout"), Path(folder, "stderr")
            request = [str(program), str(directory), str(output), str(errors), environment]
            with self._lock:
                self._running[str(output)] = ended
                print(json.dumps(request), file=self._process.stdin, flush=True)
            code = ended.result(SECONDS)
            return subprocess.CompletedProcess(str(program), code, output.read_text(), errors.read_text())

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            output, code = json.loads(line)
            self._running.pop(output).set_result(code)


def main() -> str | None:
    """Fork for each request. Return the path of the program, in a child that is to run it."""
    from scaler import Client  # noqa: F401, PLC0415 (children have it imported)

    for line in sys.stdin:
        program, directory, output, errors, environment = json.loads(line)
        if not os.fork():
            if child := os.fork():
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                os.write(1, f"{json.dumps([output, code])}\n".encode())
                os._exit(0)
            become(program, directory, output, errors, environment)
            return str(program)
    return None


def become(program: str, directory: str, output: str, errors: str, environment: Mapping[str, str]) -> None:
    """Make this process look like one that was started with a program."""
    for number, path in enumerate((os.devnull, output, errors)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the old one has read what comes for others)
    os.chdir(directory)
    os.environ.update(environment)
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)


if __name__ == "__main__" and (path := main()):
    runpy.run_path(path, run_name="__main__")
