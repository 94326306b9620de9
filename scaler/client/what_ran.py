"""What a failed task ran, as the scheduler keeps it: its function, options, arguments and inputs, all as bytes."""

from __future__ import annotations

from typing import NamedTuple

from scaler.client.loop import ClientLoop
from scaler.errors import ObjectLostError, UsageError
from scaler.ids import show
from scaler.protocol.messages import FailedTask, ReadFailure, Spec, is_function_id, is_stored
from scaler.serialization import Parts, parts_of


class WhatRan(NamedTuple):
    """What a task ran: its function, serializer and uploaded code if any, and its inputs in order."""

    spec: Spec
    functions: list[Parts]
    arguments: Parts
    inputs: list[Parts]
    payload: bytes
    """The arguments as they travelled: a reference where they are an object of the storage."""


def what_ran(loop: ClientLoop, task: bytes, verb: str) -> WhatRan:
    """Return what a failed task ran. verb: for errors. Raises UsageError, ObjectLostError, and UnreachableError."""
    found = loop.ask(ReadFailure(task), FailedTask)
    cannot = f"task {show(task)} cannot {verb}"
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
    what_of = {run.spec.function: "its function", run.spec.serializer: "its serializer", run.spec.code: "its code"}
    functions = [parts(each, what_of[identifier]) for identifier, each in found.functions if identifier in what_of]
    # Large arguments are an object as well, the last that the task refers to.
    stored = payload[:17] if is_stored(payload) else None
    inputs = [each for each in (run.inputs[0] if run.inputs else ()) if each[:17] != stored]
    values = [parts(each, f"input {number}") for number, each in enumerate(inputs)]
    return WhatRan(run.spec, functions, parts(payload, "the object with its arguments"), values, payload)
