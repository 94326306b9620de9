"""The context of a task, and the ids that follow from it."""

from __future__ import annotations

import pytest

from scaler.extensions.telemetry.context import (
    OF_TASK,
    PARENT,
    TRACE,
    Place,
    dump_context,
    load_context,
    place_of,
    span_id_of,
    trace_id_of,
)

TASK = bytes(range(16))
CALLER = {"traceparent": f"00-{7:032x}-{9:016x}-01"}


def test_context_keeps_its_headers() -> None:
    lines = {**CALLER, "tracestate": "a=b: c", PARENT: OF_TASK}
    assert load_context(dump_context(lines)) == lines


def test_long_headers_are_dropped() -> None:
    assert load_context(dump_context({**CALLER, "baggage": "b" * 2_000})) == CALLER


def test_task_with_a_caller_continues_its_trace() -> None:
    assert place_of(CALLER, TASK) == Place(7, 9, 9)
    assert place_of({**CALLER, PARENT: OF_TASK}, TASK) == Place(7, span_id_of(TASK), 9)


def test_tasks_without_a_caller_have_their_own_trace_or_share_one() -> None:
    other = bytes(16)
    assert place_of({TRACE: OF_TASK, PARENT: OF_TASK}, TASK) == Place(trace_id_of(TASK), span_id_of(TASK), 0)
    assert trace_id_of(TASK) != trace_id_of(other)
    assert span_id_of(TASK) != span_id_of(other)
    shared = {TRACE: f"{5:032x}", PARENT: OF_TASK}
    assert place_of(shared, TASK) == Place(5, span_id_of(TASK), 0)
    assert place_of(shared, other) == Place(5, span_id_of(other), 0)


@pytest.mark.parametrize("context", ["", "\n: \n", "traceparent: 00-xyz-1-01", f"{TRACE}: 1", "tracestate: a=b"])
def test_invalid_contexts_belong_to_no_trace(context: str) -> None:
    assert place_of(load_context(context), TASK) is None
