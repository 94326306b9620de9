"""The questions of a client about its tasks and the cluster, and the commands to workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, overload

from scaler.client import data
from scaler.client.again import id_of_task, run_again, what_ran
from scaler.client.cluster_rows import ClusterSnapshot, HistorySnapshot, LogTable, RowTable, TaskTable
from scaler.client.connect import room
from scaler.client.future import ScalerFuture, check_future
from scaler.client.profiles import TaskProfile, profile
from scaler.client.task_calls import TaskCalls
from scaler.client.tasks import ObjectReference
from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.protocol.messages import ReadLog, TaskLog
from scaler.serialization.tracebacks import hiding_frames
from scaler.texts import escaped_lines

MAX_LOGS = 1_000
"""Records of workers' own logs that the scheduler keeps."""


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The output of a task, with its control characters shown: `str` of it is all of that, stderr after stdout."""

    stdout: str
    stderr: str
    cut_bytes: int = 0
    """How much was left out of the middle, because there was too much."""

    def __str__(self) -> str:
        if not self.stderr:
            return self.stdout
        before = self.stdout if not self.stdout or self.stdout.endswith("\n") else self.stdout + "\n"
        return f"{before}--- stderr ---\n{self.stderr}"


class ClusterQuestions(TaskCalls):
    """The part of `Client` that asks the scheduler."""

    @hiding_frames
    def explain(self, future: ScalerFuture | None = None) -> str:
        """Return in a sentence why a task waits, what it does, or what became of it, as the scheduler sees it.

        Without a future, of the oldest task of this client that has not ended. Of tasks that have ended the scheduler
        remembers the last few thousand. Raises UnreachableError when it does not answer.
        """
        self._check_open()
        if future is None:
            return self._futures.explain_oldest()
        check_future(future)
        return self._loop.explain(future)

    @overload
    def logs(self, future: ScalerFuture) -> TaskOutput: ...

    @overload
    def logs(self, *, worker: str = "") -> LogTable: ...

    @hiding_frames
    def logs(self, future: ScalerFuture | None = None, *, worker: str = "") -> TaskOutput | LogTable:
        """Return what a task has printed so far, with control characters shown; `str` of it is all in one text.

        The scheduler keeps the beginning and the end of a long output, and the outputs of the tasks that printed last.
        Without a future, return the last records of the workers' own logs, from warnings on, the newest first. worker:
        only of the one with this name or id. Raises UnreachableError when the scheduler does not answer.
        """
        self._check_open()
        if future is None:
            logs: LogTable = self._status().table("logs", {"worker": worker, "limit": MAX_LOGS})
            return logs
        if worker:
            raise UsageError("give a future or a worker: a task's output, or a worker's own log")
        check_future(future)
        log = self._loop.ask(ReadLog(future.task_id), TaskLog)
        stdout, stderr = (escaped_lines(text.decode("utf-8", "backslashreplace")) for text in (log.stdout, log.stderr))
        return TaskOutput(stdout, stderr, log.truncated_bytes)

    @hiding_frames
    def who_has(self, future: ScalerFuture | ObjectReference) -> list[data.Holder]:
        """Return which hosts have the value of a future or sent object in their stores, and its size in bytes.

        Empty for a task that has not ended or has failed, and for a small value, which travels without a store. Raises
        UsageError for anything else, and UnreachableError when the scheduler does not answer.
        """
        self._check_open()
        return data.who_has(self._loop, future)

    @hiding_frames
    def objects(self, limit: int = 100) -> list[data.LargeObject]:
        """Return the largest objects (1 MiB and more) of this client's key, the largest one first, with their hosts.

        An admin's client sees those of all keys. limit: how many at most, up to 1,000. Raises UsageError, and
        UnreachableError when the scheduler does not answer.
        """
        self._check_open()
        return data.objects(self._loop, limit)

    @hiding_frames
    def profile(self, of: ScalerFuture | str, seconds: float = 0.0) -> TaskProfile:
        """Return where the time of a task goes, or of all tasks of a function (its name); `print` shows hot frames.

        A short task, which has no profile of its own, has that of its function. Of a running task it waits for the
        first samples. seconds: what is sampled in the next seconds, or until the task ends; 0: all so far. Raises
        UsageError, and UnreachableError when the scheduler does not answer.
        """
        self._check_open()
        return profile(self._loop, of, seconds)

    @hiding_frames
    def costs(self, limit: int = 100) -> list[data.FunctionCost]:
        """Return what functions of this client's key have cost in this run, the largest cost first.

        An admin's client sees those of all keys. limit: how many at most, up to 1,000. Raises UsageError, and
        UnreachableError when the scheduler does not answer.
        """
        self._check_open()
        return data.costs(self._loop, limit)

    @hiding_frames
    def run_again(self, task: ScalerFuture | bytes | str) -> ScalerFuture:
        """Run a failed task again, with the same function, options and arguments; return the future of the new task.

        task: its future, or its id as bytes or hexadecimal text; it may be another client's, and that may have left.
        The scheduler keeps the last 1,000 failed tasks. Of a `map` the whole chunk runs again. Raises UsageError for a
        task that is not kept, and ObjectLostError that names the input that is gone.
        """
        self._check_open()
        return run_again(self._loop, self._futures, self._templates, id_of_task(task), self._parent())

    @hiding_frames
    def bundle(self, task: ScalerFuture | bytes | str, path: str | PathLike[str]) -> Path:
        """Write a failed task into one file: function, arguments, inputs, environment, output, traceback.

        task: as in `run_again`. `scaler replay PATH` runs it in a shell. The file has the values that the task got.
        Raises UsageError, also for a file that cannot be written, and ObjectLostError that names what is gone.
        """
        self._check_open()
        written: Path = room("bundle").write_bundle_of(self._loop, task, path)
        return written

    @hiding_frames
    def replay(self, task: ScalerFuture | bytes | str, *, pdb: bool = False) -> Any:
        """Run a failed task again in this process, with its inputs, and return its value or raise what it raises.

        task: as in `run_again`. pdb: open the debugger where the exception is raised. Of a `map` the chunk runs up to
        the item that fails. Raises UsageError, ObjectLostError that names what is gone, and SerializationError.
        """
        self._check_open()
        from scaler.client.replay import replay  # noqa: PLC0415 (few programs do this)

        return replay(what_ran(self._loop, id_of_task(task), "be replayed"), pdb=pdb)

    @hiding_frames
    def cluster(self) -> ClusterSnapshot:
        """Return workers, managers, clients, functions, tasks, storage and scheduler, as rows of what the page shows.

        Each list has `to_pandas()`. Raises UnreachableError and RefusedError, as `tasks`, `report`, `retry` and
        `wait_for_workers` do, and UsageError inside a task.
        """
        snapshot: ClusterSnapshot = self._status().state()
        return snapshot

    @hiding_frames
    def table(self, name: str, /, **parameters: Any) -> RowTable[Any]:
        """Return the rows of a table by its name: `client.table("tasks", state="failed", limit=5)`.

        `scaler show` lists the tables, and `scaler show NAME -h` the parameters of one, in the documentation of the web
        API with their columns. Raises UsageError for unknown names, and as `cluster` does.
        """
        rows: RowTable[Any] = self._status().table(name, parameters)
        return rows

    @hiding_frames
    def history(self, start: datetime | float | None = None, end: datetime | float | None = None) -> HistorySnapshot:
        """Return what happened between two times, over restarts where the scheduler has a state_directory.

        start, end: datetimes (local ones without a time zone) or unix seconds; by default the last 24 hours. Its lists
        have `to_pandas()`. Raises UsageError for other times, and as `cluster` does.
        """
        history: HistorySnapshot = self._status().history(start, end)
        return history

    @hiding_frames
    def tasks(self, name: str | None = None, *, state: str = "", tag: str | None = None) -> TaskTable:
        """Return the tasks of this name or tag, of any client of the key, the newest first; without both those known.

        state: only these: `running`, `failed` (in any way), or the name of an outcome such as `done`.
        """
        rows: TaskTable = self._status().tasks(name, state, tag)
        return rows

    @hiding_frames
    def cancel(self, name: str | None = None, *, tag: str | None = None) -> int:
        """Cancel this client's unfinished tasks of a name, or those with a tag; return how many.

        tag: one of `tags`, or the `tag` of `submit_verbose`, with a durable session of the whole session. Raises
        UsageError unless one of the two is given.
        """
        self._check_open()
        if (name is None) == (tag is None):
            raise UsageError("give the name or the tag of the tasks to cancel; clear() cancels all")
        found: set[ScalerFuture] = {
            each
            for each in self._futures.unfinished()
            if (each._spec.name == name if tag is None else tag in each._spec.tags)
        }
        if tag is not None and self._session is not None:
            found.update(self._session.find(None, None, tag))
        return sum(future.cancel() for future in found)

    @hiding_frames
    def retry(self, name: str | None = None, *, tag: str | None = None) -> list[ScalerFuture]:
        """Run this client's failed tasks of a name or with a tag again, as `run_again` does; return their new futures.

        They are in the order in which the tasks were submitted. Those that did not run because an input failed are left
        out: run that again. The scheduler keeps the last 1,000. Raises UsageError unless one of the two is given.
        """
        if (name is None) == (tag is None):
            raise UsageError("give the name or the tag of the tasks to run again")
        own = self._futures.ids.owner.hex()
        failed = self._status().tasks(name, "failed", tag)
        # The ids of one client count up, so their order is that of the submissions.
        return [
            self.run_again(task) for task in sorted(row.id for row in failed if row.id.startswith(own) and row.worker)
        ]

    @hiding_frames
    def report(self, path: str | PathLike[str]) -> Path:
        """Write the web page with the tasks, timeline and failures of this run into one HTML file.

        Raises UsageError for a file that cannot be written.
        """
        written: Path = self._status().report(local_path(path))
        return written

    @hiding_frames
    def run(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        workers: Iterable[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Call `fn(*args, **kwargs)` once on every worker; return what it returns, or its exception, by worker id.

        It waits for a free slot of each worker, ahead of other tasks, and runs at most once. workers: the ids of some
        rows of `cluster().workers`. timeout: seconds for all together; the value of a worker that is late then is a
        TimeoutError. Raises UsageError for workers that are not connected, and as `cluster` does.
        """
        from scaler.client.on_workers import FIRST, run_on_workers  # noqa: PLC0415 (few programs do this)

        options = self._options._replace(retries=0, priority=FIRST)
        return run_on_workers(
            self._status().state().workers,
            lambda needs: self._submit(fn, args, kwargs, options._replace(needs=needs)),
            workers,
            timeout,
        )

    @hiding_frames
    def restart_workers(self, workers: Iterable[str] | None = None, *, graceful: bool = True) -> list[str]:
        """Have workers end, so that their managers start others where there is work; return the ids of those that end.

        workers: the ids of some rows of `cluster().workers`; None: all. graceful: what runs on them ends first, and
        what waits there runs elsewhere. Otherwise what runs is lost, and runs again as its options say. Raises
        UsageError without an admin's credential in a cluster with keys, and UnreachableError.
        """
        self._check_open()
        from scaler.client.on_workers import restart_workers  # noqa: PLC0415 (few programs do this)

        return restart_workers(self._loop, workers, graceful)

    @hiding_frames
    def wait_for_workers(self, count: int, timeout: float | None = None) -> None:
        """Return once this many workers are connected. Raises TimeoutError that says how many are, and why none is.

        As in `n_workers`, what runs two tasks at once counts as two workers. With `processes=False` none is needed.
        """
        room("status").waited(self._workers(count, timeout))

    def _status(self) -> Any:
        self._check_open()
        if self._is_nested:
            raise UsageError("a client inside a task asks only about tasks: give it the scheduler's address")
        if self._is_in_process:
            raise UsageError("a client with processes=False has no cluster to ask")
        return room("status").ClusterStatus(self._loop)

    def _workers(self, count: int, timeout: float | None) -> Future[None]:
        if self._is_in_process:
            none_needed: Future[None] = Future()
            none_needed.set_result(None)
            return none_needed
        future: Future[None] = self._status().workers(count, timeout)
        return future
