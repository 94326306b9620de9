"""Spans are sent without delay to those who make them, also without a collector."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from functools import partial

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from scaler.extensions.telemetry.context import OF_TASK, PARENT, TRACE, dump_context
from scaler.extensions.telemetry.sending import (
    MAX_QUEUED,
    MAX_SPANS_PER_SECOND,
    LastMessage,
    SpanQueue,
    TaskSpans,
    make_provider,
    record,
    traced,
)
from tests.waiting import until


class Exporter(SpanExporter):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.tries = 0
        self.is_broken = False
        self.may_end = threading.Event()
        self.may_end.set()

    def has_tried(self, count: int) -> bool:
        return self.tries >= count

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.tries += 1
        assert get_value(_SUPPRESS_INSTRUMENTATION_KEY), (
            "otherwise, an instrumented HTTP client makes spans of this request"
        )
        self.may_end.wait()
        if self.is_broken:
            raise ConnectionError
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


@pytest.fixture
def exporter() -> Exporter:
    return Exporter()


@pytest.fixture
def provider(exporter: Exporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanQueue(lambda: exporter))
    return provider


def make(provider: TracerProvider, *names: object) -> None:
    for name in names:
        provider.get_tracer("test").start_span(str(name)).end()


def test_flush_waits_for_all_spans(provider: TracerProvider, exporter: Exporter) -> None:
    make(provider, *range(1_500))
    assert provider.force_flush()
    assert exporter.names == [str(number) for number in range(1_500)]
    make(provider, "later")
    until(lambda: exporter.names[-1] == "later")


def test_unreachable_collector_costs_one_warning_and_the_oldest_spans(
    provider: TracerProvider, exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    exporter.is_broken = True
    for number in range(3):
        make(provider, number)
        until(partial(exporter.has_tried, number + 1))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    exporter.may_end.clear()
    make(provider, "sent")
    until(lambda: exporter.tries == 4)
    assert not provider.force_flush(60_000), "a flush does not wait for the collector"
    exporter.is_broken = False
    make(provider, *range(MAX_QUEUED + 10))
    exporter.may_end.set()
    until(lambda: f"{MAX_QUEUED + 9}" in exporter.names)
    assert exporter.names[:2] == ["sent", "10"]


def test_invalid_variables_of_the_exporter_cost_one_warning_and_no_time(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> SpanExporter:
        raise ValueError("OTEL_EXPORTER_OTLP_COMPRESSION is 'zip'")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanQueue(fail))
    make(provider, "lost")
    until(lambda: caplog.records)
    make(provider, "lost, too")
    assert not provider.force_flush(60_000)
    assert ["OTEL_EXPORTER_OTLP_COMPRESSION is 'zip'" in record.message for record in caplog.records] == [True]


def test_warning_names_the_cause_and_not_the_end_of_the_retries() -> None:
    found = LastMessage()
    for text in ("Transient error: connection refused", "Failed to export due to timeout, max retries or shutdown."):
        assert not found.filter(logging.makeLogRecord({"msg": text}))
    assert found.text == "Transient error: connection refused"


def test_exception_with_bytes_of_a_file_name_loses_no_spans(provider: TracerProvider) -> None:
    span = provider.get_tracer("test").start_span("read")
    record(span, ValueError(os.fsdecode(b"caf\xe9.txt")))
    span.end()
    [found] = encode_spans([span]).resource_spans[0].scope_spans[0].spans
    assert found.status.message == "ValueError: caf?.txt"


def test_forked_child_sends_its_own_spans_only(provider: TracerProvider, exporter: Exporter) -> None:
    exporter.may_end.clear()
    make(provider, "sending")
    until(lambda: exporter.tries == 1)
    make(provider, "waiting")
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        exporter.may_end = threading.Event()
        exporter.may_end.set()
        make(provider, "child")
        until(lambda: exporter.names)
        os.write(write, ",".join(exporter.names).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"child"
    os.close(read)
    os.close(write)
    exporter.may_end.set()
    assert provider.force_flush()
    assert exporter.names == ["sending", "waiting"]


class Faulty(SpanProcessor):
    def __init__(self, method: str) -> None:
        setattr(self, method, self.fail)

    def fail(self, *_: object) -> None:
        raise RuntimeError


@pytest.mark.parametrize("method", ["on_start", "on_end"])
def test_exceptions_of_a_users_span_processor_do_not_reach_the_task(provider: TracerProvider, method: str) -> None:
    provider.add_span_processor(Faulty(method))
    context = dump_context({TRACE: OF_TASK, PARENT: OF_TASK})
    assert traced(TaskSpans(provider), "price", context, bytes(16), lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        traced(TaskSpans(provider), "price", context, bytes(16), lambda: 1 / 0)


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, "scaler-worker"),
        ({"OTEL_SERVICE_NAME": "shop"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,team=a"}, "shop"),
    ],
)
def test_variables_name_the_service(variables: dict[str, str], service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert make_provider("scaler-worker").resource.attributes["service.name"] == service


def test_spans_per_second_are_limited(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("scaler.extensions.telemetry.sending.time.monotonic", lambda: now)
    spans = TaskSpans(provider)
    assert sum(spans.has_room() for _ in range(2 * MAX_SPANS_PER_SECOND)) == MAX_SPANS_PER_SECOND
    now = 6.0
    assert spans.has_room()
