"""The model as Prometheus metrics, documented in docs/metrics.md.

The first `MAX_FUNCTIONS` functions have their own series for the life of a scheduler, because a counter that changes
its label looks new. Further functions share one.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

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
from scaler.errors import ScalerError
from scaler.monitor.asking import Asking
from scaler.monitor.rows import FOUND, columns
from scaler.protocol.monitor_rows import ConnectionRow, FunctionRow, Status

Family = tuple[type[Any], str, str, tuple[str, ...], Iterable[tuple[Any, ...]]]
"""A metric: type, name, help, labels, and samples. A sample has the label values, then the figures."""

MAX_FUNCTIONS = 100
OTHER = "other"
"""Label shared by all further functions."""

_OF_STORES = (
    (GaugeMetricFamily, "scaler_store_objects", "objects", "Objects in a host's store."),
    (GaugeMetricFamily, "scaler_store_bytes", "bytes", "Bytes of these objects in memory."),
    (GaugeMetricFamily, "scaler_store_limit_bytes", "limit_bytes", "Memory limit for objects in a host's store."),
    (GaugeMetricFamily, "scaler_store_spilled_bytes", "spilled_bytes", "Bytes of objects spilled by a host's store."),
    (CounterMetricFamily, "scaler_store_hits", "hits", "Gets served locally."),
    (CounterMetricFamily, "scaler_store_misses", "misses", "Gets served after a fetch."),
    (CounterMetricFamily, "scaler_store_received_bytes", "received_bytes", "Bytes fetched from other stores."),
    (CounterMetricFamily, "scaler_store_sent_bytes", "sent_bytes", "Bytes sent to other stores."),
)

_OF_TABLES = {
    name: table.kind
    for name, table in FOUND.items()
    if any(column.metric for column, _ in columns(table.kind).values())
}
"""Row types of extensions that have metrics, by table name."""


class Metrics(Collector):
    """The route `/metrics`, which collects the metrics at each scrape."""

    def __init__(self, asking: Asking, connection: Callable[[], ConnectionRow]) -> None:
        """connection: returns the state of the connection to the scheduler."""
        self._asking, self._model = asking, asking.model
        self._asked: list[tuple[type[NamedTuple], list[Any]]] = []
        """Rows of extension tables with metrics, as of this scrape."""
        self._connection = connection
        self._incarnation = 0
        self._names: set[str] = set()
        self._other_seconds = 0.0
        self._other_failed = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def answer(self, request: Request) -> Response:
        self._asked = []
        for name, kind in _OF_TABLES.items():
            with contextlib.suppress(ScalerError):
                self._asked.append((kind, await self._asking.rows(name)))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. Metrics of the scheduler start with its first report."""
        yield InfoMetricFamily("scaler", "The web server that exports these metrics.", {"version": __version__})
        connection, status = self._connection(), self._model.status
        yield from _gauges(connection)
        if connection.age_seconds is None:
            return
        yield from _gauges(status.totals)
        yield from _gauges(status.scheduler)
        yield from _gauges(status.spending)
        if status.storage.address:
            yield from _gauges(status.storage)
        for kind, name, text, labels, samples in chain(self._families(status), self._functions(status), self._rows()):
            family = kind(name, text, labels=labels)
            for sample in samples:
                family.add_metric([_label(each) for each in sample[: len(labels)]], *sample[len(labels) :])
            yield family

    def _families(self, status: Status) -> Iterator[Family]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        counts = status.tasks._replace(assigned=max(0, status.tasks.assigned - status.tasks.running))
        states = [(state, getattr(counts, state)) for state in ("waiting", "ready", "assigned", "running", "suspended")]
        yield gauge, "scaler_tasks", "Unfinished tasks by state.", ("state",), states
        yield counter, "scaler_tasks_ended", "Ended tasks by outcome.", ("outcome",), counts.ended.items()
        text = "Ended tasks that the scheduler only counted, because there were too many."
        yield counter, "scaler_tasks_left_out", text, (), [(self._model.dropped,)]
        messages = [("sent", *each) for each in status.sent.items()]
        messages += [("received", *each) for each in status.received.items()]
        text = "Messages sent and received by the scheduler."
        yield counter, "scaler_messages", text, ("direction", "kind"), messages
        workers = status.workers
        cpu = sum(worker.agent_cpu_percent + worker.cpu_percent for worker in workers) / 100
        memory = sum(worker.agent_rss_bytes + worker.rss_bytes for worker in workers)
        yield gauge, "scaler_workers_listed", "Workers included in the CPU and memory totals.", (), [(len(workers),)]
        yield gauge, "scaler_workers_cpu_ratio", "CPU use of the listed workers: 1 is one CPU.", (), [(cpu,)]
        yield gauge, "scaler_workers_resident_memory_bytes", "Memory of the listed workers.", (), [(memory,)]
        text = "Processors ended because they used too much memory."
        yield counter, "scaler_memory_kills", text, (), [(status.totals.memory_kills,)]
        text = "Processors replaced between tasks because of their age, memory, or damage by tasks."
        yield counter, "scaler_processors_replaced", text, (), [(status.totals.processors_replaced,)]
        managers = status.managers
        units = [(row.id, state, getattr(row, state)) for row in managers for state in ("running", "pending", "failed")]
        yield gauge, "scaler_units", "Units of a worker manager by state.", ("manager", "state"), units
        desired = [(row.id, row.desired) for row in managers if row.desired is not None]
        spent = [(row.id, row.spent) for row in managers]
        yield counter, "scaler_spent", "Cost of a manager's units in this run.", ("manager",), spent
        yield gauge, "scaler_units_desired", "Units that the scheduler wants from a manager.", ("manager",), desired

        yield from self._stores(status)

    def _rows(self) -> Iterator[Family]:
        for kind, rows in self._asked:
            labels = tuple(name for name, (_, hint) in columns(kind).items() if hint is str)
            for name, (column, _) in columns(kind).items():
                if column.metric:
                    samples = [(*(getattr(row, label) for label in labels), getattr(row, name)) for row in rows]
                    yield GaugeMetricFamily, column.metric, column.help or column.title, labels, samples

    def _stores(self, status: Status) -> Iterator[Family]:
        """Yield the figures of stores by host. A host may have several stores."""
        for kind, name, column, text in _OF_STORES:
            sums: Counter[str] = Counter()
            for row in status.stores:
                sums[row.host] += getattr(row, column)
            yield kind, name, text, ("host",), sums.items()
        moved: Counter[tuple[str, str]] = Counter()
        for pair in status.pairs:
            moved[pair.source, pair.target] += pair.bytes
        samples = [(*pair, number) for pair, number in moved.items()]
        text = "Bytes sent from one host's store to another's."
        yield CounterMetricFamily, "scaler_store_moved_bytes", text, ("source", "target"), samples

    # -- functions with their own series, and the sums of all other functions

    def _functions(self, status: Status) -> Iterator[Family]:
        self._admit(status)
        rows = [row for row in status.functions if row.name in self._names]
        rest = [row for row in status.functions if row.name not in self._names]
        if rest:
            rows.append(self._together(status, rows, rest))
        tasks = [(row.name, state, getattr(row, state)) for row in rows for state in ("queued", "running")]
        yield (
            GaugeMetricFamily,
            "scaler_function_tasks",
            "Unfinished tasks of a function.",
            ("function", "state"),
            tasks,
        )
        text, failed = "Failed tasks of a function.", [(row.name, row.failed) for row in rows]
        yield CounterMetricFamily, "scaler_function_tasks_failed", text, ("function",), failed
        times = [(row.name, row.ended, row.seconds_total) for row in rows]
        quantiles = (("0.5", "p50_seconds"), ("0.95", "p95_seconds"), ("1", "max_seconds"))
        known = [row for row in rows if row.max_seconds]
        spread = [(row.name, share, getattr(row, name)) for row in known for share, name in quantiles]
        text = "Median, 95th percentile, and maximum duration of a function's tasks."
        labels = ("function", "quantile")
        yield GaugeMetricFamily, "scaler_function_duration_quantile_seconds", text, labels, spread
        kinds = (("peak", "memory_peak_bytes"), ("mean", "memory_mean_bytes"))
        text = "Peak and mean memory of a processor while a function's tasks run."
        known = [row for row in rows if row.memory_peak_bytes]
        sizes = [(row.name, kind, getattr(row, name)) for row in known for kind, name in kinds]
        yield GaugeMetricFamily, "scaler_function_memory_bytes", text, ("function", "statistic"), sizes
        left = [(row.name, row.left_seconds) for row in rows if row.left_seconds is not None]
        text = "Estimated seconds until a function's tasks end."
        yield GaugeMetricFamily, "scaler_function_left_seconds", text, ("function",), left
        text = "Durations of a function's tasks."
        yield SummaryMetricFamily, "scaler_function_duration_seconds", text, ("function",), times

    def _admit(self, status: Status) -> None:
        if status.incarnation != self._incarnation:
            self._incarnation = status.incarnation
            self._names = set()
            self._other_seconds, self._other_failed = 0.0, 0
        for row in sorted(status.functions, key=lambda row: row.ended, reverse=True):
            if len(self._names) < MAX_FUNCTIONS and row.name != OTHER:
                self._names.add(row.name)

    def _together(self, status: Status, own: list[FunctionRow], rest: list[FunctionRow]) -> FunctionRow:
        # Listed functions change, but the sums of counters must not decrease.
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


def _gauges(row: NamedTuple) -> Iterator[Metric]:
    for name, (column, _) in columns(type(row)).items():
        value = getattr(row, name)
        if isinstance(value, str):  # text of a problem, empty without one
            value = bool(value)
        if column.metric and value is not None and (value or not column.zero_is_none):
            yield GaugeMetricFamily(
                column.metric, column.help, value / 100 if column.unit == "percent" else float(value)
            )


def _label(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
