"""What happened as JSON: tasks as rows of a table, decisions and incidents as objects. Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scaler.protocol.messages import Outcome
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.facts import (
    Fact,
    PeerJoined,
    PeerLost,
    PeerProtocolError,
    PolicyFailed,
    ScalingDecided,
    TaskRetried,
    TasksEnded,
    WorkerQuarantined,
)
from scaler.scheduler.core.state import Task
from scaler.scheduler.status import state_name
from scaler.scheduler.worker_rows import MAX_TEXT, living_task

MAX_RUNNING_ROWS = 500
MAX_FAILURE_TEXT = 1_000
MAX_TRACEBACK = 16 * 1024
TASKS_BYTES = 640 * 1024
"""All rows of a table together."""

COLUMNS = (
    "id",
    "state",
    "function",
    "client",
    "worker",
    "attempt",
    "ended_at",
    "duration_us",
    "cpu_us",
    "peak_bytes",
    "text",
    "traceback",
)
_RUNNING, _RETRYING = _LIVING = ("running", "retrying")
"""States of tasks that have not ended."""
Row = tuple[Any, ...]
"""Values of COLUMNS."""
Place = tuple[int, int]
"""When something came, among all that came: number of the fact, index in it."""


def ended_row(ended: TasksEnded, index: int, at: float) -> Row:
    """Return the row of a task that ended."""
    outcome = ended.outcomes[index]
    text = traceback = ""
    if outcome not in (Outcome.SUCCESS, Outcome.CANCELLED):
        failure = ended.failure(index)
        text, traceback = failure.text, failure.traceback
    elif ended.attempt_errors(index):
        text = "; ".join(ended.attempt_errors(index))
    return (
        ended.ids[index].hex(),
        state_name(outcome),
        ended.function(index)[:MAX_TEXT],
        ended.client(index)[:MAX_TEXT],
        ended.worker(index)[:MAX_TEXT],
        ended.attempt(index),
        at,
        *ended.profile(index),
        text[:MAX_FAILURE_TEXT],
        traceback[:MAX_TRACEBACK],
    )


def retried_row(fact: TaskRetried, at: float) -> Row:
    """Return the row of a task whose attempt failed, and which is to run again."""
    text = fact.reason[:MAX_FAILURE_TEXT]
    return (*_who(fact.task, _RETRYING, fact.worker), fact.attempt, at, 0, 0, 0, text, "")


def running_row(task: Task, worker: str, seconds: float) -> Row:
    """Return the row of a task that has been running for so long."""
    duration_us = int(max(0.0, seconds) * 1e6)
    return (*_who(task, _RUNNING, worker), task.attempt, None, duration_us, 0, 0, "", "")


def _who(task: Task, state: str, worker: str) -> Row:
    group = task.group
    return task.id.hex(), state, group.spec.name[:MAX_TEXT], group.client.name[:MAX_TEXT], worker[:MAX_TEXT]


def running_rows(core: SchedulerCore) -> list[tuple[bytes, Row]]:
    """Return the tasks that workers said in their last heartbeats that they run, with their rows."""
    rows: list[tuple[bytes, Row]] = []
    now = core.own_time(core.history.now)
    for worker in core.workers.values():
        for processor in worker.heartbeat.processors if worker.heartbeat is not None else ():
            if len(rows) == MAX_RUNNING_ROWS:
                return rows
            task = living_task(core, processor.running)
            if task is not None:
                seconds = processor.running_seconds + now - worker.heartbeat_at
                rows.append((task.id, running_row(task, worker.name, seconds)))
    return rows


def table(rows: list[tuple[Place, Row]]) -> tuple[str, int]:
    """Return rows as a JSON list in the order of their places, and how many of them are of tasks that ended.

    If they are too large, the last ones are left out, and tracebacks before them.
    """
    in_order = [row for _, row in sorted(rows, key=_place_of)]
    text = json.dumps(in_order)
    if len(text) <= TASKS_BYTES:
        return text, sum(row[1] not in _LIVING for row in in_order)
    tracebacks = TASKS_BYTES // 2
    kept: list[tuple[Place, str]] = []
    told = 0
    size = 2
    for place, row in rows:
        tracebacks -= len(row[-1])
        text = json.dumps(row if tracebacks >= 0 else (*row[:-1], ""))
        size += len(text) + 2
        if size > TASKS_BYTES:
            break
        kept.append((place, text))
        told += row[1] not in _LIVING
    return f"[{', '.join(text for _, text in sorted(kept, key=_place_of))}]", told


def _place_of(entry: tuple[Place, object]) -> Place:
    return entry[0]


def last_objects(documents: Sequence[dict[str, object]], size_bytes: int) -> str:
    """Return the last documents that fit, as a JSON list."""
    texts: deque[str] = deque()
    for document in reversed(documents):
        text = json.dumps(document)
        size_bytes -= len(text) + 2
        if size_bytes < 0:
            break
        texts.appendleft(text)
    return f"[{', '.join(texts)}]"


def decision(fact: ScalingDecided, at: float) -> dict[str, object]:
    inputs = asdict(fact.inputs)
    inputs["trouble"] = fact.inputs.trouble[:MAX_TEXT]
    return {
        "at": at,
        "manager": fact.manager_id[:MAX_TEXT],
        "units": fact.units,
        "draining": fact.draining,
        "reason": fact.reason[:MAX_TEXT],
        "inputs": inputs,
    }


def incident(fact: Fact, at: float) -> dict[str, object]:
    match fact:
        case PeerJoined(kind, _, name):
            what, subject, text = "joined", f"{kind} {name}", ""
        case PeerLost(kind, _, name, reason):
            what, subject, text = "left", f"{kind} {name}", reason
        case WorkerQuarantined(_, name, reason):
            what, subject, text = "quarantined", f"worker {name}", reason
        case TaskRetried():
            what, subject, text = "retried", f"task {fact.task.id.hex()}", fact.reason
        case PolicyFailed(text=reason):
            what, subject, text = "policy", "scaling policy", reason
        case PeerProtocolError(peer, reason):
            what, subject, text = "nonsense", f"peer {peer.hex()}", reason
        case _:
            raise AssertionError(f"a {type(fact).__name__} is no incident")
    return {"at": at, "kind": what, "subject": subject[:MAX_TEXT], "text": text[:MAX_FAILURE_TEXT]}
