"""Runs failed tasks again, as tasks of the asking client.

The scheduler keeps what a failed task ran, whoever submitted it. The asking client sends the same as a task of its own:
same function, options, arguments and inputs, of which it puts copies into the storage.
"""

from __future__ import annotations

from scaler.client.functions import TemplateTable
from scaler.client.futures import FutureTable
from scaler.client.loop import ClientLoop
from scaler.client.task_future import TaskFuture
from scaler.errors import ObjectLostError, UsageError
from scaler.ids import show
from scaler.protocol.messages import FailedTask, ReadFailure, is_function_id, is_stored
from scaler.serialization import Parts, parts_of

_PARTS = ("its function", "its serializer")


def run_again(
    loop: ClientLoop, futures: FutureTable, templates: TemplateTable, task: bytes, parent: bytes
) -> TaskFuture:
    """Submit what a failed task ran. Raises UsageError, and ObjectLostError that says what of it is gone."""
    found = loop.ask(ReadFailure(task), FailedTask)
    cannot = f"task {show(task)} cannot run again"
    if not found.runs:
        raise UsageError(f"{cannot}: {found.text}")

    def parts(payload: bytes, what: str) -> Parts:
        if not is_stored(payload):
            return [*parts_of(payload)]
        try:
            return loop.fetch(payload[1:17])
        except ObjectLostError as error:
            raise ObjectLostError(f"{cannot}: {what} is gone: its client has left or released it ({error})") from None

    if not all(is_stored(payload) or is_function_id(each, payload) for each, payload in found.functions):
        raise ObjectLostError(f"{cannot}: the scheduler sent another function than its own")
    [run] = found.runs
    [payload] = run.payloads
    functions = [parts(each, what) for (_, each), what in zip(found.functions, _PARTS, strict=False)]
    template = templates.of_parts(run.spec, functions, parent)
    # Large arguments are an object as well, the last that the task refers to.
    arguments = payload[:17] if is_stored(payload) else None
    inputs = [each for each in (run.inputs[0] if run.inputs else ()) if each[:17] != arguments]
    uploads = [futures.upload(parts(each, f"input {number}")) for number, each in enumerate(inputs)]
    if is_stored(payload):
        uploads.append(futures.upload(parts(payload, "the object with its arguments")))
        payload = uploads[-1].payload
    future = TaskFuture(futures, futures.ids.task(), template, payload, tuple(uploads), tuple(uploads))
    futures.add((future,))
    return future
