"""Remote side of an offloaded task. A program started by a service (batch job, service instance) passes its input to
`run_call` and returns the output. It makes one call at a time, because a task's output is recorded for the whole
process."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from scaler import serialization
from scaler.errors import ConfigError, ProtocolError, RefusedError
from scaler.head_tail import HeadTailBuffer
from scaler.ids import content_id
from scaler.offload.call import Call, CallResult, pack_result, unpack_call
from scaler.protocol.messages import Outcome
from scaler.serialization.arguments import load_arguments
from scaler.serialization.snapshot import Fresh, loading
from scaler.worker.processor import context
from scaler.worker.processor.calling import Meter, failure_of, finish, run_preload
from scaler.worker.processor.capture import MAX_OUTPUT_BYTES, OMITTED_TEXT, TeedStreams, redirected_output
from scaler.worker.processor.functions import Uploads

MAX_LOADED = 64
NO_CLIENTS = (
    "a task that runs as a separate job, without a worker, cannot connect to the scheduler: submit the nested "
    "tasks from the program, or use a worker manager that starts workers"
)

_preloaded: set[str] = set()
_uploads = Uploads()


def run_call(data: serialization.Buffer | Call) -> bytes:
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
        parts: Sequence[serialization.Buffer] = serialization.dump_value(value, serializer)
        outcome = Outcome.SUCCESS
    except BaseException as error:  # noqa: BLE001 (any exception of a task is its result)
        ended_ns = time.monotonic_ns()
        outcome, payload = failure_of(error, lambda error: serialization.load_retry_on(bytes(call.retry_on))(error))  # noqa: PLW0108
        parts = [payload]
    duration_us = (ended_ns - began_ns) // 1000
    return pack_result(CallResult(outcome, parts, duration_us, meter.cpu_us, meter.peak_bytes, *texts))


def _preload(text: str) -> None:
    """Call the operator's hook once per process. After a ConfigError, the next task calls it again."""
    if not text or text in _preloaded:
        return
    try:
        run_preload(text)
    except BaseException as error:
        raise ConfigError(f"preload {text} failed: {type(error).__name__}: {error}") from error
    _preloaded.add(text)


def _run(call: Call) -> tuple[Any, serialization.Serializer | None]:
    with loading:
        code = bytes(call.code)
        identifier = content_id(code) if code else b""
        _uploads.use(identifier, lambda: bytes(serialization.parts_of(code)[0]))
        fresh, serializer = _loaded(bytes(call.function), bytes(call.serializer), identifier)
        function = fresh.get()

        def value(index: int) -> Any:
            return serialization.load_value(serialization.parts_of(call.inputs[index]), serializer, f"input {index}")

        args, kwargs = load_arguments(serialization.parts_of(call.arguments), value, serializer)
    return finish(function(*args, **kwargs)), serializer


@lru_cache(MAX_LOADED)
def _loaded(
    function: bytes, serializer: bytes, _code: bytes
) -> tuple[Fresh[Callable[..., Any]], serialization.Serializer | None]:
    bound = (
        serialization.load_serializer(serialization.parts_of(serializer))
        if serializer
        else serialization.format_of(function)
    )
    return Fresh(lambda: serialization.load_function(serialization.parts_of(function), bound)), bound


# -- output, recorded until the task ends

PRINTED_BYTES = 12 * 1024
"""Maximum bytes kept of each stream's head and tail. Equals the scheduler's limit, so no text is truncated twice."""
_READ_BYTES = 64 * 1024

Texts = tuple[bytearray, bytearray]


@contextlib.contextmanager
def printed_output(texts: Texts) -> Iterator[None]:
    """Context manager that also records the text that Python code prints (head and tail of a long text)."""
    buffers = [HeadTailBuffer(PRINTED_BYTES, PRINTED_BYTES) for _ in texts]

    def keep(is_stderr: bool, text: str) -> None:
        buffers[is_stderr].add(text.encode("utf-8", "backslashreplace"))

    try:
        with TeedStreams(keep):
            yield
    finally:
        for text, buffer in zip(texts, buffers, strict=True):
            text.extend(buffer.text())


@contextlib.contextmanager
def recorded_output(texts: Texts) -> Iterator[None]:
    """Context manager that records up to MAX_OUTPUT_BYTES from each of descriptors 1 and 2, and discards the rest."""
    over, end = os.pipe()
    with contextlib.ExitStack() as after:
        after.callback(os.close, over)
        with redirected_output() as readers:
            thread = threading.Thread(target=_record, args=(readers, over, texts), name="recorded-output", daemon=True)
            thread.start()
            for reader in readers:
                after.callback(os.close, reader)
            after.callback(thread.join)
            after.callback(os.close, end)
            yield


def _record(readers: Sequence[int], over: int, texts: Texts) -> None:
    poll = select.poll()
    for descriptor in (*readers, over):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ready == [over]:
            return
        for reader, text in zip(readers, texts, strict=True):
            if reader in ready:
                read = os.read(reader, _READ_BYTES)
                if not read:
                    poll.unregister(reader)
                elif len(text) <= MAX_OUTPUT_BYTES:  # otherwise, the omission is already marked
                    text.extend(read)
                    if len(text) > MAX_OUTPUT_BYTES:
                        text[MAX_OUTPUT_BYTES:] = OMITTED_TEXT
