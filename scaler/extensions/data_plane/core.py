"""The scheduler part: answers questions about objects and stores. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from heapq import nlargest
from itertools import islice

from scaler.extensions.data_plane.directory import OBJECT_STORAGE, Copies
from scaler.extensions.data_plane.stores import HostStores
from scaler.extensions.interface import SchedulerPart
from scaler.ids import is_result, is_task, owner_of, task_of
from scaler.monitor.cluster_rows import StorageRow
from scaler.monitor.data_rows import ObjectRow, PairRow, StoreRow
from scaler.monitor.messages import FindObjects, ObjectsFound
from scaler.object_storage.messages import StoreReport
from scaler.protocol.messages import is_at_host, is_stored, stored_bytes
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.tables import table

STORAGE_NAME = "object storage"
BACKEND_NAME = "backend"
MAX_ROWS = 500
MAX_LARGEST = 50
STORES_BYTES = 48 * 1024
PAIRS_BYTES = OBJECTS_BYTES = 16 * 1024
MAX_HOLDERS = 1_000
MAX_SHOWN = 8
MAX_BYTES = 768 * 1024
_NO_REPORT = StoreReport(0.0, 0, 0, 0, 0, 0)


class DataPlane(SchedulerPart):
    """Provides object locations and transfers to readers. `HostStores` tracks both."""

    questions = (FindObjects,)

    def __init__(self, _settings: object = None) -> None:
        self._stores = HostStores()

    def stores(self) -> HostStores:
        return self._stores

    def on_question(self, question: FindObjects, client: ClientRecord, state: ClusterState) -> ObjectsFound:
        return answer(self._stores, state, question, client)

    def add_to_status(self, reader: Reader) -> Additions:
        stores, tracker = self._stores, self._stores.tracker
        moved = {"moved_bytes": tracker.moved.total_bytes}
        if not reader.sees_all:
            return Additions(totals=moved)
        return Additions(
            tables={
                "stores": table(StoreRow._fields, store_rows(stores, reader.storage, MAX_ROWS), STORES_BYTES),
                "pairs": table(PairRow._fields, pair_rows(stores, MAX_ROWS), PAIRS_BYTES),
                "objects": table(ObjectRow._fields, largest_rows(stores, self.cluster, MAX_LARGEST), OBJECTS_BYTES),
            },
            totals=moved
            | {
                "stores": 1 + len(stores.records),
                "pairs": len(tracker.moved.pairs | tracker.unreachable),
                "objects": len(stores.directory),
                "unreachable": len(tracker.unreachable),
            },
        )


def store_rows(stores: HostStores, storage: StorageRow, most: int) -> Iterator[StoreRow]:
    """Yield rows for the object storage and for host stores, in descending order of used memory."""
    moved = stores.tracker.moved

    def row(number: int, host: str, address: str, *figures: int) -> StoreRow:
        return StoreRow._make([str(number), host, address, *figures, moved.into[number], moved.out_of[number], 0.0])

    sizes = storage.objects, storage.bytes, storage.limit_bytes, storage.spilled_bytes
    yield row(OBJECT_STORAGE, STORAGE_NAME, storage.address, *sizes, storage.hits, storage.misses)
    reports = {record: record.report or _NO_REPORT for record in stores.records.values()}
    for record in nlargest(most - 1, reports, key=lambda record: reports[record].used_bytes):
        details, report = record.details, reports[record]
        sizes = report.objects, report.used_bytes, max(0, details.limit_bytes), report.spilled_bytes
        yield row(record.number, record.host, details.address, *sizes, report.hits, report.misses)


def pair_rows(stores: HostStores, most: int) -> Iterator[PairRow]:
    """Yield pairs of stores that cannot reach each other, then pairs in descending order of moved bytes."""
    hosts, moved, unreachable = host_names(stores), stores.tracker.moved.pairs, stores.tracker.unreachable
    moving = nlargest(most, moved, key=moved.__getitem__)
    for store, source in islice(dict.fromkeys((*unreachable, *moving)), most):
        names = hosts.get(source, str(source)), hosts.get(store, str(store))
        yield PairRow(f"{source}-{store}", *names, moved[store, source], (store, source) in unreachable)


def host_names(stores: HostStores) -> dict[int, str]:
    names = {record.number: record.host for record in stores.records.values()} | {OBJECT_STORAGE: STORAGE_NAME}
    if stores.tracker.backend is not None:
        names[stores.tracker.backend] = BACKEND_NAME
    return names


def answer(stores: HostStores, state: ClusterState, question: FindObjects, client: ClientRecord) -> ObjectsFound:
    """Return the named objects, or the largest objects, that the client may see."""
    if question.named:
        may_see = [each for each in question.named if state.may_see(client, each)]
        found = [known for each in may_see if (known := _known(stores, state, each)) is not None]
    else:
        found = stores.directory.largest(question.most, partial(state.may_see, client))
    hosts, rows, left = host_names(stores), [], MAX_BYTES
    for identifier, copies in found:
        text = json.dumps([*_row(state, identifier, copies)[:-1], _holders(copies, hosts)])
        left -= len(text)
        if left < 0:
            break
        rows.append(text)
    return ObjectsFound(question.named, question.most, f"[{', '.join(rows)}]".encode())


def largest_rows(stores: HostStores, state: ClusterState, most: int) -> list[ObjectRow]:
    hosts = host_names(stores)
    return [
        _row(state, identifier, copies)._replace(holders=", ".join(_holders(copies, hosts)[:MAX_SHOWN]))
        for identifier, copies in stores.directory.largest(most)
    ]


def _known(stores: HostStores, state: ClusterState, identifier: bytes) -> tuple[bytes, Copies] | None:
    """Return an object by its own id, or by the id of the task that produced it.

    A result without an entry counts as stored in the object storage unless host stores exist or, after a restart, may
    still reconnect."""
    size_bytes = 0
    is_in_storage = not (is_result(identifier) and (stores.is_used or state.has_returned))
    if is_task(identifier):
        client = state.clients.get(owner_of(identifier))
        retained = None if client is None else client.retained.get(identifier)
        if retained is None or not is_stored(retained.payload):
            return None
        identifier, size_bytes = retained.payload[1:17], stored_bytes(retained.payload)
        is_in_storage = not is_at_host(retained.payload)
    copies = stores.directory.find(identifier)
    if copies is None and is_in_storage and (size_bytes or identifier in state.objects.stored):
        copies = Copies(size_bytes, {OBJECT_STORAGE})
    return None if copies is None else (identifier, copies)


def _row(state: ClusterState, identifier: bytes, copies: Copies) -> ObjectRow:
    owner = state.clients.get(owner_of(identifier))
    task = task_of(identifier).hex() if is_result(identifier) else ""
    client = owner_of(identifier).hex() if owner is None else owner.name
    return ObjectRow(identifier.hex(), copies.size_bytes, copies.function, task, client)


def _holders(copies: Copies, hosts: dict[int, str]) -> list[str]:
    """Return the hosts that have an object. Stores that have not reconnected have no name yet."""
    return sorted(hosts[store] for store in copies.holders if store in hosts)[:MAX_HOLDERS]
