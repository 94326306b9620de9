"""Stores, and bytes moved between them, in the MonitorStatus document. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice

from scaler.protocol.data_rows import PairRow, StoreRow
from scaler.protocol.monitor_rows import StorageRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.data import OBJECT_STORAGE
from scaler.scheduler.data.finding import STORAGE_NAME, host_names


def store_rows(state: ClusterState, storage: StorageRow, most: int) -> Iterator[StoreRow]:
    """Yield rows for the object storage and for host stores, those with most used memory first."""
    moved = state.data.tracker.moved
    yield StoreRow(
        str(OBJECT_STORAGE),
        STORAGE_NAME,
        storage.address,
        storage.objects,
        storage.bytes,
        storage.limit_bytes,
        storage.spilled_bytes,
        storage.hits,
        storage.misses,
        moved.into[OBJECT_STORAGE],
        moved.out_of[OBJECT_STORAGE],
    )
    used = {
        record: record.report.used_bytes if record.report is not None else 0 for record in state.data.stores.values()
    }
    for record in nlargest(most - 1, used, key=used.__getitem__):
        row = StoreRow(str(record.number), record.host, record.details.address)
        row = row._replace(
            limit_bytes=max(0, record.details.limit_bytes),
            received_bytes=moved.into[record.number],
            sent_bytes=moved.out_of[record.number],
        )
        if (report := record.report) is not None:
            row = row._replace(
                objects=report.objects,
                bytes=report.used_bytes,
                spilled_bytes=report.spilled_bytes,
                hits=report.hits,
                misses=report.misses,
            )
        yield row


def pair_rows(state: ClusterState, most: int) -> Iterator[PairRow]:
    """Yield pairs of stores that cannot reach each other, then those with most moved bytes."""
    hosts, moved, unreachable = host_names(state), state.data.tracker.moved.pairs, state.data.tracker.unreachable
    moving = nlargest(most, moved, key=moved.__getitem__)
    for store, source in islice(dict.fromkeys((*unreachable, *moving)), most):
        names = hosts.get(source, str(source)), hosts.get(store, str(store))
        yield PairRow(f"{source}-{store}", *names, moved[store, source], (store, source) in unreachable)
