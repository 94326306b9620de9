"""The containers of the emulated services, as processes on this machine. Linux only.

A container's command runs in its own session, in an empty folder, with a clean environment in which `python` is this
interpreter with all installed packages. When the first process ends, the rest of its process group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import scaler
from scaler.errors import ScalerError
from scaler.processes import end_processes_with

OUTPUT_BYTES = 256 * 1024
"""Maximum size of a container's output. Only the end is kept."""


class StartError(ScalerError):
    """A container could not start. The text gives the reason."""


class Container:
    """A running or ended container. Thread-safe."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], log: Path, on_exit: Callable[[Container], None]
    ) -> None:
        """log: file of its stdout and stderr. on_exit: called once, from a separate thread."""
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        self.watcher = threading.Thread(target=self._watch, args=(on_exit,), name=f"container {name}", daemon=True)
        self.watcher.start()

    def poll(self) -> int | None:
        """Return the exit code, or None while running. After a signal, the code is 128 plus the signal."""
        return self._exit_code

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the exit and for `on_exit`, and return the exit code. Raises TimeoutError."""
        self.watcher.join(timeout_seconds)
        if self._exit_code is None:
            raise TimeoutError(f"container {self.name} is still running after {timeout_seconds:g} s")
        return self._exit_code

    def terminate(self) -> None:
        """Send SIGTERM to the first process, as a service does to stop a container."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes of the container's group."""
        with self._lock:
            if self._exit_code is None:  # not waited for yet, so the pid is not reused
                os.killpg(self.pid, signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the first process unless it has ended."""
        with self._lock:
            if self._exit_code is None:
                os.kill(self.pid, number)

    def output(self) -> str:
        """Return the end of stdout and stderr, at most OUTPUT_BYTES."""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            return file.read().decode("utf-8", "replace")

    def _watch(self, on_exit: Callable[[Container], None]) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.kill()  # children of the first process
        with self._lock:
            returncode = self._process.wait()
            self._exit_code = returncode if returncode >= 0 else 128 - returncode
        on_exit(self)


class Containers:
    """Starts containers, detects their ends at once, and kills all of them in `close`, which must be called.

    The containers are also killed if this process dies.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """environment: variables of all containers in addition to PATH, HOME, and the like."""
        self._mark = uuid.uuid4().hex
        self._environment = dict(environment or {})
        self._host: ContainerHost | None = None
        self._lock = threading.Lock()
        self._running: dict[int, Container] = {}
        self._closed = False

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        name: str,
        on_exit: Callable[[Container], None] = lambda _: None,
    ) -> Container:
        """Start a container's command. on_exit: called once from another thread after the end.

        Raises StartError if the program does not exist, or after `close`.
        """
        words = [sys.executable if command[:1] in (["python"], ["python3"]) else command[0], *command[1:]]

        def ended(container: Container) -> None:
            with self._lock:
                del self._running[container.pid]
            on_exit(container)

        with self._lock:
            if self._closed:
                raise StartError(f"container {name} cannot start: the emulator has been closed")
            try:
                if self._host is None:
                    self._host = ContainerHost(self._mark)
                folder = self._host.new_folder()
                log = folder.with_suffix(".log")
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        words,
                        env={**self._host.environment, **self._environment, **environment, MARK_VARIABLE: self._mark},
                        cwd=folder,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
            except (OSError, ValueError) as error:
                raise StartError(f"container {name} cannot start: {error}") from error
            container = self._running[process.pid] = Container(name, process, log, ended)
            return container

    def running(self) -> list[Container]:
        with self._lock:
            return list(self._running.values())

    def close(self) -> None:
        """Kill all containers and wait for their ends. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for container in self.running():
            container.kill()
            container.watcher.join()
        end_processes_with([f"{MARK_VARIABLE}={self._mark}"])  # processes that have left their process groups
        if self._host is not None:
            self._host.close()


MARK_VARIABLE = "SCALER_EMULATED_CONTAINERS"
"""Environment variable whose value identifies all processes of a `Containers`, so that `close` finds them."""

_REAPER = """
import shutil, sys
from scaler.processes import end_processes_with
sys.stdin.read()
end_processes_with([sys.argv[1]])
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class ContainerHost:
    """The containers' folder, the programs of their image, and a process that kills them if this process dies."""

    def __init__(self, mark: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scaler-containers-")
        home = Path(self._folder.name)
        sources = str(Path(scaler.__file__).parent.parent)
        self.environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": f"{_put_programs(home / 'bin')}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": sources,
            "PYTHONUNBUFFERED": "1",
        }
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", _REAPER, f"{MARK_VARIABLE}={mark}", str(home)],
            stdin=subprocess.PIPE,
            env={"PYTHONPATH": sources},
            start_new_session=True,
        )

    def new_folder(self) -> Path:
        folder = Path(self._folder.name, uuid.uuid4().hex)
        folder.mkdir()
        return folder

    def close(self) -> None:
        self._reaper.kill()
        self._reaper.communicate()
        self._folder.cleanup()


def _put_programs(folder: Path) -> Path:
    """Write the programs of an image: Python with scaler, and a `shutdown` that does not shut down the machine."""
    folder.mkdir()
    (folder / "shutdown").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    (folder / "shutdown").chmod(0o755)
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name in ("python", "python3"):
        program = folder / name
        program.write_text(python, encoding="utf-8")
        program.chmod(0o755)
    return folder
