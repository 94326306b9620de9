"""What monitors are told: the state of the core as one JSON document, aggregated, O(workers)."""

from __future__ import annotations

import json
from collections import Counter

from scaler.protocol.messages import Outcome, WorkerHeartbeat
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.state import Worker


def status(
    core: SchedulerCore, *, cpu_percent: float, rss_bytes: int, sent: Counter[str], received: Counter[str]
) -> bytes:
    """Return the document: `scheduler`, `tasks`, `messages`, `workers`, `clients`, `managers`, `functions`."""
    assigned = sum(len(worker.tasks) for worker in core.workers.values())
    ready = core.ready.count
    functions: Counter[str] = Counter()
    for client in core.clients.values():
        for group in client.groups.values():
            functions[group.spec.name] += group.live
    document = {
        "scheduler": {"cpu_percent": cpu_percent, "rss_bytes": rss_bytes},
        "tasks": {
            "waiting": core.tasks.waiting,
            "ready": ready,
            "assigned": assigned,
            "ended": {Outcome(code).name.lower(): count for code, count in core.tasks.ended.items()},
        },
        "messages": {"sent": dict(sent), "received": dict(received)},
        "workers": [_worker(worker) for worker in core.workers.values()],
        "clients": [
            {"id": client.id.hex(), "name": client.name, "tasks": len(client.tasks)} for client in core.clients.values()
        ],
        "managers": [
            {
                "id": record.details.manager_id,
                "kind": record.details.kind,
                "running": len(record.running_units),
                "units": len(record.status.units) if record.status is not None else 0,
                "desired": record.told[0] if record.told is not None else None,
                "reason": record.reason,
                "trouble": record.status.trouble if record.status is not None else "",
            }
            for record in core.elastic.managers.values()
        ],
        "functions": dict(functions),
    }
    return json.dumps(document).encode()


def _worker(worker: Worker) -> dict[str, object]:
    row: dict[str, object] = {
        "id": worker.id.hex(),
        "name": worker.name,
        "manager": worker.details.manager_id,
        "unit": worker.details.unit_id,
        "capabilities": str(worker.offers),
        "slots": worker.slots,
        "assigned": len(worker.tasks),
        "suspended": len(worker.blocked),
        "free": max(worker.limit - worker.busy, 0),
        "draining": worker.draining,
        "connected": worker.broken_at is None,
    }
    if worker.heartbeat is not None:
        row.update(_heartbeat(worker.heartbeat))
    return row


def _heartbeat(heartbeat: WorkerHeartbeat) -> dict[str, object]:
    return {
        "agent_cpu_percent": heartbeat.agent_cpu_percent,
        "agent_rss_bytes": heartbeat.agent_rss_bytes,
        "queued": heartbeat.queued,
        "latency_seconds": heartbeat.latency_seconds,
        "processors": [
            {
                "pid": processor.pid,
                "cpu_percent": processor.cpu_percent,
                "rss_bytes": processor.rss_bytes,
                "initialized": processor.initialized,
                "suspended": processor.suspended,
                "running": processor.running.hex(),
                "running_seconds": processor.running_seconds,
            }
            for processor in heartbeat.processors
        ],
    }
