"""Client queries about tasks and the cluster, and commands to workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from scaler.client.future import ScalerFuture, check_future, error_of
from scaler.client.options import check_integer, iterated
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.client.tasks import ObjectReference
from scaler.errors import UsageError
from scaler.grammar import listed
from scaler.monitor import queries
from scaler.monitor.messages import FindObjects, ObjectsFound
from scaler.monitor.queries import ClusterSnapshot, RowTable, TaskTable, ask
from scaler.needs import pinned
from scaler.protocol import messages as m

MAX_ROWS = 1_000
"""Maximum number of rows of `objects`."""
MAX_NAMED = 3
FIRST = 2**31 - 1
"""Priority of `run` tasks, ahead of all queued tasks."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A host that stores a value, or `object storage`. size_bytes: size of the value; 0 if unknown."""

    host: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A large object. function, task_id: the task that created it; empty if a client sent the object.

    client: name of its client, or id of a disconnected client. hosts: hosts that store the object, or `object storage`.
    """

    id: str
    size_bytes: int
    function: str
    task_id: str
    client: str
    hosts: tuple[str, ...]


@hiding_frames_of_methods()
class Queries(TaskCalls):
    def explain(self, future: ScalerFuture | None = None) -> str:
        """Explain in one sentence why a task waits, where it runs, or how it ended.

        Args:
            future: the task. Default: the oldest unfinished task of this client. The scheduler keeps the last few
                thousand finished tasks.

        Raises:
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        if future is None:
            return self._futures.explain_oldest()
        check_future(future)
        return self._loop.explain(future)

    def who_has(self, future: ScalerFuture | ObjectReference) -> list[Holder]:
        """Return the hosts that store a value, and its size in bytes.

        Args:
            future: a future, or the reference of a sent object.

        Returns:
            A row for each host. Empty for an unfinished or failed task, and for a small value, which is sent in
            messages.

        Raises:
            UsageError: The argument is neither a future nor a reference.
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        identifier = getattr(future, "_reference_id", None)
        if not isinstance(identifier, bytes):
            raise UsageError(f"{future!r} is neither a future nor a reference returned by send_object")
        return [Holder(host, each.size_bytes) for each in _large_objects(self, [identifier], 1) for host in each.hosts]

    def objects(self, limit: int = 100) -> list[LargeObject]:
        """Return the largest objects that belong to this client's key, or to any key for an admin, largest first.

        Args:
            limit: maximum number of rows, up to 1,000.

        Returns:
            Objects of 1 MiB and more, with the hosts that store them.

        Raises:
            UsageError: The limit is invalid.
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        check_integer("limit", limit, 1, MAX_ROWS)
        return _large_objects(self, [], limit)

    def cluster(self) -> ClusterSnapshot:
        """Return the state of the cluster: workers, managers, clients, functions, tasks, storage, and scheduler.

        Returns:
            Lists with the rows of the web page. Each list has `to_pandas()`.

        Raises:
            UnreachableError: The scheduler does not answer.
            RefusedError: The scheduler refuses this client as a monitor.
            UsageError: Called inside a task.
        """
        return ask(self, queries.cluster)

    def table(self, name: str, /, **parameters: Any) -> RowTable[Any]:
        """Return the rows of a table: `client.table("tasks", state="failed", limit=5)`.

        Args:
            name: name of the table. `scaler show` lists all tables.
            parameters: parameters of the table. `scaler show NAME -h` lists them.

        Raises:
            UsageError: The name or a parameter is unknown.
            UnreachableError: The scheduler does not answer.
            RefusedError: The scheduler refuses this client as a monitor.
        """
        return ask(self, queries.table, name, parameters)

    def tasks(self, name: str | None = None, *, state: str = "", tag: str | None = None) -> TaskTable:
        """Return the known tasks of this client's key, newest first.

        Args:
            name: only tasks with this name.
            state: `running`, `failed` (in any way), or the name of an outcome such as `done`.
            tag: only tasks with this tag.

        Raises:
            UnreachableError: The scheduler does not answer.
            RefusedError: The scheduler refuses this client as a monitor.
        """
        return ask(self, queries.tasks, name, state, tag)

    def cancel(self, name: str | None = None, *, tag: str | None = None) -> int:
        """Cancel unfinished tasks of this client, or of its durable session, by name or tag.

        Args:
            name: name of the tasks.
            tag: one of the tasks' `tags`, or their `tag` in `submit_verbose`.

        Returns:
            The number of cancelled tasks.

        Raises:
            UsageError: Both arguments are given, or neither.
        """
        self._check_open()
        if (name is None) == (tag is None):
            raise UsageError("pass the name or tag of the tasks to cancel; clear() cancels all tasks")
        found: set[ScalerFuture] = {
            each
            for each in self._futures.unfinished()
            if (each._spec.name == name if tag is None else tag in each._spec.tags)
        }
        if tag is not None and self._session is not None:
            found.update(self._session.find(None, None, tag))
        return sum(future.cancel() for future in found)

    def run(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        workers: Iterable[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Call `fn(*args, **kwargs)` once on every worker. Each call waits for a free slot of its worker, ahead of
        other tasks.

        Args:
            fn: the function.
            args: arguments of the function.
            workers: ids of the workers that call the function, as in `cluster().workers`. Default: all.
            timeout: seconds for all calls together.
            kwargs: keyword arguments of the function.

        Returns:
            A value or an exception for each worker, by its id. A late worker's value is a TimeoutError.

        Raises:
            UsageError: A worker is not connected.
            UnreachableError: The scheduler does not answer.
            RefusedError: The scheduler refuses this client as a monitor.
        """
        here = [row.id for row in self.cluster().workers if row.connected and not row.draining]
        wanted = here if workers is None else list(dict.fromkeys(map(str, iterated("workers", workers))))
        if unknown := [repr(each) for each in wanted if each not in here]:
            text = "pass ids from client.cluster().workers"
            raise UsageError(f"no worker {listed(unknown, MAX_NAMED)} is connected: {text}")
        options = self._options._replace(retries=0, priority=FIRST)
        futures: dict[str, ScalerFuture] = {}
        try:
            for worker in wanted:
                futures[worker] = self._submit(fn, args, kwargs, options._replace(needs=pinned(worker)))
            late = wait(futures.values(), timeout).not_done
        except BaseException:
            for future in futures.values():
                future.cancel()
            raise
        return {worker: _outcome(future, future in late) for worker, future in futures.items()}

    def restart_workers(self, workers: Iterable[str] | None = None, *, graceful: bool = True) -> list[str]:
        """Stop workers. Their managers start new workers if needed.

        Args:
            workers: ids of the workers, as in `cluster().workers`. Default: all.
            graceful: running tasks finish first, and queued tasks move to other workers. If False, running tasks are
                lost and retried as their options allow.

        Returns:
            The ids of the stopped workers.

        Raises:
            UsageError: The cluster has keys, and this client's key is not an admin's.
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        try:
            wanted = [] if workers is None else [bytes.fromhex(str(each)) for each in iterated("workers", workers)]
        except ValueError as error:
            raise UsageError(f"a worker's id is hexadecimal, as in client.cluster().workers: {error}") from None
        if workers is not None and not wanted:
            return []
        answer = self._loop.ask(m.RestartWorkers(wanted, graceful), m.WorkersRestarted)
        if answer.refused:
            raise UsageError(answer.refused)
        return [each.hex() for each in answer.workers]

    def wait_for_workers(self, count: int, timeout: float | None = None) -> None:
        """Wait until this many workers are connected. Returns at once with `processes=False`.

        Args:
            count: number of workers. A worker that runs two tasks at once counts twice, as in `n_workers`.
            timeout: maximum wait in seconds.

        Raises:
            TimeoutError: Too few workers are connected. The message contains their number, and the reason if there are
                none.
        """
        if not self._is_in_process:
            ask(self, queries.workers, count, timeout)

    def _workers(self, count: int, timeout: float | None) -> Future[None]:
        """Start `wait_for_workers`, for AsyncClient."""
        return self._futures.start(queries.asking(self, queries.workers, count, timeout), self._loop._loop)


def _large_objects(client: TaskCalls, named: list[bytes], most: int) -> list[LargeObject]:
    answer = client._loop.ask(FindObjects(named, most), ObjectsFound)
    return [
        LargeObject(identifier, size_bytes, function, task, owner, tuple(hosts))
        for identifier, size_bytes, function, task, owner, hosts in json.loads(answer.json)
    ]


def _outcome(future: ScalerFuture, is_late: bool) -> Any:
    if is_late and future.cancel():
        return TimeoutError("the call did not end in time on this worker")
    error = error_of(future)
    return future.result() if error is None else error
