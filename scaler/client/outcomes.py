"""What a task's outcome becomes in its future."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import assert_never

from scaler.errors import (
    ObjectLostError,
    PoisonTaskError,
    ProcessorDiedError,
    ProtocolError,
    ScalerError,
    SerializationError,
    TaskError,
    TaskRejectedError,
    TaskTimeoutError,
    WorkerLostError,
)
from scaler.protocol.messages import Outcome
from scaler.serialization import Parts, Serializer, load_exception, load_value, parts_of
from scaler.serialization.exceptions import assign
from scaler.serialization.pickling import Buffer
from scaler.serialization.unpicklable import describe

Ended = tuple[object, BaseException | None]
"""Value and exception, one of them None."""


def load_ended(outcome: int, payload: bytes, serializer: Serializer | None) -> Ended:
    """Return what an inline payload says. Never raises: what cannot be loaded is the future's exception."""
    if outcome == Outcome.SUCCESS:
        return _value(parts_of(payload), serializer) if payload else (None, None)
    return None, _exception(Outcome(outcome), payload)


def load_fetched(outcome: int, parts: Parts, serializer: Serializer | None) -> Ended:
    """Return what the parts of a stored payload say. Never raises."""
    if outcome == Outcome.SUCCESS:
        return _value(parts, serializer)
    return None, _exception(Outcome(outcome), bytes(parts[0]))


def copy_of(exception: BaseException) -> BaseException:
    """Return a copy for one future or item of what several share; the same when it cannot be copied."""
    try:
        twin = copy.copy(exception)
    except Exception:  # noqa: BLE001 (a user's exception may need other arguments than it has)
        return exception
    if type(twin) is not type(exception):
        return exception
    assign(twin, "__cause__", exception.__cause__)
    twin.__dict__.pop("__notes__", None)
    return twin


def _value(parts: Sequence[Buffer], serializer: Serializer | None) -> Ended:
    try:
        return load_value(parts, serializer), None
    except ScalerError as error:
        return None, error
    except BaseException as error:  # noqa: BLE001 (this is the client's thread: a user's code must not end it)
        return None, SerializationError(f"the result cannot be loaded: {describe(error)}")


def _exception(outcome: Outcome, payload: bytes) -> BaseException:
    kind: type[TaskError]
    match outcome:
        case Outcome.EXCEPTION | Outcome.EXCEPTION_TO_RETRY:
            try:
                return load_exception(payload)
            except ProtocolError as error:
                return error
            except BaseException as error:  # noqa: BLE001 (as above)
                return SerializationError(f"the exception of the task cannot be loaded: {describe(error)}")
        case Outcome.CANCELLED:
            return CancelledError()
        case Outcome.TIMED_OUT:
            kind = TaskTimeoutError
        case Outcome.REJECTED:
            kind = TaskRejectedError
        case Outcome.WORKER_LOST:
            kind = WorkerLostError
        case Outcome.PROCESSOR_DIED:
            kind = ProcessorDiedError
        case Outcome.POISON:
            kind = PoisonTaskError
        case Outcome.OBJECT_LOST:
            kind = ObjectLostError
        case Outcome.SUCCESS | Outcome.NOT_STARTED:
            return ProtocolError(f"a task that has ended is said to be {outcome.name}")
        case _:
            assert_never(outcome)
    return kind(payload.decode("utf-8", "replace"))
