"""A scheduler and its standby as processes, with workers that know both addresses."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import Command
from tests.waiting import until, wait_for_file

LEASES = ("--worker-timeout-seconds", "10", "--client-timeout-seconds", "10")


class Pair:
    def __init__(self, directory: Path, *settings: str, security: Sequence[str] = (), **environment: str) -> None:
        """settings: of both schedulers. security: of all processes."""
        self.directory = directory
        self.first, _, _, self.second, _, _ = free_addresses(count=6)
        self.notes = directory / "notes"
        self.notes.mkdir()
        self._environment = environment
        self._running: list[Command] = []
        self._security = security
        (self.storage,) = self._command("object_storage_server", "tcp://127.0.0.1:0").addresses().values()
        self._settings = (*settings, *LEASES, "--object-storage-address", self.storage)
        self.a = self.scheduler(self.first)
        self.b = self.scheduler(self.second, "--standby-of", self.first)
        for name in "mn":
            options = ("--worker-manager-id", name, "--mode", "fixed", "--max-task-concurrency", "1")
            self._command("worker_manager", "baremetal_native", self.both, *options).addresses()

    @property
    def both(self) -> str:
        return f"{self.first},{self.second}"

    def scheduler(self, address: str, *settings: str) -> Command:
        state = str(self.directory / address[-5:])
        command = self._command("scheduler", address, "--state-directory", state, *self._settings, *settings)
        command.addresses()
        return command

    def _command(self, name: str, *arguments: str) -> Command:
        self._running.append(Command(name, (*arguments, *self._security), self._environment, self.directory))
        return self._running[-1]

    def starts(self) -> Counter[str]:
        return Counter(path.name.partition(".")[0] for path in self.notes.iterdir())

    def close(self) -> None:
        for each in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGCONT)
            each.stop()
            each.close()


@contextmanager
def running(directory: Path, *settings: str, security: Sequence[str] = (), **environment: str) -> Iterator[Pair]:
    """Yield a pair in step."""
    pair = Pair(directory, *settings, security=security, **environment)
    with contextlib.closing(pair):
        until_said(pair.b, "in step with")
        yield pair


def until_said(command: Command, text: str, times: int = 1) -> None:
    until(lambda: command.output().count(text) >= times)


def kill(command: Command) -> None:
    command.process.kill()
    command.process.wait()


def promote(address: str, *options: str) -> tuple[int, str]:
    """Return the exit code of `scaler promote` and its output."""
    arguments = [sys.executable, "-m", "scaler", "promote", address, *options]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def noted(notes: Path, name: str, go: Path | None = None) -> str:
    """Record a start, and return the name once the file exists."""
    (notes / f"{name}.{time.monotonic_ns()}").touch()
    if go is not None:
        wait_for_file(go)
    return name
