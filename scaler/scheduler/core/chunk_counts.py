"""Counts the calls of chunks, which can end in different ways. Pure."""

from __future__ import annotations

from scaler.protocol.messages import Done, Outcome
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Task

_SENT_AGAIN = (
    Outcome.EXCEPTION,
    Outcome.PROCESSOR_DIED,
    Outcome.TIMED_OUT,
    Outcome.MEMORY_LIMIT,
    Outcome.OBJECT_LOST,
)
"""If a chunk of a map ends like this without counts from its worker, the client resubmits each call as a task."""


Calls = dict[bytes, tuple[int, int]]
"""By chunk: numbers of ended and of failed calls."""


def calls_of(message: Done) -> Calls:
    failed = message.failed_calls or [0] * len(message.calls)
    return {task: (ended, bad) for task, ended, bad in zip(message.ids, message.calls, failed, strict=True) if ended}


def recount(state: ClusterState, calls: Calls, task: Task, outcome: int, duration_us: int) -> None:
    """Count the calls that ended in a chunk, instead of one call. The client resubmits the remaining ones."""
    group, function = task.group, task.group.function
    submitted = group.calls.pop(task.id, 1)
    group.more -= submitted - 1
    state.counts.more -= submitted - 1
    done = failed = cancelled = 0
    called = calls.get(task.id)
    if called is not None:
        ended, failed = called
        done = max(0, ended - failed)
        group.timing.has_chunks = group.timing.has_chunks or ended > 1
    elif outcome == Outcome.SUCCESS:
        done = submitted
    elif outcome == Outcome.CANCELLED:
        cancelled = submitted
    elif submitted == 1 or outcome not in _SENT_AGAIN or not group.spec.deliver:  # nodes of a graph are not resubmitted
        failed = submitted
    counted = done + failed + cancelled
    state.counts.ended[outcome] -= 1
    state.counts.ended[Outcome.SUCCESS] += done
    state.counts.ended[Outcome.EXCEPTION if outcome == Outcome.SUCCESS else outcome] += failed
    state.counts.ended[Outcome.CANCELLED] += cancelled
    for record in group.records:
        record.failed += failed - (outcome not in (Outcome.SUCCESS, Outcome.CANCELLED))
        record.cancelled += cancelled - (outcome == Outcome.CANCELLED)
        if record is not function:
            record.submitted += counted - submitted
    function.more += counted - submitted
    if not duration_us and outcome:
        function.untimed += counted - 1
    if not counted:
        function.wall_us -= duration_us
