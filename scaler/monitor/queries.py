"""Queries of the cluster by clients: the rows of the web page and its API, limited by the client's key.

Each query is a coroutine, which runs in the client's thread. All queries raise UnreachableError and RefusedError.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scaler.client.options import check_integer
from scaler.client.task_calls import TaskCalls
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.monitor import cluster_rows as rows
from scaler.monitor.connection import Asking
from scaler.monitor.data_rows import CallRow
from scaler.monitor.rows import FOUND, view
from scaler.monitor.tables import table_named, values_of

if TYPE_CHECKING:
    import pandas

MAX_TASKS = 10_000
MIN_POLL_SECONDS = 0.1
POLL_RATIO = 10
"""Pause between polls for workers, as a multiple of the last answer's duration."""
_R = TypeVar("_R", bound=NamedTuple)
_Answer = TypeVar("_Answer")
Query = Coroutine[Any, Any, _Answer]


class RowTable(tuple[_R, ...]):
    """Rows of one kind: a tuple that converts to pandas."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per item. Raises ImportError if pandas is not installed."""
        import pandas  # noqa: PLC0415 (optional)

        return pandas.DataFrame([view(row) for row in self])


TaskTable = RowTable[rows.TaskRow]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster at one time. tasks: the most recently reported tasks, newest first.

    waiting: tasks without a worker, by function and needs, with the reason why the oldest task of each is waiting.
    """

    scheduler: rows.SchedulerRow
    storage: rows.StorageRow
    workers: RowTable[rows.WorkerRow]
    managers: RowTable[rows.ManagerRow]
    clients: RowTable[rows.ClientRow]
    functions: RowTable[rows.FunctionRow]
    calls: RowTable[CallRow]
    waiting: RowTable[rows.WaitingRow]
    tasks: TaskTable


def ask(client: TaskCalls, query: Callable[..., Query[_Answer]], *arguments: object) -> _Answer:
    return client._futures.run(asking(client, query, *arguments), client._loop._loop)


def asking(client: TaskCalls, query: Callable[..., Query[_Answer]], *arguments: object) -> Query[_Answer]:
    """Return a query, one of the functions below, for the client's loop. Raises UsageError if there is no cluster."""
    client._check_open()
    if client._is_nested:
        raise UsageError("a client inside a task can query only tasks: pass the scheduler's address")
    if client._is_in_process:
        raise UsageError("a client with processes=False has no cluster")
    loop = client._loop
    return query(Asking(loop.address, loop.questions, client._futures.timeout_seconds, loop.tables), *arguments)


async def cluster(asking: Asking) -> ClusterSnapshot:
    await asking.read()
    status = asking.model.status
    return ClusterSnapshot(
        status.scheduler,
        status.storage,
        workers=RowTable(status.workers),
        managers=RowTable(status.managers),
        clients=RowTable(status.clients),
        functions=RowTable(status.functions),
        calls=RowTable(status.calls),
        waiting=RowTable(status.waiting),
        tasks=RowTable(asking.model.tasks(limit=MAX_TASKS)),
    )


async def tasks(asking: Asking, name: str | None, state: str, tag: str | None) -> TaskTable:
    """Return the tasks with this name and tag, or all known tasks. state: an outcome's name, `running`, or `failed`."""
    await asking.read()
    wanted = name if tag is None else tag
    found = [] if wanted is None else await asking.find(wanted)
    fitting = [row for row in found if name is None or row.function == name]
    known = asking.model.tasks(state=state, function=name or "", limit=MAX_TASKS, found=fitting)
    return RowTable(row for row in known if tag is None or row.has_tag(tag))


async def table(asking: Asking, name: str, given: Mapping[str, object]) -> RowTable[Any]:
    """Return the rows of a table. Raises UsageError for unknown names of tables and parameters."""
    found = table_named(name)
    values = values_of(found.parameters, {key: [str(value)] for key, value in given.items()})
    if name not in FOUND:
        await asking.read()
    return RowTable(await found.rows(asking, values))


async def workers(asking: Asking, count: int, timeout: float | None) -> None:  # noqa: ASYNC109 (as in the client)
    """Return once this many slots are connected. Raises TimeoutError and UsageError."""
    check_integer("the number of workers", count, 0)
    try:
        async with asyncio.timeout(timeout):
            while True:
                began = time.monotonic()
                await asking.read()
                if connected_workers(asking.model.status.workers) >= count:
                    return
                await asyncio.sleep(max(MIN_POLL_SECONDS, POLL_RATIO * (time.monotonic() - began)))
    except TimeoutError:
        status = asking.model.status
        here = f"connected: {connected_workers(status.workers):,}" if status.at else "no answer yet"
        text = f"waited {timeout:g} s for {counted(count, 'worker')}; {here}"
        raise TimeoutError(f"{text}; {status.without_workers}".rstrip("; ")) from None


def connected_workers(workers: Iterable[rows.WorkerRow]) -> int:
    """Return the number of slots of workers that accept tasks, which is how `n_workers` counts."""
    return sum(row.slots for row in workers if row.connected and not row.draining)
