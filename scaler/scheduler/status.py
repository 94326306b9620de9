"""What monitors are told: the state of the core as one JSON document, aggregated, O(workers).

The document has these parts:

- `scheduler`: its own load. `tasks`: how many are in each state now, and how many ended in each way so far.
- `messages`: how many were sent and received, by kind.
- `totals`: how many workers, slots, clients, managers and functions there are, and how many workers are draining or out
  of contact.
- `workers`, `clients`, `managers`, `functions`: a row each, at most `MAX_ROWS` of them and as many as fit in the part's
  share of the document. `totals` says how many there are. Workers in trouble come first, then those with the most
  tasks; clients and functions with the most tasks come first.

So the document fits in a control message however large the cluster is. Texts are cut at `MAX_TEXT` characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from heapq import nlargest

from scaler.protocol.messages import Outcome, WorkerHeartbeat
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.facts import ScalingDecided
from scaler.scheduler.core.state import Client, ManagerRecord, Worker

MAX_ROWS = 500
"""Rows of any list."""
MAX_PROCESSORS_LISTED = 16
"""Processors of one worker."""
MAX_TEXT = 200
WORKERS_BYTES = 640 * 1024
CLIENTS_BYTES = MANAGERS_BYTES = FUNCTIONS_BYTES = 96 * 1024


def status(
    core: SchedulerCore, *, cpu_percent: float, rss_bytes: int, sent: Counter[str], received: Counter[str]
) -> bytes:
    """Return the document, smaller than `MAX_CONTROL_BYTES`."""
    functions: Counter[str] = Counter()
    for client in core.clients.values():
        for group in client.groups.values():
            functions[group.spec.name] += group.live
    workers = core.workers.values()
    parts = {
        "scheduler": json.dumps({"cpu_percent": cpu_percent, "rss_bytes": rss_bytes}),
        "tasks": json.dumps(_tasks(core)),
        "messages": json.dumps({"sent": dict(sent), "received": dict(received)}),
        "totals": json.dumps(_totals(core, len(functions))),
        "workers": _rows(map(_worker, nlargest(MAX_ROWS, workers, key=_interest)), WORKERS_BYTES),
        "clients": _rows(
            map(_client, nlargest(MAX_ROWS, core.clients.values(), key=lambda client: len(client.tasks))),
            CLIENTS_BYTES,
        ),
        "managers": _rows(map(_manager, core.elastic.managers.values()), MANAGERS_BYTES),
        "functions": _rows(
            ({"name": name[:MAX_TEXT], "tasks": count} for name, count in functions.most_common(MAX_ROWS)),
            FUNCTIONS_BYTES,
        ),
    }
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}").encode()


def _rows(rows: Iterable[dict[str, object]], size_bytes: int) -> str:
    """Return the rows that fit, as a JSON list."""
    texts: list[str] = []
    for row in rows:
        text = json.dumps(row)
        size_bytes -= len(text) + 2
        if size_bytes < 0 or len(texts) == MAX_ROWS:
            break
        texts.append(text)
    return "[" + ", ".join(texts) + "]"


def _tasks(core: SchedulerCore) -> dict[str, object]:
    return {
        "waiting": core.tasks.waiting,
        "ready": core.ready.count,
        "assigned": sum(len(worker.tasks) for worker in core.workers.values()),
        "ended": {_ended(Outcome(code)): count for code, count in core.tasks.ended.items()},
    }


def _ended(outcome: Outcome) -> str:
    """Return how monitors call the way in which a task ended."""
    return "done" if outcome is Outcome.SUCCESS else outcome.name.lower()


def _totals(core: SchedulerCore, functions: int) -> dict[str, int]:
    workers = core.workers.values()
    return {
        "workers": len(workers),
        "slots": sum(worker.slots for worker in workers),
        "draining": sum(worker.draining for worker in workers),
        "disconnected": sum(worker.broken_at is not None for worker in workers),
        "clients": len(core.clients),
        "managers": len(core.elastic.managers),
        "functions": functions,
    }


def _interest(worker: Worker) -> tuple[bool, int, int]:
    troubled = worker.broken_at is not None or worker.draining or worker.stalled
    return troubled, worker.failures_in_row, len(worker.tasks)


def _client(client: Client) -> dict[str, object]:
    return {"id": client.id.hex(), "name": client.name[:MAX_TEXT], "tasks": len(client.tasks)}


def _manager(record: ManagerRecord) -> dict[str, object]:
    return {
        "id": record.details.manager_id[:MAX_TEXT],
        "kind": record.details.kind[:MAX_TEXT],
        "running": len(record.running_units),
        "units": len(record.status.units) if record.status is not None else 0,
        "desired": record.told[0] if record.told is not None else None,
        "reason": record.decision.reason[:MAX_TEXT] if record.decision is not None else "",
        "decision": _decision(record.decision) if record.decision is not None else None,
        "trouble": record.status.trouble[:MAX_TEXT] if record.status is not None else "",
    }


def _decision(decision: ScalingDecided) -> dict[str, object]:
    inputs = asdict(decision.inputs)
    inputs["trouble"] = decision.inputs.trouble[:MAX_TEXT]
    return {"units": decision.units, "draining": decision.draining, "reason": decision.reason[:MAX_TEXT], **inputs}


def _worker(worker: Worker) -> dict[str, object]:
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
            for processor in heartbeat.processors[:MAX_PROCESSORS_LISTED]
        ],
    }
