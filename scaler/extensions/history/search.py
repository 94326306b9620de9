"""Finds queued, running, and recently ended tasks by id prefix or part of a name. Pure.

Visits only the longest waiting tasks and those near known ids of each group. A complete id is always found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, islice

from scaler.ids import ID_BYTES, PEER_ID_BYTES
from scaler.protocol.monitor_rows import ASSIGNED, READY, RUNNING, SUSPENDED, TASK_COLUMNS, WAITING, TaskRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Assigned, Group, Ready, Recalled, Task
from scaler.scheduler.events import TASKS_BYTES, ended_row, live_row
from scaler.scheduler.status import Sees, every_key, running_tasks
from scaler.scheduler.tables import table

MAX_FOUND = 200
MAX_VISITED = 10_000
"""Tasks visited per source."""
NEAR = 100
"""Tasks visited before a known task, because they probably arrived in the same batch."""


def find(state: ClusterState, search: str, at: float, now: float, sees: Sees = every_key) -> bytes:
    """Return the table of found tasks as JSON, live tasks first.

    search: case-insensitive id prefix in hex, or part of the name of a function, client, worker, or tag. at, now:
    current time in unix seconds and by the scheduler's clock. sees: see `status`.
    """
    wanted = search.strip().casefold()

    @cache
    def is_named(group: Group) -> bool:
        texts = group.spec.name, group.client.name, *group.spec.tags
        return any(wanted in text.casefold() for text in texts)

    def fits(task: Task) -> bool:
        if not sees(task.group.client.account.key):
            return False
        worker = getattr(task.state, "worker", None)
        by_worker = worker is not None and wanted in worker.name.casefold()
        return by_worker or is_named(task.group) or task.id.hex().startswith(wanted)

    visited = chain.from_iterable(islice(source, MAX_VISITED) for source in _sources(state, wanted, is_named))
    own_now = state.own_time(state.now)
    live = ((task.id, _live_row(task, own_now)) for task in visited if task is not None and fits(task))
    past = (
        (batch.ids[index], ended_row(batch, index, at - (now - batch.step_at))._replace(traceback=""))
        for ended in reversed(state.remembered)
        for batch, index in reversed(list(ended.latest(MAX_VISITED)))
        for group, worker in (batch.run_of(index),)
        if sees(group.client.account.key)
        and (is_named(group) or wanted in worker.casefold() or batch.ids[index].hex().startswith(wanted))
    )
    found: dict[bytes, TaskRow] = {}
    for task_id, row in chain(live, past):
        found.setdefault(task_id, row)
        if len(found) == MAX_FOUND:
            break
    return table(TASK_COLUMNS, found.values(), TASKS_BYTES).encode()


def _sources(state: ClusterState, wanted: str, is_named: Callable[[Group], bool]) -> Iterator[Iterator[Task | None]]:
    if re.fullmatch("[0-9a-f]{16,32}", wanted):
        owner = state.clients.get(bytes.fromhex(wanted[: 2 * PEER_ID_BYTES]))
        first, digits = int(wanted.ljust(2 * ID_BYTES, "0"), 16), 2 * ID_BYTES - len(wanted)
        ids = (number.to_bytes(ID_BYTES, "big") for number in range(first, first + 16**digits))
        yield (owner.tasks.get(each) for each in ids) if owner is not None else iter(())
        if not digits:
            return  # a complete id
    workers = [worker for worker in state.workers.values() if wanted in worker.name.casefold()]
    yield chain.from_iterable(worker.tasks.values() for worker in workers)
    groups = [
        group
        for client in state.clients.values()
        for group in client.groups.values()
        if client.id.hex().startswith(wanted[: 2 * PEER_ID_BYTES]) or is_named(group)
    ]
    yield chain.from_iterable(client.tasks.values() for client in dict.fromkeys(group.client for group in groups))
    yield (
        group.client.tasks.get(number.to_bytes(ID_BYTES, "big"))
        for group in filter(is_named, groups)
        for last in (int.from_bytes(last, "big") for _, last in group.arrivals)
        for number in range(last, max(0, last - NEAR), -1)
    )


def _live_row(task: Task, now: float) -> TaskRow:
    match task.state:
        case Assigned(worker=worker) | Recalled(worker=worker):
            processors = worker.reports.heartbeat.processors if worker.reports.heartbeat is not None else ()
            reported = (
                each.running_seconds + now - worker.reports.at for each in processors if each.running == task.id
            )
            duration_us = int(next(reported, 0.0) * 1e6)
            state = SUSPENDED if task.id in worker.blocked else RUNNING if task in running_tasks(worker) else ASSIGNED
            return live_row(task, state, worker.name, task.number)._replace(duration_us=duration_us)
        case state:
            return live_row(task, READY if type(state) is Ready else WAITING, "", task.number)
