"""The context of a task as lines `name: value`, and ids derived from it. Pure.

Tasks with equal contexts share a Spec, so the context names the trace and the caller's span, but not the task. The ids
of a task's own trace and call span are digests of the task id, and therefore equal in client, scheduler, and worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from scaler.ids import content_id

OF_TASK = "task"
"""Value of `TRACE` if each task has its own trace, and of `PARENT` if each task has its own call span."""
TRACE = "scaler-trace"
PARENT = "scaler-parent"
MAX_LINE_CHARACTERS = 1_000
_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def trace_id_of(identifier: bytes) -> int:
    return int.from_bytes(content_id(b"trace", identifier)) or 1


def span_id_of(task: bytes) -> int:
    return int.from_bytes(content_id(b"span", task)[:8]) or 1


def dump_context(lines: Mapping[str, str]) -> str:
    """Return these headers as a context, without long values such as large baggage."""
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if len(value) <= MAX_LINE_CHARACTERS)


def load_context(context: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in context.split("\n") if ": " in line)


class Place(NamedTuple):
    """A task's place in a trace. parent_id: the task's call span, or else the caller's span. caller_id: 0 if none."""

    trace_id: int
    parent_id: int
    caller_id: int


def place_of(lines: Mapping[str, str], task: bytes) -> Place | None:
    """Return the place of a task with these headers, or None if it is not traced. Headers may be malformed."""
    found = _TRACEPARENT.fullmatch(lines.get("traceparent", ""))
    if found is not None:
        trace_id, caller_id = int(found[1], 16), int(found[2], 16)
    elif (trace := lines.get(TRACE, "")) == OF_TASK:
        trace_id, caller_id = trace_id_of(task), 0
    elif re.fullmatch("[0-9a-f]{32}", trace):
        trace_id, caller_id = int(trace, 16), 0
    else:
        return None
    return Place(trace_id, span_id_of(task) if lines.get(PARENT) == OF_TASK else caller_id, caller_id)
