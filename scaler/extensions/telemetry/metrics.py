"""Sends the web server's metrics to a collector, with the names and labels of `/metrics`. Imported on first use."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics import export as m
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from scaler._version import __version__
from scaler.extensions.telemetry.sending import suppress_instrumentation

SECONDS = 60.0
"""Interval, unless OTEL_METRIC_EXPORT_INTERVAL (milliseconds) is set."""
_CUMULATIVE = m.AggregationTemporality.CUMULATIVE
_log = logging.getLogger(__name__)


def converted(families: Iterable[Any], resource: Resource, since_ns: int, now_ns: int) -> m.MetricsData:
    """Convert metrics of Prometheus. since_ns: start of the counters."""
    found: dict[str, m.Metric] = {}
    for family in families:
        for sample in family.samples:
            is_sum = family.type in ("counter", "summary")
            point = m.NumberDataPoint(sample.labels, since_ns if is_sum else 0, now_ns, sample.value)
            if sample.name not in found:
                data = m.Sum([], _CUMULATIVE, is_monotonic=True) if is_sum else m.Gauge([])
                found[sample.name] = m.Metric(sample.name, family.documentation, "", data)
            found[sample.name].data.data_points.append(point)
    scope = m.ScopeMetrics(InstrumentationScope("scaler", __version__), [*found.values()], "")
    return m.MetricsData([m.ResourceMetrics(resource, [scope], "")])


async def send(metrics: Any, endpoint: str) -> None:
    """Send metrics until cancelled. A failure is logged once, and loses the values collected until then."""
    from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415 (100 ms)

    suppress_instrumentation()
    logging.getLogger(metric_exporter.__name__).setLevel(logging.CRITICAL)  # it logs each attempt
    exporter = metric_exporter.OTLPMetricExporter(f"{endpoint.rstrip('/')}/v1/metrics")
    resource = Resource.create({} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "scaler"})
    since_ns, is_failing = time.time_ns(), False
    seconds = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", 1000 * SECONDS)) / 1000
    while True:
        await metrics.refresh()
        data = converted(metrics.collect(), resource, since_ns, time.time_ns())
        try:
            has_failed = await asyncio.to_thread(exporter.export, data) is not m.MetricExportResult.SUCCESS
        except Exception:  # noqa: BLE001 (such as a timeout: not all versions catch it)
            has_failed = True
        if has_failed and not is_failing:
            _log.warning("the collector at %s does not accept metrics", endpoint)
        is_failing = has_failed
        await asyncio.sleep(seconds)
