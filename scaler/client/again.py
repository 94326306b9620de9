"""Runs failed tasks again as tasks of the requesting client, with copies of their functions, arguments, and inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

from scaler.client.chunks import MapFunction
from scaler.client.functions import TemplateTable
from scaler.client.future import ScalerFuture, check_future
from scaler.client.futures import FutureTable
from scaler.client.loop import ClientLoop
from scaler.client.task_future import TaskFuture
from scaler.errors import ObjectLostError, SerializationError, UsageError
from scaler.ids import show, task_id_of
from scaler.protocol.messages import FailedTask, ReadFailure, Spec, is_function_id, is_stored
from scaler.serialization import Parts, dump_function, load_function, load_serializer, parts_of


class WhatRan(NamedTuple):
    spec: Spec
    functions: list[Parts]
    arguments: Parts
    inputs: list[Parts]
    payload: bytes
    """The arguments as sent: a reference if they are a stored object."""


def what_ran(loop: ClientLoop, task: bytes, verb: str) -> WhatRan:
    """Return the function and values of a failed task. verb: for errors. Raises UsageError and ObjectLostError."""
    found = loop.ask(ReadFailure(task), FailedTask)
    cannot = f"task {show(task)} cannot {verb}"
    if not found.runs:
        raise UsageError(f"{cannot}: {found.text}")

    def parts(payload: bytes, what: str) -> Parts:
        if not is_stored(payload):
            return [*parts_of(payload)]
        try:
            return loop.transfers.fetch(payload[1:17])
        except ObjectLostError as error:
            raise ObjectLostError(
                f"{cannot}: {what} is gone: its client disconnected or released it ({error})"
            ) from None

    if not all(is_stored(payload) or is_function_id(each, payload) for each, payload in found.functions):
        raise ObjectLostError(f"{cannot}: the scheduler sent a different function")
    [run] = found.runs
    [payload] = run.payloads
    what_of = {run.spec.function: "its function", run.spec.serializer: "its serializer", run.spec.code: "its code"}
    functions = [parts(each, what_of[identifier]) for identifier, each in found.functions if identifier in what_of]
    # Large arguments are a stored object as well, the last reference of the task.
    stored = payload[:17] if is_stored(payload) else None
    inputs = [each for each in (run.inputs[0] if run.inputs else ()) if each[:17] != stored]
    values = [parts(each, f"input {number}") for number, each in enumerate(inputs)]
    return WhatRan(run.spec, functions, parts(payload, "the object with its arguments"), values, payload)


def id_of_task(task: ScalerFuture | bytes | str) -> bytes:
    if issubclass(type(task), str):
        return task_id_of(cast("str", task))
    if type(task) is bytes:
        return task_id_of(task.hex())
    check_future(task)
    return cast("ScalerFuture", task).task_id


def run_again(
    loop: ClientLoop, futures: FutureTable, templates: TemplateTable, task: bytes, parent: bytes
) -> TaskFuture:
    """Submit a failed task again. Raises UsageError, and ObjectLostError that names the lost part."""
    ran = what_ran(loop, task, "run again")
    spec, functions = ran.spec, _leaving_nothing(ran)
    if functions is not ran.functions:
        spec = replace(spec, timeout_seconds=0.0)  # each item of the chunk has its own limit
    template = templates.of_parts(spec, functions, parent)
    uploads = [futures.upload(each) for each in ran.inputs]
    payload = ran.payload
    if is_stored(payload):
        uploads.append(futures.upload(ran.arguments))
        payload = uploads[-1].payload
    future = TaskFuture(futures, futures.ids.task(), template, payload, tuple(uploads), tuple(uploads))
    futures.add((future,))
    return future


def _leaving_nothing(ran: WhatRan) -> list[Parts]:
    """Return the functions of a task; for a chunk, modified so that it leaves no items to its map."""
    if not any(b"MapFunction" in part for part in map(bytes, ran.functions[0])):
        return ran.functions
    serializer = load_serializer(ran.functions[1]) if ran.spec.serializer else None
    try:
        function = load_function(ran.functions[0], serializer)
    except SerializationError:  # loads only on workers, where it runs unmodified
        return ran.functions
    if not isinstance(function, MapFunction):
        return ran.functions
    return [dump_function(function.without_leaving(), serializer), *ran.functions[1:]]
