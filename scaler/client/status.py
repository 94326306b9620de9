"""Queries of the cluster from Python: the rows of the web page and its API, limited by the client's key."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from scaler.client.answers import ClusterSnapshot, HistorySnapshot, RowTable, TaskTable
from scaler.client.options import check_integer
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.monitor.asking import Asking
from scaler.monitor.rows import FOUND, LOGS
from scaler.monitor.tables import table_named, values_of
from scaler.protocol.monitor_rows import WorkerRow

if TYPE_CHECKING:
    from scaler.client.loop import ClientLoop

MAX_TASKS = 10_000
DAY_SECONDS = 86_400.0
MIN_POLL_SECONDS = 0.1
POLL_RATIO = 10
"""Ratio of the pause between polls for workers to the duration of the last answer."""
_T = TypeVar("_T")
_Question = Callable[[Asking], Coroutine[Any, Any, _T]]


class ClusterStatus:
    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop

    def state(self) -> ClusterSnapshot:
        """Return the state of the cluster. Raises UnreachableError and RefusedError, like all methods here."""

        async def ask(asking: Asking) -> ClusterSnapshot:
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

        return self._ask(ask)

    def tasks(self, name: str | None, state: str, tag: str | None = None) -> TaskTable:
        """Return the tasks of this name and tag, or all known. state: an outcome's name, `running`, or `failed`."""

        async def ask(asking: Asking) -> TaskTable:
            await asking.read()
            wanted = name if tag is None else tag
            found = [] if wanted is None else await asking.find(wanted)
            fitting = [row for row in found if name is None or row.function == name]
            rows = asking.model.tasks(state=state, function=name or "", limit=MAX_TASKS, found=fitting)
            return RowTable(row for row in rows if tag is None or row.has_tag(tag))

        return self._ask(ask)

    def history(self, start: datetime | float | None, end: datetime | float | None) -> HistorySnapshot:
        """Return the history between two times. Raises UsageError for invalid times or times in the wrong order."""
        until = time.time() if end is None else _unix_seconds("end", end)
        since = until - DAY_SECONDS if start is None else _unix_seconds("start", start)
        if since >= until:
            raise UsageError(f"start is {start!r}, and must be before end, {end!r}")

        async def ask(asking: Asking) -> HistorySnapshot:
            found = await asking.history(since, until)
            tables: list[Any] = [RowTable(rows) for rows in found[4:]]
            return HistorySnapshot(*found[:4], *tables)

        return self._ask(ask)

    def table(self, name: str, given: Mapping[str, object]) -> RowTable[Any]:
        """Return the rows of a table. Raises UsageError for unknown names of tables and parameters."""
        table = table_named(name)
        values = values_of(table.parameters, {key: [str(value)] for key, value in given.items()})

        async def ask(asking: Asking) -> RowTable[Any]:
            if name not in {*FOUND, *LOGS}:
                await asking.read()
            return RowTable(await table.rows(asking, values))

        return self._ask(ask)

    def workers(self, count: int, timeout: float | None) -> Future[None]:
        """Return a future that ends once this many slots are connected, or with a TimeoutError. Raises UsageError."""
        check_integer("the number of workers", count, 0)

        async def ask(asking: Asking) -> None:
            try:
                async with asyncio.timeout(timeout):
                    while not await self._has_workers(asking, count):
                        pass
            except TimeoutError:
                status = asking.model.status
                here = f"connected: {connected_workers(status.workers):,}" if status.at else "no answer yet"
                text = f"waited {timeout:g} s for {counted(count, 'worker')}; {here}"
                raise TimeoutError(f"{text}; {status.without_workers}".rstrip("; ")) from None

        return self._asked(ask)

    @staticmethod
    async def _has_workers(asking: Asking, count: int) -> bool:
        """Return whether this many workers are connected, after a pause if not."""
        began = time.monotonic()
        await asking.read()
        if connected_workers(asking.model.status.workers) >= count:
            return True
        await asyncio.sleep(max(MIN_POLL_SECONDS, POLL_RATIO * (time.monotonic() - began)))
        return False

    def _ask(self, question: _Question[_T]) -> _T:
        return waited(self._asked(question))

    def _asked(self, question: _Question[_T]) -> Future[_T]:
        loop = self._loop
        asking = Asking(loop.address, loop.questions, loop.futures.timeout_seconds, loop.tables)
        return in_a_loop(question(asking))


def connected_workers(rows: Iterable[WorkerRow]) -> int:
    """Return the number of slots of workers that accept tasks, which is how `n_workers` counts."""
    return sum(row.slots for row in rows if row.connected and not row.draining)


def waited(future: Future[_T]) -> _T:
    """Return a future's value. Cancels the future if the wait is interrupted, as by Ctrl-C."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def in_a_loop(work: Coroutine[Any, Any, _T]) -> Future[_T]:
    """Run a coroutine in a thread with its own loop, because the caller's may be running. Cancellable."""
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    future = asyncio.run_coroutine_threadsafe(work, runner.get_loop())

    async def ended() -> None:
        await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)

    def run() -> None:
        with runner:
            runner.run(ended())

    threading.Thread(target=run, name="cluster-status").start()
    return future


def _unix_seconds(name: str, at: datetime | float) -> float:
    if isinstance(at, datetime):
        return at.timestamp()
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise UsageError(f"{name} is {at!r}, and must be a datetime or Unix seconds")
    return float(at)
