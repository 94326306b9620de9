"""Traces over OpenTelemetry. A sampled task has three spans with ids derived from `Spec.context` and the task's id.

client.py: context, span of the call -> calling.py: span of the run; core.py: time in the queue -> spans.py: its span
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from scaler.config.setting import Setting, SettingsModel
from scaler.errors import UsageError
from scaler.extras import DISTRIBUTION, require
from scaler.plugins import Extension


def require_library(what: str) -> None:
    """Raise UsageError if the packages of the extra are missing."""
    for library in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        require(library, what, f"'{DISTRIBUTION}[otel]'")


def load(module: str, what: str) -> Any:
    """Import a module that needs OpenTelemetry (20 MB). Raises UsageError for a missing package or invalid variable."""
    require_library(what)
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except ValueError as error:  # raised for invalid variables, such as OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=many
        raise UsageError(f"{what} cannot start: {error}") from None


def check_endpoint(endpoint: str) -> None:
    """Raise UsageError if the address is invalid or the packages are missing."""
    if "@" in urlsplit(endpoint).netloc:  # visible in logs, settings, and the list of processes
        raise UsageError("telemetry_endpoint contains a password: set the variable OTEL_EXPORTER_OTLP_HEADERS instead")
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"telemetry_endpoint is {endpoint!r}, but must be an address such as http://localhost:4318")
    require_library("telemetry_endpoint")


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(SettingsModel):
    """Telemetry."""

    telemetry_endpoint: Annotated[str, Setting(default_text="none", metavar="URL")] = ""
    """OTLP/HTTP address of a collector for the scheduler's spans, such as http://localhost:4318. The OTEL_* variables
    set headers and certificates."""

    def check(self) -> None:
        super().check()
        if self.telemetry_endpoint:
            check_endpoint(self.telemetry_endpoint)


def queue_spans(config: TelemetrySettings, _around: object) -> Any:
    endpoint = config.telemetry_endpoint
    return load("spans", "telemetry_endpoint").QueueSpans(endpoint) if endpoint else None


def send_metrics(metrics: Any, endpoint: str) -> Any:
    check_endpoint(endpoint)
    return load("metrics", "telemetry_endpoint").send(metrics, endpoint)


EXTENSION = Extension(
    "telemetry",
    settings="scaler.extensions.telemetry:TelemetrySettings",
    scheduler="scaler.extensions.telemetry.core:queue_times",
    performer="scaler.extensions.telemetry:queue_spans",
    metrics="scaler.extensions.telemetry:send_metrics",
    processor="scaler.extensions.telemetry.calling:trace_tasks",
    questions="scaler.extensions.telemetry.calls:TraceCalls",
)
