"""Followers: chains of short tasks that are sent to a worker together. Pure.

Each follower needs the value of the task before, and the worker starts it as soon as that task succeeds. Until the
scheduler learns of the success, a follower is `Waiting`; then it is `Assigned`. A long chain thus needs no round trip
per task. If the worker is lost, recalled, or drained, it had only the first task, and if a task fails, its followers
count as never sent.

A task may follow only where waiting elsewhere could not be better: the task before has no other dependent, both have
equal needs, and all tasks that run without a decision of the scheduler take at most `MAX_SECONDS` by measured means.
"""

from __future__ import annotations

from scaler.ids import is_task
from scaler.protocol.messages import is_stored
from scaler.scheduler.core.state import Task, Waiting

MAX_SECONDS = 0.01
"""Seconds of work per chain, equal to the work that agents send ahead to a processor."""
MAX_FOLLOWERS = 1000
MAX_BYTES = 64 * 1024
"""Arguments and inputs of a chain, which may be sent in vain."""

Follower = tuple[Task, tuple[bytes, ...]]
"""A task with the payloads of its references; an empty payload stands for the value of the task before."""


def followers_of(first: Task, most: int) -> list[Follower]:
    found: list[Follower] = []
    needs = first.needs
    if not first.group.spec.retries or needs.is_counted:
        return found
    seconds, size_bytes, last = first.group.timing.seconds, 0, first
    while len(found) < most and last.dependents is not None and len(last.dependents) == 1:
        (task,) = last.dependents
        seconds += task.group.timing.seconds
        if seconds > MAX_SECONDS or not _may_follow(task) or task.needs != needs:
            break
        inputs = _inputs(task, last)
        if inputs is None:
            break
        size_bytes += len(task.payload) + sum(map(len, inputs))
        if size_bytes > MAX_BYTES:
            break
        found.append((task, inputs))
        last = task
    return found


def _may_follow(task: Task) -> bool:
    state = task.state
    return type(state) is Waiting and state.missing == 1 and task.errors is None and task.group.spec.retries > 0


def _inputs(task: Task, before: Task) -> tuple[bytes, ...] | None:
    """Return a task's input payloads; None if some are stored objects, which another worker may have nearer."""
    retained = task.group.client.retained
    payloads = [
        b"" if each == before.id else retained[each].payload if is_task(each) and each in retained else None
        for each in task.references
    ]
    inputs = tuple(each for each in payloads if each is not None and not is_stored(each))
    return inputs if len(inputs) == len(payloads) else None
