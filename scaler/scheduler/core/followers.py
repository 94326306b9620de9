"""Runs of short tasks, each of which needs the value of the one before: they go to a worker together. Pure.

The first of them is sent as any other task. Its *followers* are sent with it: the worker runs each as soon as the one
before has succeeded, without asking. For the scheduler, each is `Waiting` until it learns that, and then `Assigned`.
So a long chain does not cost a round trip for each of its tasks, and a worker that is lost, recalled or drained had
nothing but the first one. What follows a task that fails there was never sent.

Followers are chosen where waiting elsewhere could not be better: the task before has no other dependent, its worker
suits both, and all that runs without a decision of the scheduler takes `MAX_SECONDS` together by the measured means.
"""

from __future__ import annotations

from scaler.ids import is_task
from scaler.protocol.messages import is_stored
from scaler.scheduler.core.state import Task, Waiting

MAX_SECONDS = 0.01
"""As far as agents send ahead to a processor."""
MAX_FOLLOWERS = 1000
MAX_BYTES = 64 * 1024
"""Arguments and inputs of a run: what may have been sent in vain."""

Follower = tuple[Task, tuple[bytes, ...]]
"""A task, and the payloads of what it references: an empty one stands for the value of the task before."""


def followers_of(first: Task, most: int) -> list[Follower]:
    """Return the tasks that may run behind one that is sent to a worker, in order."""
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
    """Return whether a task waits for the one before only, and may start twice."""
    state = task.state
    return type(state) is Waiting and state.missing == 1 and task.errors is None and task.group.spec.retries > 0


def _inputs(task: Task, before: Task) -> tuple[bytes, ...] | None:
    """Return the payloads of what a task references; None when some are stored, which may be nearer elsewhere."""
    retained = task.group.client.retained
    payloads = [
        b"" if each == before.id else retained[each].payload if is_task(each) and each in retained else None
        for each in task.references
    ]
    inputs = tuple(each for each in payloads if each is not None and not is_stored(each))
    return inputs if len(inputs) == len(payloads) else None
