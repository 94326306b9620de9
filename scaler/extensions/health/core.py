"""Adds worker health and connections to the status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from itertools import chain

from scaler.extensions.health.judging import Health, WorkerFigures, judge
from scaler.extensions.interface import SchedulerPart
from scaler.net.connection import LinkFigures
from scaler.protocol.link_rows import LINK_COLUMNS, LinkRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.core import QUARANTINE_FAILURES
from scaler.scheduler.core.durations import Timing
from scaler.scheduler.core.rooms import Additions, Reader
from scaler.scheduler.core.state import ClientRecord, ManagerRecord, Worker
from scaler.scheduler.status import MAX_TEXT
from scaler.scheduler.tables import table

LINKS_BYTES = 16 * 1024
MAX_LINKS = 100
"""Connections with the longest round trips."""


class WorkerHealth(SchedulerPart):
    """Judges all workers inside the scheduler, because the paces of all workers would not fit into a status."""

    def __init__(self, _config: object = None) -> None:
        pass

    def add_to_status(self, reader: Reader) -> Additions:
        workers = list(self.cluster.workers.values())
        judged = judge([_figures(worker) for worker in workers], self._names(reader))
        found = {worker.id.hex(): health for worker, health in zip(workers, judged, strict=True)}
        columns = {"workers": {worker: _columns(health) for worker, health in found.items()}}
        ranks = {worker: health.worst for worker, health in found.items()}
        if not reader.sees_all:
            return Additions(columns=columns, ranks=ranks)
        links = table(LINK_COLUMNS, link_rows(self.cluster, reader.figures, MAX_LINKS), LINKS_BYTES)
        return Additions(
            tables={"links": links}, columns=columns, totals={"links": len(linked(self.cluster))}, ranks=ranks
        )

    def _names(self, reader: Reader) -> Mapping[Timing, str]:
        groups = chain.from_iterable(client.groups.values() for client in self.cluster.all_clients())
        records = dict.fromkeys(chain((group.function for group in groups), self.cluster.functions.values()))
        return {timing: record.name for record in records if reader.sees(record.key) for timing in record.timings}


def _figures(worker: Worker) -> WorkerFigures:
    in_row = worker.progress.failures_in_row / QUARANTINE_FAILURES
    beat = worker.reports.heartbeat
    if beat is None:
        return WorkerFigures(worker.paces, in_row)
    machine = beat.memory_percent, beat.cpu_granted_percent, beat.disk_free_bytes, beat.disk_bytes
    return WorkerFigures(worker.paces, in_row, worker.reports.round_trips, *machine)


def _columns(health: Health) -> dict[str, object]:
    heats = {f"{name}_heat": heat for name, heat in zip(Health._fields[:-1], health[:-1], strict=True)}
    return {**heats, "fault": health.text[:MAX_TEXT]}


def linked(state: ClusterState) -> list[Worker | ClientRecord | ManagerRecord]:
    """Return the peers with their own connection. A client inside a task uses its worker's connection."""
    clients = (client for client in state.clients.values() if client.via is None)
    peers: Iterable[Worker | ClientRecord | ManagerRecord] = chain(
        state.workers.values(), clients, state.managers.values()
    )
    return [peer for peer in peers if peer.broken_at is None]


def link_rows(state: ClusterState, figures: Callable[[bytes], LinkFigures], most: int) -> list[LinkRow]:
    rows = (_row(peer, figures(peer.id)) for peer in linked(state))
    return nlargest(most, rows, key=lambda row: (row.outbox_bytes > 0, row.latency_seconds, row.outbox_bytes))


def _row(peer: Worker | ClientRecord | ManagerRecord, found: LinkFigures) -> LinkRow:
    return LinkRow(
        peer.id.hex(),
        peer.name or peer.id.hex()[:8],
        peer.role,
        peer.host if isinstance(peer, Worker) else "",
        round(found.latency_seconds, 6),
        found.outbox_bytes,
        found.received_bytes,
        found.sent_bytes,
    )
