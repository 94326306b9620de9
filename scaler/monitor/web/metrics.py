"""The model as Prometheus metrics. docs/metrics.md describes each. Pure.

Series of functions are bounded: the first `MAX_FUNCTIONS` functions have their own, all others share one. They keep
them while the scheduler lives, because a counter that changes its label looks like a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from scaler._version import __version__
from scaler.monitor.model import Model
from scaler.monitor.rows import columns
from scaler.protocol.monitor_rows import FunctionRow, ManagerRow, Status, WorkerRow

MAX_FUNCTIONS = 100
OTHER = "other"
"""The label that all other functions share."""


class Metrics(Collector):
    """The route `/metrics`: makes the metrics for each scrape."""

    def __init__(self, model: Model, connected: Callable[[], bool], age_seconds: Callable[[], float | None]) -> None:
        """age_seconds: returns the age of the last state, None while there is none."""
        self._model = model
        self._connected = connected
        self._age_seconds = age_seconds
        self._incarnation = 0
        self._names: set[str] = set()
        self._other_seconds = 0.0
        self._other_failed = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def answer(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; those of the scheduler only after its first report."""
        yield InfoMetricFamily("scaler", "The web server of these metrics.", {"version": __version__})
        yield GaugeMetricFamily("scaler_scheduler_up", "1 while the scheduler is connected.", float(self._connected()))
        age = self._age_seconds()
        if age is None:
            return
        yield GaugeMetricFamily("scaler_state_age_seconds", "Age of the state of which all other metrics are.", age)
        status = self._model.status
        yield from _tasks(status, self._model.dropped)
        yield from _gauges(status.totals)
        yield from _workers(status.workers)
        yield from _units(status.managers)
        yield from _gauges(status.scheduler)
        if status.storage.address:
            yield from _gauges(status.storage)
        yield from self._functions(status)

    # -- functions with series of their own, and the sums of the others

    def _functions(self, status: Status) -> Iterator[Metric]:
        self._admit(status)
        tasks = GaugeMetricFamily("scaler_function_tasks", "Tasks of a function now.", labels=["function", "state"])
        failed = CounterMetricFamily(
            "scaler_function_tasks_failed", "Tasks of a function that have failed.", labels=["function"]
        )
        durations = SummaryMetricFamily(
            "scaler_function_duration_seconds", "Times that tasks of a function took.", labels=["function"]
        )
        own = [row for row in status.functions if row.name in self._names]
        rest = [row for row in status.functions if row.name not in self._names]
        for row in [*own, self._together(status, own, rest)] if rest else own:
            name = _label(row.name)
            tasks.add_metric([name, "queued"], row.queued)
            tasks.add_metric([name, "running"], row.running)
            failed.add_metric([name], row.failed)
            durations.add_metric([name], row.ended, row.seconds_total)
        yield from (tasks, failed, durations)

    def _admit(self, status: Status) -> None:
        if status.incarnation != self._incarnation:
            self._incarnation = status.incarnation
            self._names = set()
            self._other_seconds, self._other_failed = 0.0, 0
        for row in sorted(status.functions, key=lambda row: row.ended, reverse=True):
            if len(self._names) < MAX_FUNCTIONS and row.name != OTHER:
                self._names.add(row.name)

    def _together(self, status: Status, own: list[FunctionRow], rest: list[FunctionRow]) -> FunctionRow:
        # Rows come and go because the scheduler lists some functions only; counters must not go down.
        self._other_seconds = max(self._other_seconds, sum(row.seconds_total for row in rest))
        self._other_failed = max(self._other_failed, sum(row.failed for row in rest))
        return FunctionRow(
            name=OTHER,
            queued=sum(row.queued for row in rest),
            running=sum(row.running for row in rest),
            ended=max(0, status.tasks.ended_total - sum(row.ended for row in own)),
            failed=self._other_failed,
            seconds_total=self._other_seconds,
        )


def _tasks(status: Status, left_out: int) -> Iterator[Metric]:
    counts = status.tasks
    now = GaugeMetricFamily("scaler_tasks", "Tasks that have not ended, by state.", labels=["state"])
    states = counts._replace(assigned=max(0, counts.assigned - counts.running))
    for state in ("waiting", "ready", "assigned", "running", "suspended"):
        now.add_metric([state], getattr(states, state))
    yield now
    ended = CounterMetricFamily("scaler_tasks_ended", "Tasks that have ended, by outcome.", labels=["outcome"])
    for outcome, count in counts.ended.items():
        ended.add_metric([_label(outcome)], count)
    yield ended
    text = "Ended tasks that the scheduler did not list one by one, because there were too many."
    yield CounterMetricFamily("scaler_tasks_left_out", text, left_out)
    messages = CounterMetricFamily(
        "scaler_messages", "Messages that the scheduler sent and received.", labels=["direction", "kind"]
    )
    for direction, kinds in (("sent", status.sent), ("received", status.received)):
        for kind, count in kinds.items():
            messages.add_metric([direction, _label(kind)], count)
    yield messages


def _workers(workers: Sequence[WorkerRow]) -> Iterator[Metric]:
    cpu = sum(worker.agent_cpu_percent + worker.cpu_percent for worker in workers) / 100
    memory = sum(worker.agent_rss_bytes + worker.rss_bytes for worker in workers)
    yield GaugeMetricFamily("scaler_workers_listed", "Workers in the sums of CPU and memory.", len(workers))
    yield GaugeMetricFamily("scaler_workers_cpu_ratio", "CPUs that the listed workers use: 1 is one CPU.", cpu)
    yield GaugeMetricFamily("scaler_workers_resident_memory_bytes", "Memory of the listed workers.", memory)


def _units(managers: Iterable[ManagerRow]) -> Iterator[Metric]:
    units = GaugeMetricFamily("scaler_units", "Units of a worker manager, by state.", labels=["manager", "state"])
    desired = GaugeMetricFamily("scaler_units_desired", "Units that a manager is to have.", labels=["manager"])
    for manager in managers:
        name = _label(manager.id)
        for state in ("running", "pending", "failed"):
            units.add_metric([name, state], getattr(manager, state))
        if manager.desired is not None:
            desired.add_metric([name], manager.desired)
    yield from (units, desired)


def _gauges(row: NamedTuple) -> Iterator[Metric]:
    """Yield the metrics of the columns of a row."""
    for name, (column, _) in columns(type(row)).items():
        value = getattr(row, name)
        if column.metric and (value or not column.zero_is_none):
            yield GaugeMetricFamily(column.metric, column.help, value / 100 if column.unit == "percent" else value)


def _label(text: str) -> str:
    """Return a text of a cluster without unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
