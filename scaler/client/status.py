"""Queries of the cluster from Python: the rows of the web page and its API, limited by the client's key.

Each query is a coroutine, which runs in the client's thread. All queries raise UnreachableError and RefusedError.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from scaler.client.answers import ClusterSnapshot, RowTable, TaskTable
from scaler.client.options import check_integer
from scaler.grammar import counted
from scaler.monitor.cluster_rows import WorkerRow
from scaler.monitor.connection import Asking
from scaler.monitor.rows import FOUND
from scaler.monitor.tables import table_named, values_of

MAX_TASKS = 10_000
DAY_SECONDS = 86_400.0
MIN_POLL_SECONDS = 0.1
POLL_RATIO = 10
"""Ratio of the pause between polls for workers to the duration of the last answer."""


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
    rows = asking.model.tasks(state=state, function=name or "", limit=MAX_TASKS, found=fitting)
    return RowTable(row for row in rows if tag is None or row.has_tag(tag))


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


def connected_workers(rows: Iterable[WorkerRow]) -> int:
    """Return the number of slots of workers that accept tasks, which is how `n_workers` counts."""
    return sum(row.slots for row in rows if row.connected and not row.draining)
