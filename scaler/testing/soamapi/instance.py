"""A service instance (a process that runs one task at a time), and both ends of its connection."""

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
    session_id: str
    task_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    data: bytes


@dataclass(frozen=True, slots=True)
class Threw:
    """The service threw an exception. again: the task may be retried."""

    error: BaseException
    again: bool


@dataclass(frozen=True, slots=True)
class Died:
    how: str


Answer = Answered | Threw | Died


def start_connected(command: Sequence[str], variable: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that finds the descriptor of its end in the environment variable. Return the process and
    our end.
    """
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
    """The grid's end. `invoke` is called from one thread, `kill` from any thread."""

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
        """Kill the process. Its running task is answered with Died."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and free all resources. No further `invoke` is allowed."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class ServiceEnd:
    """The service's end, which receives tasks. The process exits at once if the grid is gone."""

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
                os._exit(0)  # even during a task, because the result would have no reader
            self._tasks.put(task)
