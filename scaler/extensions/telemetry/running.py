"""The spans of tasks that run in this process. Imported for the first traced task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scaler.extensions.telemetry.context import Place, load_context
from scaler.extensions.telemetry.sending import TaskSpans, make_provider, users_provider
from scaler.serialization import describe

MAX_STATUS_CHARACTERS = 1_000
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


def record(span: trace.Span, error: BaseException) -> None:
    with suppress(Exception):  # for example, the exception has no text
        span.set_status(trace.StatusCode.ERROR, describe(error)[:MAX_STATUS_CHARACTERS])
        span.record_exception(error)


def start_spans() -> TaskSpans:
    provider = users_provider()
    if provider is None:
        provider = make_provider("scaler-worker")
        trace.set_tracer_provider(provider)  # also for spans that tasks make
    return TaskSpans(provider)


@lru_cache(64)
def _inherited(text: str) -> tuple[Any, Context]:
    """Return the trace state and the baggage in a task's context."""
    lines = load_context(text)
    span = trace.get_current_span(TraceContextTextMapPropagator().extract(lines, Context()))
    return span.get_span_context().trace_state, W3CBaggagePropagator().extract(lines, Context())


def traced(spans: TaskSpans, name: str, text: str, place: Place, task: bytes, call: Callable[[], Any]) -> Any:
    """Call inside a span or, beyond the rate, in the caller's context. text: the task's context."""
    state, baggage = _inherited(text)
    parent = trace.SpanContext(place.trace_id, place.parent_id, True, SAMPLED, state)
    token = attach(trace.set_span_in_context(trace.NonRecordingSpan(parent), baggage))
    try:
        if not spans.has_room():
            return call()
        span = spans.start(name, None, trace.SpanKind.CONSUMER, {"scaler.task.id": task.hex()})
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                return call()
            except Exception as error:
                record(span, error)
                raise
    finally:
        detach(token)
