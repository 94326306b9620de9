"""A service instance: a process that runs tasks, one at a time, and both ends of the way to it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from scaler.processes import describe_exit

SERVICE_FD_VARIABLE = "SOAMAPI_STAND_IN_SERVICE_FD"


@dataclass(frozen=True, slots=True)
class Invoke:
    """Asks a service to run a task."""

    session_id: str
    task_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The output of a task."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Threw:
    """The service threw instead. again: the task may be tried again."""

    error: BaseException
    again: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended in the middle of a task."""

    how: str


Answer = Answered | Threw | Died


def start_connected(command: Sequence[str], variable: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process, whose environment names the descriptor of its end in `variable`; return it and our end."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command,
            env={**os.environ, variable: str(theirs.fileno())},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return process, Connection(ours.detach())


class Instance:
    """The grid's end. `invoke` is called from one thread, `kill` from any."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process, self._connection = start_connected(command, SERVICE_FD_VARIABLE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def invoke(self, task: Invoke) -> Answer:
        try:
            self._connection.send(task)
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError):
            answer = Died(describe_exit(self._process.wait()))
        return answer

    def kill(self) -> None:
        """End it; what it runs is answered with Died."""
        self._process.kill()

    def close(self) -> None:
        """End it, and free everything. Nothing may be invoked any more."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class ServiceEnd:
    """The service's end: hands out what is to be run. The process ends at once when the grid is gone."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)
        self._tasks: queue.SimpleQueue[Invoke] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> Invoke:
        return self._tasks.get()

    def answer(self, answer: Answer) -> None:
        self._connection.send(answer)

    def _listen(self) -> None:
        while True:
            try:
                task = self._connection.recv()
            except (EOFError, ConnectionError):
                os._exit(0)  # also in the middle of a task, whose result has no reader left
            self._tasks.put(task)
