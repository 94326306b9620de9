"""Spans for the time that tasks spend in the scheduler's queue."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context

from scaler.extensions.interface import Performer
from scaler.extensions.telemetry.context import load_context, place_of
from scaler.extensions.telemetry.core import QueuedTask
from scaler.extensions.telemetry.sending import SAMPLED, TaskSpans, make_provider


class QueueSpans(Performer):
    def __init__(self, endpoint: str) -> None:
        self._spans = TaskSpans(make_provider("scaler-scheduler", endpoint))

    def perform(self, work: Sequence[QueuedTask]) -> None:
        for each in work:
            place = place_of(load_context(each.context), each.task)
            if place is None or not place.parent_id or not self._spans.has_room():
                continue
            parent = trace.SpanContext(place.trace_id, place.parent_id, True, SAMPLED)
            span = self._spans.start(
                f"{each.name} queued",
                trace.set_span_in_context(trace.NonRecordingSpan(parent), Context()),
                attributes=each.attributes,
                start_time=round(each.arrived_at * 1e9),
            )
            for number, text in enumerate(each.errors, 1):
                span.add_event("failed attempt", {"scaler.attempt": number, "exception.message": text})
            span.end(round(each.began_at * 1e9))

    def close(self) -> None:
        self._spans.end()
