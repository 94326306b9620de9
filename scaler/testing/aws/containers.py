"""Containers that are processes of this machine: what the emulated services run.

A container's command runs in a session of its own, in an empty folder, with a clean environment in which `python` is
this interpreter and `pip` has installed everything already. Its first process is the container: when that ends, so
does the rest of its process group. Linux only (pidfd).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import scaler
from scaler.errors import ScalerError
from scaler.processes import end_processes_with

OUTPUT_BYTES = 256 * 1024
"""How much of a container's output is kept: the end of it."""
_CHUNK_BYTES = 64 * 1024
_LAST_READS = 4
"""Reads of an ended container's output: a pipe holds one chunk, and what the container left behind may still write."""


class StartError(ScalerError):
    """A container could not start: the text says why."""


class Container:
    """A running or ended container. Its methods may be called from any thread."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], on_exit: Callable[[Container], None]) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._exit_code: int | None = None
        self._output = bytearray()

    def poll(self) -> int | None:
        """Return the exit code, 128 plus the signal after a signal as containers have it, or None while it runs."""
        return self._exit_code

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the end and return the exit code. Raises TimeoutError."""
        if not self._ended.wait(timeout_seconds) or self._exit_code is None:
            raise TimeoutError(f"container {self.name} still runs after {timeout_seconds:g} s")
        return self._exit_code

    def terminate(self) -> None:
        """Send SIGTERM to the first process, as a service does that stops a container."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the container, with all processes of its group."""
        with self._lock:
            if self._exit_code is None:  # so it has not been waited for, and its number is still its own
                os.killpg(self.pid, signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the first process, if it has not ended."""
        with self._lock:
            if self._exit_code is None:
                os.kill(self.pid, number)

    def output(self) -> str:
        """Return the end of what it has written to stdout and stderr, at most OUTPUT_BYTES."""
        with self._lock:
            return bytes(self._output).decode("utf-8", "replace")

    def keep(self, data: bytes) -> None:
        """Take output. For `Containers` only."""
        with self._lock:
            self._output += data
            del self._output[:-OUTPUT_BYTES]

    def reap(self) -> None:
        """Take the end of the first process. For `Containers` only."""
        with self._lock:
            returncode = self._process.wait()
            self._exit_code = returncode if returncode >= 0 else 128 - returncode
        self._ended.set()
        self._on_exit(self)


@dataclass(slots=True)
class _Watched:
    container: Container
    pidfd: int
    output: int
    """The pipe's reading end. -1: closed."""


class Containers:
    """Starts containers, reads their output, notices at once when they end, and kills all at its own end.

    They are killed also when this process ends in any other way. `close` must be called.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """environment: what all containers find in theirs, beside PATH, HOME and such."""
        self._mark = uuid.uuid4().hex
        self._environment = dict(environment or {})
        self._host: ContainerHost | None = None
        self._lock = threading.Lock()
        self._running: dict[int, Container] = {}
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._arrived: list[_Watched] = []
        self._thread = threading.Thread(target=self._watch, name="containers", daemon=True)
        self._thread.start()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        name: str,
        on_exit: Callable[[Container], None] = lambda _: None,
    ) -> Container:
        """Start a container's command. `on_exit` is called once, from another thread, when it has ended.

        Raises StartError when there is no such program, or after `close`.
        """
        words = [sys.executable if command[:1] in (["python"], ["python3"]) else command[0], *command[1:]]
        with self._lock:
            if self._closed:
                raise StartError(f"container {name} cannot start: the emulator has been closed")
            try:
                watched = self._start(words, environment, name, on_exit)
            except (OSError, ValueError) as error:
                raise StartError(f"container {name} cannot start: {error}") from error
            self._running[watched.container.pid] = watched.container
            self._arrived.append(watched)
            os.write(self._wake_writer, b"\0")
        return watched.container

    def running(self) -> list[Container]:
        """Return the containers that have not ended."""
        with self._lock:
            return list(self._running.values())

    def close(self) -> None:
        """Kill all containers and wait for their end. Does nothing the second time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for container in self._running.values():
                container.kill()
        os.write(self._wake_writer, b"\0")
        self._thread.join()
        end_processes_with([f"{MARK_VARIABLE}={self._mark}"])  # those that have left their process groups
        self._selector.close()
        os.close(self._wake_reader)  # not by the thread: it may have ended before it was woken
        os.close(self._wake_writer)
        if self._host is not None:
            self._host.close()

    def _start(
        self, words: Sequence[str], environment: Mapping[str, str], name: str, on_exit: Callable[[Container], None]
    ) -> _Watched:
        if self._host is None:
            self._host = ContainerHost(self._mark)
        with contextlib.ExitStack() as on_failure:
            reader, writer = os.pipe()
            on_failure.callback(os.close, reader)
            try:
                process = subprocess.Popen(
                    words,
                    env={**self._host.environment, **self._environment, **environment, MARK_VARIABLE: self._mark},
                    cwd=self._host.new_folder(),
                    stdin=subprocess.DEVNULL,
                    stdout=writer,
                    stderr=writer,
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            on_failure.callback(process.wait)
            on_failure.callback(process.kill)
            pidfd = os.pidfd_open(process.pid)
            os.set_blocking(reader, False)
            on_failure.pop_all()
        return _Watched(Container(name, process, on_exit), pidfd, reader)

    def _watch(self) -> None:
        while not (self._closed and not self._running):
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # closed earlier in this turn
                watched: _Watched | None = key.data
                if watched is None:
                    os.read(self._wake_reader, _CHUNK_BYTES)
                    self._welcome()
                elif key.fd == watched.pidfd:
                    self._end(watched)
                else:
                    self._read(watched)

    def _welcome(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for watched in arrived:
            self._selector.register(watched.pidfd, selectors.EVENT_READ, watched)
            self._selector.register(watched.output, selectors.EVENT_READ, watched)

    def _read(self, watched: _Watched) -> None:
        """Take output that is there."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(watched.output, _CHUNK_BYTES)
            if data:
                watched.container.keep(data)
            else:
                self._forget(watched.output)
                watched.output = -1

    def _end(self, watched: _Watched) -> None:
        watched.container.kill()  # what its first process has left behind
        for _ in range(_LAST_READS):
            if watched.output != -1:
                self._read(watched)
        if watched.output != -1:
            self._forget(watched.output)
        self._forget(watched.pidfd)
        watched.container.reap()
        with self._lock:
            del self._running[watched.container.pid]

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)


MARK_VARIABLE = "SCALER_EMULATED_CONTAINERS"
"""By its value in their environment the processes of all containers of a `Containers` are found at its end."""

_REAPER = """
import shutil, sys
from scaler.processes import end_processes_with
sys.stdin.read()
end_processes_with([sys.argv[1]])
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class ContainerHost:
    """The containers' folder, the programs of their image, and a process that ends them when this one dies."""

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
        """Make an empty folder for a container."""
        folder = Path(self._folder.name, uuid.uuid4().hex)
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove everything."""
        self._reaper.kill()
        self._reaper.communicate()
        self._folder.cleanup()


def _put_programs(folder: Path) -> Path:
    """Write what stands for an image's programs: Python with scaler in it, and a pip that need not install anything."""
    folder.mkdir()
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    pip = "#!/bin/sh\necho 'pip: the emulated image has everything'\n"
    for name, text in (("python", python), ("python3", python), ("pip", pip), ("pip3", pip)):
        program = folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    return folder
