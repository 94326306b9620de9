"""The far end of an offloaded task: runs one call in this process, and returns its result as bytes.

A program that a service starts (a batch job, a service instance) gives `run_call` what it was handed, and hands back
what it returns. One call at a time: a task's output is that of its whole process.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from scaler.errors import ConfigError, ProtocolError, RefusedError
from scaler.ids import content_id
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    Buffer,
    Serializer,
    dump_value,
    load_arguments,
    load_function,
    load_retry_on,
    load_serializer,
    load_value,
    parts_of,
)
from scaler.worker.call import Call, CallResult, pack_result, unpack_call
from scaler.worker.processor import context
from scaler.worker.processor.calling import failure_of, finish, run_preload
from scaler.worker.processor.capture import PrintedOutput, RecordedOutput
from scaler.worker.processor.resources import Meter

MAX_LOADED = 64
"""Functions that a process keeps loaded between its calls, as a processor does."""
NO_CLIENTS = (
    "this task runs as a job of its own, where no worker is, so that no client inside it reaches the scheduler: "
    "submit its tasks from outside, or run it on a worker manager with workers"
)


_loaded: OrderedDict[bytes, tuple[Callable[..., Any], Serializer | None]] = OrderedDict()
_preloaded: set[str] = set()


def run_call(data: Buffer) -> bytes:
    """Run a packed call, and return its packed result. Raises nothing: whatever goes wrong is a result, too."""
    context.refuse_clients(NO_CLIENTS)
    try:
        call = unpack_call(data)
    except (ProtocolError, RefusedError) as error:
        outcome, payload = failure_of(error, __file__)
        return pack_result(CallResult(outcome, [payload]))
    meter = Meter() if call.profiling else None
    recorded = RecordedOutput() if call.stream_output else PrintedOutput()
    began_ns = time.monotonic_ns()
    try:
        _preload(call.preload)
        began_ns = time.monotonic_ns()
        with contextlib.ExitStack() as stack:
            stack.enter_context(recorded)
            if meter is not None:
                stack.enter_context(meter)
            value, serializer = _run(call)
        duration_us = (time.monotonic_ns() - began_ns) // 1000
        parts: Sequence[Buffer] = dump_value(value, serializer)
        outcome = Outcome.SUCCESS
    except BaseException as error:  # noqa: BLE001 (whatever a task raises is its result)
        duration_us = (time.monotonic_ns() - began_ns) // 1000
        outcome, payload = failure_of(
            error, __file__, lambda error: isinstance(error, load_retry_on(bytes(call.retry_on)))
        )
        parts = [payload]
    return pack_result(
        CallResult(
            outcome=outcome,
            parts=parts,
            duration_us=duration_us,
            cpu_us=0 if meter is None else meter.cpu_us,
            peak_bytes=0 if meter is None else meter.peak_bytes,
            stdout=recorded.stdout,
            stderr=recorded.stderr,
        )
    )


def _preload(text: str) -> None:
    """Call the operator's hook, once in this process. Raises ConfigError; the next task tries it again."""
    if not text or text in _preloaded:
        return
    try:
        run_preload(text)
    except BaseException as error:
        raise ConfigError(f"preload {text} failed: {type(error).__name__}: {error}") from error
    _preloaded.add(text)


def _run(call: Call) -> tuple[Any, Serializer | None]:
    function, serializer = _load(call)

    def value(index: int) -> Any:
        return load_value(parts_of(call.inputs[index]), serializer, f"input {index}")

    args, kwargs = load_arguments(parts_of(call.arguments), value, serializer)
    return finish(function(*args, **kwargs)), serializer


def _load(call: Call) -> tuple[Callable[..., Any], Serializer | None]:
    """Load a call's function and serializer, or take those of an earlier call. Raises SerializationError."""
    key = content_id(call.function, b"|", call.serializer)
    loaded = _loaded.get(key)
    if loaded is None:
        serializer = load_serializer(parts_of(call.serializer)) if call.serializer else None
        loaded = _loaded[key] = load_function(parts_of(call.function), serializer), serializer
        if len(_loaded) > MAX_LOADED:
            _loaded.popitem(last=False)
    else:
        _loaded.move_to_end(key)
    return loaded
