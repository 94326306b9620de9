"""Connection rows of the MonitorStatus document. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import chain

from scaler.net.connection import LinkFigures
from scaler.protocol.link_rows import LinkRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import ClientRecord, ManagerRecord, Worker


def linked(state: ClusterState) -> list[Worker | ClientRecord | ManagerRecord]:
    """Return the peers with a connection of their own. A client inside a task uses its worker's connection."""
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
