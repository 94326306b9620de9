"""The model as Prometheus metrics, documented in docs/metrics.md."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client import metrics_core as p
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from scaler._version import __version__
from scaler.errors import ScalerError
from scaler.monitor.cluster_rows import ConnectionRow, FunctionRow, ManagerRow, Status
from scaler.monitor.connection import Asking
from scaler.monitor.data_rows import StoreRow
from scaler.monitor.rows import FOUND, columns

_TASK_STATES = ("waiting", "ready", "assigned", "running", "suspended")
_UNIT_STATES = ("running", "pending", "failed")
_QUANTILES = {"p50_seconds": "0.5", "p95_seconds": "0.95", "max_seconds": "1"}
_STATISTICS = {"memory_peak_bytes": "peak", "memory_mean_bytes": "mean"}

_OF_TABLES = {
    name: table.kind
    for name, table in FOUND.items()
    if any(column.metric for column, _ in columns(table.kind).values())
}
"""Extensions' row types that have metrics, by table name."""


class Metrics(Collector):
    """The route `/metrics`, which collects the metrics at each scrape."""

    def __init__(self, asking: Asking, connection: Callable[[], ConnectionRow]) -> None:
        """connection: returns the state of the connection to the scheduler."""
        self._asking, self._model = asking, asking.model
        self._asked: list[tuple[type[NamedTuple], list[Any]]] = []
        """Rows of extension tables with metrics, as of this scrape."""
        self._connection = connection
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def refresh(self) -> None:
        """Read the extensions' tables, for `collect`."""
        self._asked = []
        for name, kind in _OF_TABLES.items():
            with contextlib.suppress(ScalerError):
                self._asked.append((kind, await self._asking.rows(name)))

    async def answer(self, request: Request) -> Response:
        await self.refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    def collect(self) -> Iterator[p.Metric]:
        """Yield every metric. Metrics of the scheduler start with its first report."""
        yield p.InfoMetricFamily("scaler", "The web server that exports these metrics.", {"version": __version__})
        connection, status = self._connection(), self._model.status
        yield from _of_rows(ConnectionRow, [connection])
        if connection.age_seconds is None:
            return
        for row in (status.totals, status.scheduler, status.spending, status.storage):
            if row is not status.storage or status.storage.address:
                yield from _of_rows(type(row), [row])
        yield from _of_rows(StoreRow, status.stores, {"host": "host"})
        yield from _of_rows(ManagerRow, status.managers, {"manager": "id"})
        for kind, rows in self._asked:
            yield from _of_rows(kind, rows, {name: name for name, (_, hint) in columns(kind).items() if hint is str})
        yield from self._of_cluster(status)
        yield from self._of_functions(status.functions)

    def _of_cluster(self, status: Status) -> Iterator[p.Metric]:
        gauge, counter = p.GaugeMetricFamily, p.CounterMetricFamily
        counts = status.tasks._replace(assigned=max(0, status.tasks.assigned - status.tasks.running))
        states = ((state, getattr(counts, state)) for state in _TASK_STATES)
        yield _family(gauge, "scaler_tasks", "Unfinished tasks by state.", "state", states)
        yield _family(counter, "scaler_tasks_ended", "Ended tasks by outcome.", "outcome", counts.ended.items())
        text = "Ended tasks that the scheduler only counted, because there were too many."
        yield counter("scaler_tasks_left_out", text, self._model.dropped)
        messages = [("sent", *each) for each in status.sent.items()]
        messages += [("received", *each) for each in status.received.items()]
        text = "Messages sent and received by the scheduler."
        yield _family(counter, "scaler_messages", text, "direction kind", messages)
        workers = status.workers
        cpu = sum(worker.agent_cpu_percent + worker.cpu_percent for worker in workers) / 100
        memory = sum(worker.agent_rss_bytes + worker.rss_bytes for worker in workers)
        yield gauge("scaler_workers_listed", "Workers included in the CPU and memory totals.", len(workers))
        yield gauge("scaler_workers_cpu_ratio", "CPU use of the listed workers: 1 is one CPU.", cpu)
        yield gauge("scaler_workers_resident_memory_bytes", "Memory of the listed workers.", memory)
        units = [(row.id, state, getattr(row, state)) for row in status.managers for state in _UNIT_STATES]
        yield _family(gauge, "scaler_units", "Units of a worker manager by state.", "manager state", units)
        moved: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for pair in status.pairs:
            moved[pair.source, pair.target] += pair.bytes
        text = "Bytes sent from one host's store to another's."
        yield _family(counter, "scaler_store_moved_bytes", text, "source target", _samples(moved))

    def _of_functions(self, rows: Sequence[FunctionRow]) -> Iterator[p.Metric]:
        yield from _of_rows(FunctionRow, rows, {"function": "name"})
        gauge = p.GaugeMetricFamily
        tasks = [(row.name, state, getattr(row, state)) for row in rows for state in ("queued", "running")]
        text = "Unfinished tasks of a function."
        yield _family(gauge, "scaler_function_tasks", text, "function state", tasks)
        known = [row for row in rows if row.max_seconds]
        spread = [(row.name, share, getattr(row, name)) for row in known for name, share in _QUANTILES.items()]
        text = "Median, 95th percentile, and maximum duration of a function's tasks."
        yield _family(gauge, "scaler_function_duration_quantile_seconds", text, "function quantile", spread)
        known = [row for row in rows if row.memory_peak_bytes]
        sizes = [(row.name, kind, getattr(row, name)) for row in known for name, kind in _STATISTICS.items()]
        text = "Peak and mean memory of a processor while a function's tasks run."
        yield _family(gauge, "scaler_function_memory_bytes", text, "function statistic", sizes)
        times = [(row.name, row.ended, row.seconds_total) for row in rows]
        text = "Durations of a function's tasks."
        yield _family(p.SummaryMetricFamily, "scaler_function_duration_seconds", text, "function", times)


def _of_rows(
    kind: type[NamedTuple], rows: Iterable[NamedTuple], labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[p.Metric]:
    """Yield a metric for each column that has one: the sums of rows with equal labels. labels: columns by label."""
    for name, (column, _) in columns(kind).items():
        if not column.metric:
            continue
        is_counter = column.metric.endswith("_total")
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for row in rows:
            value = getattr(row, name)
            if value is not None and (value or is_counter or not column.zero_is_none):
                value = bool(value) if isinstance(value, str) else value  # the text of a problem, empty without one
                key = tuple(getattr(row, each) for each in labels.values())
                sums[key] += value / 100 if column.unit == "percent" else value
        family = p.CounterMetricFamily if is_counter else p.GaugeMetricFamily
        yield _family(family, f"scaler_{column.metric}", column.help or column.title, " ".join(labels), _samples(sums))


def _samples(sums: Mapping[tuple[str, ...], Any]) -> Iterator[tuple[Any, ...]]:
    return ((*labels, number) for labels, number in sums.items())


def _family(kind: type[Any], name: str, text: str, labels: str, samples: Iterable[tuple[Any, ...]]) -> Any:
    """Return a metric. A sample contains the label values, then the figures."""
    names = labels.split()
    family = kind(name, text, labels=names)
    for sample in samples:
        # UTF-8 cannot encode unpaired surrogates.
        values = [each.encode("utf-8", "replace").decode() for each in sample[: len(names)]]
        family.add_metric(values, *sample[len(names) :])
    return family
