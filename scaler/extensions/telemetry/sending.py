"""Makes spans and sends them to a collector. Imported only for traced tasks."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, attach, detach, set_value
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scaler.extensions.telemetry.context import load_context, place_of
from scaler.serialization import describe
from scaler.texts import readable

MAX_QUEUED = 2_048
"""Maximum number of spans waiting for the collector. New spans replace the oldest."""
MAX_BATCH = 512
GATHER_SECONDS = 0.1
"""Time that a span waits for other spans to share a request."""
FLUSH_SECONDS = 2.0
MAX_SPANS_PER_SECOND = 1_000
"""Maximum rate per process. Beyond this, tasks have no spans: tracing must not slow the cluster down."""
MAX_STATUS_CHARACTERS = 1_000
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_log = logging.getLogger(__name__)
_system = random.SystemRandom()
_next = threading.local()
"""Ids of the span that a thread is about to start; 0: random ids. Global, as tracers of one provider are one object."""


def suppress_instrumentation() -> None:
    """Stop libraries from tracing the requests that this thread or coroutine sends to the collector."""
    attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))


class LastMessage(logging.Filter):
    """Drops all messages of a logger but stores the last one with a cause: an exporter logs each attempt."""

    text = "it did not accept them"

    def filter(self, record: logging.LogRecord) -> bool:
        if "max retries or shutdown" not in (text := record.getMessage()):
            self.text = text
        return False


complaint = LastMessage()


def otlp(endpoint: str) -> SpanExporter:
    """Return the exporter for a base address or, if that is empty, for the OTEL_EXPORTER_OTLP_* variables."""
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415 (80 ms)

    logging.getLogger(trace_exporter.__name__).addFilter(complaint)
    return trace_exporter.OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)


class SpanQueue(SpanProcessor):
    """Exports from a thread that starts with the first span, even in a forked child. Loses the oldest spans while the
    collector is unreachable, and logs one warning."""

    def __init__(self, make_exporter: Callable[[], SpanExporter]) -> None:
        self._make_exporter = make_exporter
        self._queue: deque[ReadableSpan] = deque(maxlen=MAX_QUEUED)
        self._pid = 0
        self._is_sending = self._is_failing = False

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._pid != os.getpid():
            self._pid, self._due, self._is_sending = os.getpid(), threading.Event(), False
            self._queue.clear()  # spans of the parent process
            threading.Thread(target=self._run, name="scaler-spans", daemon=True).start()
        self._queue.append(span)
        self._due.set()

    def force_flush(self, timeout_millis: float = FLUSH_SECONDS * 1000) -> bool:
        """Wait until all spans are sent, unless the collector is unreachable."""
        until = time.monotonic() + timeout_millis / 1000
        while self._pid == os.getpid() and (self._queue or self._is_sending) and time.monotonic() < until:
            if self._is_failing:
                return False
            time.sleep(0.001)
        return not self._queue

    def shutdown(self) -> None:
        self.force_flush()

    def _run(self) -> None:
        suppress_instrumentation()
        exporter: SpanExporter | None = None
        while self._due.wait():
            self._is_sending = True  # set before spans are taken, for `force_flush`
            self._due.clear()
            time.sleep(GATHER_SECONDS)
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
                try:
                    exporter = exporter or self._make_exporter()  # which checks the OTEL_* variables
                    failure = "" if exporter.export(batch) is SpanExportResult.SUCCESS else complaint.text
                except Exception as error:  # noqa: BLE001 (must not end the thread)
                    failure = describe(error)
                if failure and not self._is_failing:
                    _log.warning("spans are dropped until the collector accepts them again: %s", failure)
                self._is_failing = bool(failure)
            self._is_sending = False


class Ids(IdGenerator):
    """Generates ids that differ even if tasks seed `random` identically, or uses the ids in `_next`."""

    def generate_span_id(self) -> int:
        return getattr(_next, "span_id", 0) or _system.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return getattr(_next, "trace_id", 0) or _system.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True


def users_provider() -> Any:
    """Return the provider that the program has set, or None."""
    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider) else found


def resource(service: str, **attributes: Any) -> Resource:
    """Return a description of this process. Variables such as OTEL_SERVICE_NAME take precedence."""
    return Resource.create({"service.name": service, **attributes}).merge(OTELResourceDetector().detect())


def make_provider(service: str, endpoint: str = "", *, is_flushed: bool = False) -> TracerProvider:
    """is_flushed: whether to flush when the interpreter exits."""
    process = resource(service, **{"host.name": socket.gethostname(), "process.pid": os.getpid()})
    provider = TracerProvider(resource=process, shutdown_on_exit=is_flushed, id_generator=Ids())
    if os.environ.get("OTEL_TRACES_EXPORTER") != "none":
        provider.add_span_processor(SpanQueue(lambda: otlp(endpoint)))
    return provider


class TaskSpans:
    """Makes spans for tasks that are already sampled."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("scaler")
        self.sets_ids = hasattr(self._tracer, "id_generator")
        """Whether spans can have predefined ids. Only OpenTelemetry's own implementation permits this."""
        if self.sets_ids:
            self._tracer.id_generator, self._tracer.sampler = Ids(), ALWAYS_ON
        self._second = self._count = 0

    def has_room(self) -> bool:
        """Count a span. Returns whether the rate permits it."""
        if (second := int(time.monotonic())) != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= MAX_SPANS_PER_SECOND

    def start(self, name: str, parent: Any, *more: Any, ids: tuple[int, int] = (0, 0), **named: Any) -> Any:
        """Start a span. ids: trace and span ids to use instead of random ids."""
        _next.trace_id, _next.span_id = ids
        try:
            return self._tracer.start_span(name, parent, *more, **named)
        finally:
            _next.trace_id = _next.span_id = 0

    def end(self) -> None:
        with suppress(Exception):  # raised by a user's provider
            self.provider.force_flush(FLUSH_SECONDS * 1000)


def record(span: trace.Span, error: BaseException) -> None:
    with suppress(Exception):  # for example, the exception has no text
        text = readable(describe(error).encode("utf-8", "replace"), MAX_STATUS_CHARACTERS)
        span.set_status(trace.StatusCode.ERROR, text)  # a text that is not UTF-8 would make the exporter lose the batch
        span.record_exception(error)


def present_spans(known: TaskSpans | None) -> TaskSpans:
    """Return the spans of the current provider, which a task's module may have set."""
    provider = users_provider()
    if provider is None:
        # Also for spans that tasks make. Unlike `set_tracer_provider`, this lets tasks still set a provider.
        provider = trace._TRACER_PROVIDER = make_provider("scaler-worker")  # noqa: SLF001
    return known if known is not None and known.provider is provider else TaskSpans(provider)


@lru_cache(64)
def _inherited(text: str) -> tuple[Any, Context]:
    """Return the trace state and the baggage in a task's context."""
    lines = load_context(text)
    span = trace.get_current_span(TraceContextTextMapPropagator().extract(lines, Context()))
    return span.get_span_context().trace_state, W3CBaggagePropagator().extract(lines, Context())


def traced(spans: TaskSpans, name: str, text: str, task: bytes, call: Callable[[], Any]) -> Any:
    """Call a task's function inside a span or, beyond the rate, in the caller's context. text: the task's context."""
    place = place_of(load_context(text), task)
    assert place is not None, "its function was wrapped"
    state, baggage = _inherited(text)
    parent = trace.SpanContext(place.trace_id, place.parent_id, True, SAMPLED, state)
    token = attach(trace.set_span_in_context(trace.NonRecordingSpan(parent), baggage))
    span = trace.INVALID_SPAN
    try:
        if spans.has_room():
            with suppress(Exception):  # raised by a user's span processor
                span = spans.start(name, None, trace.SpanKind.CONSUMER, {"scaler.task.id": task.hex()})
                attach(trace.set_span_in_context(span))
        return call()
    except Exception as error:
        record(span, error)
        raise
    finally:
        detach(token)
        with suppress(Exception):
            span.end()
