"""`Client.trace`, which traces the client's tasks."""

from __future__ import annotations

from scaler.client.options import check_number
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.extensions.telemetry import load


@hiding_frames_of_methods()
class TraceCalls(TaskCalls):
    def trace(self, *, ratio: float | None = None) -> None:
        """Trace all tasks that this client submits from now on, with OpenTelemetry. A task belongs to the trace of the
        current span, if that span is sampled. Without a current span, each task or call such as `map` begins a trace.
        Uses the program's tracer provider, or else exports as the OTEL_* variables specify.

        Args:
            ratio: share of the traces that begin here. Default: the provider's sampler decides.

        Raises:
            UsageError: The packages of the extra `otel` are not installed, or an OTEL_* variable is invalid.
        """
        tracing = load("client", "trace")
        if ratio is not None:
            check_number("ratio", ratio, 0, 1, ": share of the traces that begin here")
        self._futures.observer = tracing.CallTracer(self._futures.ids.owner, ratio)
