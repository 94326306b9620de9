"""Invariants of the object storage's cores, which tests check after each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from scaler.object_storage.body import Body, Segment
from scaler.object_storage.core import StorageCore
from scaler.object_storage.exchange import Exchange
from scaler.object_storage.objects import MAX_FORGOTTEN_IDS, StorageTable, record_bytes
from scaler.object_storage.sending import StoragePeer, UnfinishedUpload
from scaler.object_storage.spilling import Spilling
from scaler.protocol.chunks import chunk_count


def check_storage(core: StorageCore) -> None:
    peers, table = core._peers.values(), core.objects
    uploads = [upload for peer in peers for upload in peer.uploads.values()]
    _check_sizes(table, uploads, sum(fetch.reserved_bytes for fetch in core.exchange.fetches.values()))
    _check_unfinished(table, peers)
    assert all(table._owners.values())
    assert set().union(*table._owners.values()) == table._objects.keys() | table._unfinished.keys()
    assert len(table._forgotten) <= MAX_FORGOTTEN_IDS
    assert all(table.body(get.message.id) is None for peer in peers for get in peer.waiting)
    assert {peer for peer, _ in core._waiting_puts} <= set(peers)
    assert core._waiting_put_bytes == sum(waiting.size_bytes for waiting in core._waiting_puts.values())
    assert all(waiting.events for waiting in core._waiting_puts.values())
    assert core._sender._peers.keys() == {peer for peer in peers if peer.sending}
    assert not core._commands
    assert all(core.exchange.is_active(run) for run in core._delayed)
    _check_exchange(core.exchange)


def _check_sizes(table: StorageTable, uploads: Collection[UnfinishedUpload], fetched_bytes: int) -> None:
    bodies = set(table._objects.values())
    assert len(bodies) == len(table._objects)
    assert not any(body.is_dropped for body in bodies)
    assert all(sum(frame.nbytes for frame in body.frames) == body.size_bytes for body in bodies if not body.memory)
    in_memory = sum(body.size_bytes for body in bodies if not body.is_on_disk) + fetched_bytes
    assert table.used_bytes == in_memory + sum(upload.size_bytes for upload in uploads) <= table._limit_bytes
    reserved: Counter[str | bytes] = Counter()
    for upload in uploads:
        reserved[upload.account] += upload.size_bytes - upload.received_bytes
    assert +reserved == +table._reserved
    _check_spilling(table.spilling, bodies)
    assert table._uploads.keys() == set(uploads)
    layouts = [body.parts for body in table._objects.values()] + [upload.parts for upload in uploads]
    assert table._records_bytes == sum(map(record_bytes, layouts))


def _check_unfinished(table: StorageTable, peers: Collection[StoragePeer]) -> None:
    unfinished = table._unfinished.items()
    putting = {(key, peer) for key, each in unfinished for peer in each.putters}
    assert putting == {(key, peer) for peer in peers for key in peer.uploads}
    assert {get for _, each in unfinished for get in each.gets} == {get for peer in peers for get in peer.waiting}
    assert all(get.message.id == key for key, each in unfinished for get in each.gets)
    assert all(each.putters or each.gets for _, each in unfinished)
    assert not table._objects.keys() & table._unfinished.keys()


def _check_spilling(spilling: Spilling, bodies: Collection[Body]) -> None:
    if spilling._limit_bytes:
        assert spilling._in_memory.keys() == {body for body in bodies if body.segment is None}
    segments: dict[Segment, int] = {}
    for body in bodies:
        if body.segment is not None:
            segments[body.segment] = segments.get(body.segment, 0) + 1
        assert not body.is_on_disk or body.segment is not None
    assert all(segment.bodies == count for segment, count in segments.items())
    assert spilling.used_bytes == sum(segment.size_bytes for segment in segments) <= spilling._limit_bytes


def _check_exchange(exchange: Exchange) -> None:
    told = exchange._wanted, exchange._unwanted, exchange._dropped, exchange._in_backend
    assert not any((*told, exchange._came, exchange._failed))
    assert math.isfinite(exchange.report_at) == bool(exchange._put)
    for object_id, fetch in exchange.fetches.items():
        assert all(run.id == object_id for run in fetch.runs)
        assert not fetch.have or fetch.have < (1 << chunk_count(fetch.size_bytes)) - 1
