"""`scaler FILE` as a process, with one scheduler and one worker in the file."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

STOP_SECONDS = 12.0


STACK = """
[scheduler]
bind_address = "{address}"
{settings}
[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "here"
mode = "fixed"
max_task_concurrency = 1
"""
STORAGE = """
[object_storage_server]
bind_address = "{address}"
"""


def write_stack(path: Path, address: str, storage: str = "", **settings: object) -> Path:
    """Write the file. storage: address of a separate storage. settings: other settings of the scheduler."""
    values = {key: value if isinstance(value, int | float) else f'"{value}"' for key, value in settings.items()}
    lines = "".join(f"{key} = {value}\n" for key, value in values.items())
    stack = STACK.format(address=address, settings=lines)
    path.write_text(STORAGE.format(address=storage) + stack if storage else stack)
    return path


class Launcher:
    """A running `scaler FILE`."""

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        ready, said_by_launcher = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scaler.cli", "scaler", str(file)],
            env={**os.environ, "SCALER_READY_FD": str(said_by_launcher), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[said_by_launcher],
            start_new_session=True,
        )
        os.close(said_by_launcher)
        self._ready = os.fdopen(ready)

    def wait_ready(self) -> bool:
        readable, _, _ = select.select([self._ready], [], [], 30)
        assert readable
        return bool(self._ready.readline())

    def components(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: int = signal.SIGINT) -> tuple[int, list[str], list[str]]:
        """Send a signal, and return the exit code and the lines of stdout and stderr."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, list[str], list[str]]:
        output, errors = self.process.communicate(timeout=STOP_SECONDS)
        return self.process.returncode, output.splitlines(), errors.splitlines()

    def close(self) -> None:
        self._ready.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=STOP_SECONDS)


@contextmanager
def launched(file: Path, **environment: str) -> Iterator[Launcher]:
    launcher = Launcher(file, environment)
    try:
        yield launcher
    finally:
        launcher.close()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    assert not alive
