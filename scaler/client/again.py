"""Runs failed tasks again, as tasks of the asking client.

The scheduler keeps what a failed task ran, whoever submitted it. The asking client sends the same as a task of its own:
same function, options, arguments and inputs, of which it puts copies into the storage.
"""

from __future__ import annotations

from scaler.client.functions import TemplateTable
from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.loop import ClientLoop
from scaler.client.task_future import TaskFuture
from scaler.client.what_ran import what_ran
from scaler.ids import task_id_of
from scaler.protocol.messages import is_stored


def id_of_task(task: ScalerFuture | bytes | str) -> bytes:
    """Return the id of a future's task, or one given as bytes or hexadecimal text. Raises UsageError."""
    identifier = task.task_id if isinstance(task, ScalerFuture) else task
    return task_id_of(identifier) if isinstance(identifier, str) else identifier


def run_again(
    loop: ClientLoop, futures: FutureTable, templates: TemplateTable, task: bytes, parent: bytes
) -> TaskFuture:
    """Submit what a failed task ran. Raises UsageError, and ObjectLostError that says what of it is gone."""
    ran = what_ran(loop, task, "run again")
    template = templates.of_parts(ran.spec, ran.functions, parent)
    uploads = [futures.upload(each) for each in ran.inputs]
    payload = ran.payload
    if is_stored(payload):
        uploads.append(futures.upload(ran.arguments))
        payload = uploads[-1].payload
    future = TaskFuture(futures, futures.ids.task(), template, payload, tuple(uploads), tuple(uploads))
    futures.add((future,))
    return future
