"""Remote side of an offloaded task. A program started by a service (batch job, service instance) passes its input to
`run_call` and returns the output, one call at a time: a task's output is that of the whole process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from scaler.errors import ConfigError, ProtocolError, RefusedError
from scaler.ids import content_id
from scaler.offload.call import Call, CallResult, pack_result, unpack_call
from scaler.offload.recording import printed_output, recorded_output
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    Buffer,
    Serializer,
    dump_value,
    format_of,
    load_function,
    load_retry_on,
    load_serializer,
    load_value,
    parts_of,
)
from scaler.serialization.arguments import load_arguments
from scaler.serialization.snapshot import Fresh, loading
from scaler.serialization.uploads import Uploads
from scaler.worker.processor import context
from scaler.worker.processor.calling import Meter, failure_of, finish, run_preload

MAX_LOADED = 64
NO_CLIENTS = (
    "a task that runs as a separate job, without a worker, cannot connect to the scheduler: submit its tasks from "
    "the program, or run the task on a worker manager that starts workers"
)

_preloaded: set[str] = set()
_uploads = Uploads()


def run_call(data: Buffer | Call) -> bytes:
    """Run a packed call and return its packed result. Never raises: errors are results."""
    context.refusal = NO_CLIENTS
    try:
        call = data if isinstance(data, Call) else unpack_call(data)
    except (ProtocolError, RefusedError) as error:
        outcome, payload = failure_of(error)
        return pack_result(CallResult(outcome, [payload]))
    meter = Meter()
    texts = bytearray(), bytearray()
    began_ns = time.monotonic_ns()
    try:
        _preload(call.preload)
        began_ns = time.monotonic_ns()
        with (
            recorded_output(texts) if call.stream_output else printed_output(texts),
            meter if call.profiling else contextlib.nullcontext(),
        ):
            value, serializer = _run(call)
        ended_ns = time.monotonic_ns()
        parts: Sequence[Buffer] = dump_value(value, serializer)
        outcome = Outcome.SUCCESS
    except BaseException as error:  # noqa: BLE001 (any exception of a task is its result)
        ended_ns = time.monotonic_ns()
        outcome, payload = failure_of(error, lambda error: load_retry_on(bytes(call.retry_on))(error))  # noqa: PLW0108
        parts = [payload]
    duration_us = (ended_ns - began_ns) // 1000
    return pack_result(CallResult(outcome, parts, duration_us, meter.cpu_us, meter.peak_bytes, *texts))


def _preload(text: str) -> None:
    """Call the operator's hook once per process. Raises ConfigError; the next task retries."""
    if not text or text in _preloaded:
        return
    try:
        run_preload(text)
    except BaseException as error:
        raise ConfigError(f"preload {text} failed: {type(error).__name__}: {error}") from error
    _preloaded.add(text)


def _run(call: Call) -> tuple[Any, Serializer | None]:
    with loading:
        fresh, serializer = _load(bytes(call.function), bytes(call.serializer), bytes(call.code))
        function = fresh.get()

        def value(index: int) -> Any:
            return load_value(parts_of(call.inputs[index]), serializer, f"input {index}")

        args, kwargs = load_arguments(parts_of(call.arguments), value, serializer)
    return finish(function(*args, **kwargs)), serializer


def _load(function: bytes, serializer: bytes, code: bytes) -> tuple[Fresh[Callable[..., Any]], Serializer | None]:
    identifier = content_id(code) if code else b""
    _uploads.use(identifier, lambda: bytes(parts_of(code)[0]))
    return _loaded(function, serializer, identifier)


@lru_cache(MAX_LOADED)
def _loaded(function: bytes, serializer: bytes, _code: bytes) -> tuple[Fresh[Callable[..., Any]], Serializer | None]:
    bound = load_serializer(parts_of(serializer)) if serializer else format_of(function)
    return Fresh(lambda: load_function(parts_of(function), bound)), bound
