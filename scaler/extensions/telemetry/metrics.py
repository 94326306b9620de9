"""Sends the web server's metrics to a collector, with the names and labels of `/metrics`. Imported on first use."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from opentelemetry.sdk.metrics import export as m
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from scaler._version import __version__
from scaler.extensions.telemetry.sending import complaint, resource, suppress_instrumentation
from scaler.serialization import describe

SECONDS = 60.0
"""Default interval."""
_CUMULATIVE = m.AggregationTemporality.CUMULATIVE
_log = logging.getLogger(__name__)


def converted(families: Iterable[Any], resource: Resource, since_ns: int, now_ns: int) -> m.MetricsData:
    """Convert Prometheus metrics. since_ns: start time of the counters."""
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


def export_seconds() -> float:
    """Return the interval that OTEL_METRIC_EXPORT_INTERVAL sets in milliseconds, or else the default."""
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    with suppress(ValueError):
        seconds = float(text or 1000 * SECONDS) / 1000
        if 0 < seconds < math.inf:
            return seconds
    _log.warning("OTEL_METRIC_EXPORT_INTERVAL is %r, but must be milliseconds above 0: using 60000", text)
    return SECONDS


async def send(metrics: Any, endpoint: str) -> None:
    """Send metrics until cancelled. A failure loses the values collected since the last success, and is logged once."""
    from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415 (100 ms)

    suppress_instrumentation()
    logging.getLogger(metric_exporter.__name__).addFilter(complaint)
    exporter: metric_exporter.OTLPMetricExporter | None = None
    origin, since_ns, seconds, is_failing = resource("scaler"), time.time_ns(), export_seconds(), False
    while True:
        try:
            exporter = exporter or metric_exporter.OTLPMetricExporter(f"{endpoint.rstrip('/')}/v1/metrics")
            await metrics.refresh()
            data = converted(metrics.collect(), origin, since_ns, time.time_ns())
            is_sent = await asyncio.to_thread(exporter.export, data) is m.MetricExportResult.SUCCESS
            failure = "" if is_sent else complaint.text
        except Exception as error:  # noqa: BLE001 (must not end the sending)
            failure = describe(error)
        if failure and not is_failing:
            _log.warning("metrics are lost until the collector at %s accepts them again: %s", endpoint, failure)
        is_failing = bool(failure)
        await asyncio.sleep(seconds)
