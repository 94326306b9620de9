"""A worker's row in what monitors are told. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from scaler.ids import owner_of
from scaler.protocol.messages import ProcessorStatus, WorkerHeartbeat
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.state import Task, Worker

MAX_PROCESSORS_LISTED = 16
"""Processors of one worker."""
MAX_TEXT = 200
"""Characters of any text in a row."""


def running_tasks(worker: Worker) -> Iterator[Task]:
    """Yield the tasks that a worker runs: the first ones that it got, as many as it has slots for."""
    blocked = worker.blocked
    return islice((task for task in worker.tasks.values() if task.id not in blocked), worker.slots)


def worker_row(core: SchedulerCore, worker: Worker) -> dict[str, object]:
    """Return how a worker is, by what the scheduler knows and what the last heartbeat said."""
    row: dict[str, object] = {
        "id": worker.id.hex(),
        "name": worker.name[:MAX_TEXT],
        "manager": worker.details.manager_id[:MAX_TEXT],
        "unit": worker.details.unit_id[:MAX_TEXT],
        "capabilities": str(worker.offers)[:MAX_TEXT],
        "slots": worker.slots,
        "assigned": len(worker.tasks),
        "suspended": len(worker.blocked),
        "free": max(worker.limit - worker.busy, 0),
        "sent": worker.sent,
        "draining": worker.draining,
        "quarantined": worker.quarantined,
        "connected": worker.broken_at is None,
    }
    if worker.heartbeat is not None:
        row.update(_heartbeat(core, worker, worker.heartbeat))
    return row


def _heartbeat(core: SchedulerCore, worker: Worker, heartbeat: WorkerHeartbeat) -> dict[str, object]:
    now = core.own_time(core.history.now)
    age = now - worker.heartbeat_at
    listed = heartbeat.processors[:MAX_PROCESSORS_LISTED]
    told = [living_task(core, processor.running) for processor in listed]
    # What began after the heartbeat is with those that had nothing, or whose task has ended since.
    since = (task for task in running_tasks(worker) if task not in told)
    rows = []
    for processor, task in zip(listed, told, strict=True):
        if task is not None or processor.suspended or not processor.initialized:
            rows.append(_processor(processor, task, processor.running_seconds + age))
        else:
            rows.append(_processor(processor, next(since, None), min(age, now - worker.progressed_at)))
    return {
        "agent_cpu_percent": heartbeat.agent_cpu_percent,
        "agent_rss_bytes": heartbeat.agent_rss_bytes,
        "queued": heartbeat.queued,
        "latency_seconds": heartbeat.latency_seconds,
        "processors": rows,
    }


def _processor(processor: ProcessorStatus, task: Task | None, seconds: float) -> dict[str, object]:
    return {
        "pid": processor.pid,
        "cpu_percent": processor.cpu_percent,
        "rss_bytes": processor.rss_bytes,
        "initialized": processor.initialized,
        "suspended": processor.suspended,
        "running": task.id.hex() if task is not None else "",
        "running_seconds": seconds if task is not None else 0.0,
        "function": task.group.spec.name[:MAX_TEXT] if task is not None else "",
    }


def living_task(core: SchedulerCore, identifier: bytes) -> Task | None:
    """Return a task that has not ended, by its id."""
    client = core.clients.get(owner_of(identifier))
    return client.tasks.get(identifier) if client is not None else None
