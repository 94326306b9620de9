"""`Client.logs`: a task's output, or the workers' log records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

from scaler.client.future import ScalerFuture, check_future
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.errors import UsageError
from scaler.monitor.messages import ReadLog, TaskLog
from scaler.monitor.queries import RowTable, ask, table
from scaler.texts import escaped_lines

MAX_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """A task's output with control characters escaped. Its `str` is stdout followed by stderr."""

    stdout: str
    stderr: str
    cut_bytes: int = 0
    """Bytes dropped from the middle of a long output."""

    def __str__(self) -> str:
        if not self.stderr:
            return self.stdout
        before = self.stdout if not self.stdout or self.stdout.endswith("\n") else self.stdout + "\n"
        return f"{before}--- stderr ---\n{self.stderr}"


@hiding_frames_of_methods()
class LogCalls(TaskCalls):
    @overload
    def logs(self, future: ScalerFuture) -> TaskOutput: ...

    @overload
    def logs(self, *, worker: str = "") -> RowTable[Any]: ...

    def logs(self, future: ScalerFuture | None = None, *, worker: str = "") -> TaskOutput | RowTable[Any]:
        """Return a task's output so far, or the workers' log records.

        Args:
            future: the task. The scheduler keeps the beginning and the end of a long output, and only recent outputs.
                Default: the workers' own log records at level WARNING or above, newest first.
            worker: name or id of the only worker whose records are returned.

        Returns:
            The output with control characters escaped, or a table of records. `str` of an output joins both streams.

        Raises:
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        if future is None:
            return ask(self, table, "logs", {"worker": worker, "limit": MAX_ROWS})
        if worker:
            raise UsageError("pass a future for a task's output, or a worker for its own log")
        check_future(future)
        log = self._loop.ask(ReadLog(future.task_id), TaskLog)
        stdout, stderr = (escaped_lines(text.decode("utf-8", "backslashreplace")) for text in (log.stdout, log.stderr))
        return TaskOutput(stdout, stderr, log.truncated_bytes)
