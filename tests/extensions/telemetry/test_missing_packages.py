"""Without the packages of the extra, requests for traces are refused, and traced tasks run without spans."""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.errors import UsageError
from scaler.extensions.telemetry import TelemetrySettings, load, require_library
from scaler.extensions.telemetry.calling import TaskTracing
from scaler.extensions.telemetry.context import OF_TASK, PARENT, TRACE, dump_context
from scaler.worker.processor.functions import LoadedSpec

CONTEXT = dump_context({TRACE: OF_TASK, PARENT: OF_TASK})


@pytest.fixture(params=[None, ModuleNotFoundError])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        assert name.startswith("opentelemetry.")
        if request.param is not None:
            raise request.param

    monkeypatch.setattr("scaler.extras.find_spec", find_spec)


def spec(context: str) -> LoadedSpec:
    return LoadedSpec(1, b"", b"", b"", b"", "price", False, False, False, (), context)


@pytest.mark.usefixtures("missing")
def test_telemetry_without_its_packages_names_the_extra() -> None:
    with pytest.raises(UsageError, match=r"trace needs opentelemetry.sdk, .* pip install 'scaler-compute\[otel\]'"):
        require_library("trace")
    with pytest.raises(UsageError, match=r"telemetry_endpoint needs opentelemetry\.sdk"):
        TelemetrySettings(telemetry_endpoint="http://localhost:4318")
    assert TelemetrySettings().telemetry_endpoint == ""


@pytest.mark.usefixtures("missing")
def test_traced_tasks_run_without_spans(caplog: pytest.LogCaptureFixture) -> None:
    processor: Any = SimpleNamespace(task_id=b"")
    tracing = TaskTracing(processor)
    loaded = SimpleNamespace(get=lambda: len)
    assert tracing.wrap(spec(CONTEXT), loaded) is loaded
    assert tracing.wrap(spec(CONTEXT), loaded) is loaded
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    tracing.end()


def test_invalid_variable_of_the_packages_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(_name: str) -> None:
        raise ValueError("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer but got many")

    monkeypatch.setattr("scaler.extensions.telemetry.require_library", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(UsageError, match="trace cannot start: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        load("client", "trace")


def test_contexts_of_other_extensions_need_no_packages() -> None:
    processor: Any = SimpleNamespace(task_id=b"")
    loaded = SimpleNamespace(get=lambda: len)
    assert TaskTracing(processor).wrap(spec("other: value"), loaded) is loaded


def test_endpoint_with_a_password_is_refused_and_the_password_not_repeated() -> None:
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_HEADERS") as raised:
        TelemetrySettings(telemetry_endpoint="https://user:secret@collector:4318")
    assert "secret" not in str(raised.value)


def test_invalid_endpoint_is_refused() -> None:
    with pytest.raises(UsageError, match="telemetry_endpoint is 'localhost:4318', but must be an address such as"):
        TelemetrySettings(telemetry_endpoint="localhost:4318")
