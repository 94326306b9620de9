"""Metrics of the web server in a collector."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricsData
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from scaler.errors import UsageError
from scaler.extensions.telemetry import send_metrics
from scaler.extensions.telemetry.metrics import export_seconds, send
from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.web.metrics import Metrics
from tests.extensions.telemetry.collector import Collector, serve
from tests.unit.monitor.test_web_metrics import samples_of
from tests.unit.monitor.web_rig import PreparedMonitor, filled_model
from tests.waiting import soon

REFUSED = "Failed to export metrics batch code: 400, reason: Bad Request"


async def send_while(metrics: Metrics, collector: Collector, count: int) -> None:
    """Send metrics until the collector has received some requests."""
    sending = asyncio.create_task(send(metrics, collector.address))
    await soon(lambda: sending.done() or len(collector.metrics) >= count)
    assert not sending.done()
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending


def prepared() -> Metrics:
    return Metrics(PreparedMonitor(filled_model()), lambda: ConnectionRow(connected=True, age_seconds=0.5))


def test_collector_gets_the_metrics_that_prometheus_reads() -> None:
    metrics = prepared()
    with serve() as collector:
        asyncio.run(send_while(metrics, collector, 1))
    registry = CollectorRegistry()
    registry.register(metrics)
    expected = samples_of(generate_latest(registry).decode())
    assert "scaler_function_duration_seconds_sum{function=double}" in expected or len(expected) > 50
    assert collector.metrics[0] == expected


def test_refused_metrics_are_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    with serve() as collector:
        collector.status = 400
        asyncio.run(send_while(prepared(), collector, 3))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"metrics are lost until the collector at {collector.address} accepts them again: {REFUSED}"
    ]


@pytest.mark.parametrize("text", ["1m", "0", "-5", "nan", "inf"])
def test_invalid_interval_is_logged_and_replaced(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    assert export_seconds() == 60
    assert [record.message for record in caplog.records] == [
        f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}, but must be milliseconds above 0: using 60000"
    ]


def test_empty_interval_is_the_default(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "")
    assert export_seconds() == 60
    assert not caplog.records


def test_failed_reading_does_not_stop_the_sending_of_metrics(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    metrics = prepared()
    collect, failures = metrics.collect, [KeyError("row")]

    def fail_first() -> object:
        if failures:
            raise failures.pop()
        return collect()

    monkeypatch.setattr(metrics, "collect", fail_first)
    with serve() as collector:
        asyncio.run(send_while(metrics, collector, 1))
    assert ["KeyError: 'row'" in record.message for record in caplog.records] == [True]


def test_exporter_exceptions_do_not_stop_the_sending_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    export, failures = OTLPMetricExporter.export, [TimeoutError, ConnectionError]

    def fail_first(self: OTLPMetricExporter, data: MetricsData) -> object:
        if failures:
            raise failures.pop()
        return export(self, data)

    monkeypatch.setattr(OTLPMetricExporter, "export", fail_first)
    with serve() as collector:
        asyncio.run(send_while(prepared(), collector, 1))
    assert not failures


def test_invalid_endpoint_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'collector:4318', but must be an address such as http:"):
        send_metrics(prepared(), "collector:4318")
