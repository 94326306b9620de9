"""What monitors are told: the state of the core as one JSON document, aggregated, O(workers).

The document has these parts:

- `version`, `at` (unix seconds), `incarnation` (made anew at every start of the scheduler).
- `scheduler`: its own load, for how many seconds it runs, and its longest step since the last report. `storage`: how
  full the object storage is, once it has said so.
- `tasks`: how many are in each state now, and how many ended in each way so far. `assigned` are those that workers have
  and that are not suspended; as many of them as fit into slots are `running`.
- `messages`: how many were sent and received, by kind.
- `totals`: how many workers, slots, clients, managers and functions there are, and how many workers are draining or out
  of contact.
- `workers`, `clients`, `managers`, `functions`: a row each, at most `MAX_ROWS` of them and as many as fit in the part's
  share of the document. `totals` says how many there are. Workers in trouble come first, then those with the most
  tasks; clients and functions with the most tasks come first. A client or function whose task is suspended has it
  running.

So the document fits in a control message however large the cluster is. Texts are cut at `MAX_TEXT` characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import nlargest
from itertools import chain

from scaler.protocol.messages import Outcome, StorageStatus, UnitState
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.elastic import pending_units
from scaler.scheduler.core.facts import ScalingDecided
from scaler.scheduler.core.state import Client, Function, Group, ManagerRecord, Worker
from scaler.scheduler.worker_rows import MAX_TEXT, running_tasks, worker_row

VERSION = 1
MAX_ROWS = 500
"""Rows of any list."""
WORKERS_BYTES = 640 * 1024
CLIENTS_BYTES = MANAGERS_BYTES = FUNCTIONS_BYTES = 96 * 1024


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the core does not know. at: unix seconds; storage is None until the object storage has said how it is."""

    at: float
    incarnation: int
    cpu_percent: float
    rss_bytes: int
    uptime_seconds: float
    step_seconds_max: float
    sent: Mapping[str, int]
    received: Mapping[str, int]
    storage_address: str = ""
    storage: StorageStatus | None = None


def state_name(outcome: int) -> str:
    """Return what monitors call a task that ended this way."""
    return "done" if outcome == Outcome.SUCCESS else Outcome(outcome).name.lower()


def status(core: SchedulerCore, around: Surroundings) -> bytes:
    """Return the document, smaller than `MAX_CONTROL_BYTES`."""
    census = _Census(core)
    parts = {
        "version": str(VERSION),
        "at": json.dumps(around.at),
        "incarnation": json.dumps(around.incarnation),
        "scheduler": json.dumps(_scheduler(around)),
        "storage": json.dumps(_storage(around)),
        "tasks": json.dumps(_tasks(core, census)),
        "messages": json.dumps({"sent": dict(around.sent), "received": dict(around.received)}),
        "totals": json.dumps(_totals(core, len(census.functions))),
        "workers": _rows(
            (worker_row(core, worker) for worker in nlargest(MAX_ROWS, core.workers.values(), key=_interest)),
            WORKERS_BYTES,
        ),
        "clients": _rows(
            (
                _client(client, census)
                for client in nlargest(MAX_ROWS, core.clients.values(), key=lambda client: len(client.tasks))
            ),
            CLIENTS_BYTES,
        ),
        "managers": _rows(map(_manager, core.elastic.managers.values()), MANAGERS_BYTES),
        "functions": _rows(
            (_function(function, census) for function in nlargest(MAX_ROWS, census.functions, key=census.weight)),
            FUNCTIONS_BYTES,
        ),
    }
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}").encode()


class _Census:
    """What is counted over all workers and groups."""

    def __init__(self, core: SchedulerCore) -> None:
        self.running = 0
        self.suspended = 0
        self.by_client: Counter[Client] = Counter()
        self.by_function: Counter[Function] = Counter()
        groups: Counter[Group] = Counter()
        for worker in core.workers.values():
            self.suspended += len(worker.blocked)
            for task in running_tasks(worker):
                self.running += 1
                groups[task.group] += 1
            for identifier in worker.blocked:
                groups[worker.tasks[identifier].group] += 1
        for group, count in groups.items():
            self.by_client[group.client] += count
            self.by_function[group.function] += count
        self.living: Counter[Function] = Counter()
        for client in chain(core.clients.values(), *core.tasks.departed.values()):
            for group in client.groups.values():
                self.living[group.function] += group.live
        self.functions = list(dict.fromkeys(chain(self.living, core.groups.functions.values())))

    def weight(self, function: Function) -> tuple[int, int]:
        return self.living[function], function.submitted


def _scheduler(around: Surroundings) -> dict[str, object]:
    return {
        "cpu_percent": around.cpu_percent,
        "rss_bytes": around.rss_bytes,
        "uptime_seconds": round(around.uptime_seconds, 3),
        "step_seconds_max": round(around.step_seconds_max, 6),
    }


def _storage(around: Surroundings) -> dict[str, object]:
    known = around.storage
    if known is None:
        return {"address": around.storage_address}
    return {
        "address": around.storage_address,
        "objects": known.objects,
        "bytes": known.bytes,
        "limit_bytes": known.limit_bytes,
    }


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


def _tasks(core: SchedulerCore, census: _Census) -> dict[str, object]:
    return {
        "waiting": core.tasks.waiting,
        "ready": core.ready.count,
        "assigned": sum(worker.busy for worker in core.workers.values()),
        "running": census.running,
        "suspended": census.suspended,
        "ended": {state_name(code): count for code, count in core.tasks.ended.items()},
    }


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


def _client(client: Client, census: _Census) -> dict[str, object]:
    living = len(client.tasks)
    return {
        "id": client.id.hex(),
        "name": client.name[:MAX_TEXT],
        "tasks": living,
        "queued": living - census.by_client[client],
        "running": census.by_client[client],
        "ended": client.submitted - living,
        "failed": client.failed,
    }


def _function(function: Function, census: _Census) -> dict[str, object]:
    living = census.living[function]
    return {
        "name": function.name[:MAX_TEXT],
        "queued": living - census.by_function[function],
        "running": census.by_function[function],
        "ended": function.submitted - living,
        "failed": function.failed,
        "seconds_total": function.wall_us / 1e6,
    }


def _manager(record: ManagerRecord) -> dict[str, object]:
    details = record.details
    units = record.status.units if record.status is not None else []
    return {
        "id": details.manager_id[:MAX_TEXT],
        "kind": details.kind[:MAX_TEXT],
        "desired": record.told[0] if record.told is not None else None,
        "running": len(record.running_units),
        "pending": len(pending_units(record)),
        "failed": sum(unit.state is UnitState.FAILED for unit in units),
        "units": len(units),
        "slots": sum(worker.slots for worker in record.running_units.values()),
        "unit_slots": details.unit_slots,
        "max_slots": details.max_concurrency,
        "capabilities": str(record.offers)[:MAX_TEXT],
        "trouble": record.status.degraded_reason[:MAX_TEXT] if record.status is not None else "",
        "reason": record.decision.reason[:MAX_TEXT] if record.decision is not None else "",
        "decision": _decision(record.decision) if record.decision is not None else None,
    }


def _decision(decision: ScalingDecided) -> dict[str, object]:
    """Return a decision with what it was made from."""
    inputs = asdict(decision.inputs)
    inputs["trouble"] = decision.inputs.trouble[:MAX_TEXT]
    return {"units": decision.units, "draining": decision.draining, "reason": decision.reason[:MAX_TEXT], **inputs}
