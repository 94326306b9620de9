"""A collector that receives OTLP over HTTP and stores it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.waiting import until


class Span(NamedTuple):
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    events: list[str]
    status: str
    start: int
    end: int


@dataclass
class Collector:
    address: str = ""
    spans: list[Span] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Values by name and labels, of each request."""
    status: int = 200

    def take_metrics(self, body: bytes) -> None:
        request = ExportMetricsServiceRequest()
        request.ParseFromString(body)
        values = {}
        for metric in (
            each for every in request.resource_metrics for scope in every.scope_metrics for each in scope.metrics
        ):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                labels = ",".join(f"{key}={value}" for key, value in sorted(_values(point.attributes).items()))
                name = f"{metric.name}{{{labels}}}" if labels else metric.name
                values[name] = getattr(point, point.WhichOneof("value"))
        self.metrics.append(values)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = Span(
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _values(span.attributes),
                        [event.name for event in span.events],
                        span.status.message,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                    self.spans.append(found)

    def of(self, service: str, name: str, count: int = 1) -> list[Span]:
        """Wait for so many spans."""
        until(lambda: len(self._found(service, name)) >= count)
        found = self._found(service, name)
        assert len(found) == count
        return found

    def _found(self, service: str, name: str) -> list[Span]:
        return [span for span in [*self.spans] if (span.service, span.name) == (service, name)]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def serve() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            take = collector.take_metrics if self.path == "/v1/metrics" else collector.take
            take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 (as in its base class)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
