"""Calls of one function on every worker of the cluster, and the restart of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any

from scaler.client.future import error_of
from scaler.client.loop import ClientLoop
from scaler.client.options import iterated
from scaler.client.task_future import TaskFuture
from scaler.errors import UsageError
from scaler.grammar import listed
from scaler.needs import pinned
from scaler.protocol.messages import RestartWorkers, WorkersRestarted
from scaler.protocol.monitor_rows import WorkerRow

MAX_NAMED = 3
FIRST = 2**31 - 1
"""Priority of these tasks, ahead of all queued tasks."""


def run_on_workers(
    rows: Iterable[WorkerRow],
    submit: Callable[[tuple[tuple[str, float], ...]], TaskFuture],
    workers: Iterable[str] | None,
    timeout: float | None,
) -> dict[str, Any]:
    """Return a function's value or exception by worker id.

    submit: submits a task with these needs. workers: ids; None: all connected workers. timeout: seconds for all tasks
    together; late tasks are cancelled and have a TimeoutError. Raises UsageError for workers that are not connected.
    """
    here = [row.id for row in rows if row.connected and not row.draining]
    wanted = here if workers is None else list(dict.fromkeys(map(str, iterated("workers", workers))))
    if unknown := [repr(each) for each in wanted if each not in here]:
        text = "give ids of rows of client.cluster().workers"
        raise UsageError(f"no worker {listed(unknown, MAX_NAMED)} is connected: {text}")
    futures: dict[str, TaskFuture] = {}
    try:
        for worker in wanted:
            futures[worker] = submit(pinned(worker))
        late = wait(futures.values(), timeout).not_done
    except BaseException:
        for future in futures.values():
            future.cancel()
        raise
    return {worker: _outcome(future, future in late) for worker, future in futures.items()}


def restart_workers(loop: ClientLoop, workers: Iterable[str] | None, graceful: bool) -> list[str]:
    try:
        wanted = [] if workers is None else [bytes.fromhex(str(each)) for each in iterated("workers", workers)]
    except ValueError as error:
        raise UsageError(f"a worker's id has hexadecimal digits, as in client.cluster().workers: {error}") from None
    if workers is not None and not wanted:
        return []
    answer = loop.ask(RestartWorkers(wanted, graceful), WorkersRestarted)
    if answer.refused:
        raise UsageError(answer.refused)
    return [each.hex() for each in answer.workers]


def _outcome(future: TaskFuture, is_late: bool) -> Any:
    if is_late and future.cancel():
        return TimeoutError("it did not end in time on this worker")
    error = error_of(future)
    return future.result() if error is None else error
