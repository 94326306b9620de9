"""Task contexts and call spans, in clients. Imported by `Client.trace` and for nested clients."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scaler.client.future import error_of
from scaler.client.options import Options
from scaler.client.task_future import TaskFuture
from scaler.extensions.telemetry import context as c
from scaler.extensions.telemetry.sending import SAMPLED, Ids, TaskSpans, make_provider, record, users_provider

MAX_LINKS = 100


class CallTracer:
    """Observes the tasks of one client."""

    def __init__(self, owner: bytes, ratio: float | None) -> None:
        """ratio: share of sampled traces that begin here; None: the provider's sampler decides."""
        self._owner = owner
        self._ratio = ratio
        self._provider: Any = None
        """Provider for programs that have not set one."""
        self._spans: TaskSpans | None = None

    def context(self, options: Options) -> str:
        caller = trace.get_current_span().get_span_context()
        call = (
            c.trace_id_of(self._owner + options.call.to_bytes(8)) if options.call else 0
        )  # 0: each task has its own trace
        spans, lines = self._current(), dict[str, str]()
        is_sampled = caller.trace_flags.sampled
        if not caller.is_valid:
            default = getattr(spans.provider, "sampler", ALWAYS_ON)
            sampler = default if self._ratio is None else TraceIdRatioBased(self._ratio)
            trace_id = call or Ids().generate_trace_id()
            is_sampled = sampler.should_sample(None, trace_id, options.name or "task").decision.is_sampled()
        if not is_sampled:
            return ""
        if caller.is_valid:
            TraceContextTextMapPropagator().inject(lines)
            W3CBaggagePropagator().inject(lines)
        elif spans.sets_ids:
            lines[c.TRACE] = f"{call:032x}" if call else c.OF_TASK
        if spans.sets_ids:
            lines[c.PARENT] = c.OF_TASK
        return c.dump_context(lines)

    def submitting(self, futures: Sequence[TaskFuture]) -> None:
        with suppress(Exception):  # raised by a user's span processor
            for future in futures:
                spec = None if future.template is None else future.template.spec
                if spec is not None and spec.context and self._current().has_room():
                    self._begin(future, spec.name, c.load_context(spec.context))

    def _current(self) -> TaskSpans:
        """Return the spans of the program's current provider."""
        provider = users_provider() or self._provider
        if provider is None:
            provider = self._provider = make_provider("scaler-client", is_flushed=True)
        if self._spans is None or self._spans.provider is not provider:
            self._spans = TaskSpans(provider)
        return self._spans

    def _begin(self, future: TaskFuture, name: str, lines: dict[str, str]) -> None:
        spans, place = self._current(), c.place_of(lines, future.task_id)
        if place is None or c.PARENT not in lines:
            return
        parent, attributes = Context(), {"scaler.task.id": future.task_id.hex()}
        if place.caller_id:
            caller = trace.SpanContext(place.trace_id, place.caller_id, True, SAMPLED)
            parent = trace.set_span_in_context(trace.NonRecordingSpan(caller), parent)
        needed = [each.task_id for each in future.references[:MAX_LINKS] if isinstance(each, TaskFuture)]
        links = [trace.Link(trace.SpanContext(place.trace_id, c.span_id_of(task), True, SAMPLED)) for task in needed]
        ids = place.trace_id, place.parent_id
        span = spans.start(name, parent, trace.SpanKind.PRODUCER, attributes, links, ids=ids)
        if future.template is not None and future.template.has_chunks:
            span.set_attribute("scaler.calls", future.calls)
        future.add_done_callback(partial(_end, span))


def _end(span: Any, future: Future[Any]) -> None:
    error = None if future.cancelled() else error_of(future)
    if error is not None:
        record(span, error)
    outcome = "cancelled" if future.cancelled() else "success" if error is None else "exception"
    span.set_attribute("scaler.outcome", outcome)
    span.end()
