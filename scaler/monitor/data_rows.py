"""Monitor rows of data (stores, transfers between them, the largest objects), of connections, and of calls. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.monitor.columns import INTERNAL, Column

_LIMIT = Column("Limit", "bytes", 1, "Most memory for objects", metric="store_limit_bytes", zero_is_none=True)
_FETCHED = Column("Fetched", "bytes", 1, "From other stores", metric="store_received_bytes_total")
_HIT_RATE = Column("Hit rate", "percent", 2, "Share of gets that were hits; empty before the first get", after="misses")


class StoreRow(NamedTuple):
    """A store: the object storage (id 0) or a host's store. Counts begin at the store's start, if known. hits: gets of
    objects present in the store; misses: gets that fetched the object."""

    id: str = ""
    host: Annotated[str, Column("Host", help="Host of the store")] = ""
    address: Annotated[str, Column("Address", rank=3, help="Address for other stores; empty: unreachable")] = ""
    objects: Annotated[int, Column("Objects", "count", 2, metric="store_objects")] = 0
    bytes: Annotated[int, Column("Memory", "bytes", 1, "Size of its objects", metric="store_bytes")] = 0
    limit_bytes: Annotated[int, _LIMIT] = 0
    spilled_bytes: Annotated[int, Column("On disk", "bytes", 2, "Spilled objects", metric="store_spilled_bytes")] = 0
    hits: Annotated[int, Column("Hits", "count", 3, "Gets served locally", metric="store_hits_total")] = 0
    misses: Annotated[int, Column("Misses", "count", 3, "Gets served after a fetch", metric="store_misses_total")] = 0
    received_bytes: Annotated[int, _FETCHED] = 0
    sent_bytes: Annotated[int, Column("Served", "bytes", 2, "To other stores", metric="store_sent_bytes_total")] = 0
    fetches_per_second: Annotated[
        float, Column("Fetches/s", "bytes", 1, "Bytes fetched per second since the previous state", volatile=True)
    ] = 0.0
    """Set by the receiver."""

    @property
    def hit_percent(self) -> Annotated[float | None, _HIT_RATE]:
        gets = self.hits + self.misses
        return 100.0 * self.hits / gets if gets else None

    @property
    def used_percent(self) -> Annotated[float, Column("Used", "percent", help="Of the limit", after="limit_bytes")]:
        return 100.0 * self.bytes / self.limit_bytes if self.limit_bytes > 0 else 0.0


class PairRow(NamedTuple):
    id: str = ""
    source: Annotated[str, Column("From")] = ""
    target: Annotated[str, Column("To")] = ""
    bytes: Annotated[int, Column("Bytes", "bytes")] = 0
    unreachable: Annotated[bool, Column(help="The hosts cannot connect: objects travel through the object storage")] = (
        False
    )


class ObjectRow(NamedTuple):
    """A large object. function, task: origin of the object; empty if sent by a client."""

    id: Annotated[str, Column("Object")] = ""
    size_bytes: Annotated[int, Column("Size", "bytes")] = 0
    function: Annotated[str, Column("Function", help="Function that returned it")] = ""
    task: Annotated[str, Column("Task", rank=2, help="Whose result it is")] = ""
    client: Annotated[str, Column("Client", rank=3, help="Client that owns it")] = ""
    holders: Annotated[str, Column("Held by", help="Hosts whose stores hold the object, or the object storage")] = ""


_LATENCY = Column("Round trip", "seconds", 1, "Round trip to the scheduler", zero_is_none=True)
_OUTBOX = Column("Not taken", "bytes", 2, "Sent, but not acknowledged yet", volatile=True, zero_is_none=True)


class LinkRow(NamedTuple):
    """A connection to the scheduler. Bytes count this session's messages before compression. kind: worker, client,
    or manager. latency_seconds: last value measured by the peer; 0 if unknown, as for managers."""

    id: str = ""
    name: Annotated[str, Column("Peer")] = ""
    kind: Annotated[str, Column("Kind", rank=2)] = ""
    host: Annotated[str, Column("Host", rank=2)] = ""
    latency_seconds: Annotated[float, _LATENCY] = 0.0
    outbox_bytes: Annotated[int, _OUTBOX] = 0
    received_bytes: Annotated[int, Column("From it", "bytes", 3, "In all")] = 0
    sent_bytes: Annotated[int, Column("To it", "bytes", 3, "In all")] = 0
    received_per_second: Annotated[float, Column("From it/s", "bytes", 1, "Bytes per second", volatile=True)] = 0.0
    sent_per_second: Annotated[float, Column("To it/s", "bytes", 1, "Bytes per second", volatile=True)] = 0.0
    """Both rates are set by the receiver."""


class NetworkRow(NamedTuple):
    """Whether the network or the cluster delays tasks. cause: none, scheduler, storage, network, or distance."""

    cause: str = ""
    text: Annotated[str, Column(help="Explanation with figures")] = ""


_PROGRESS_HELP = "Finished items out of all; bar: done, failed, cancelled, running, queued"
_PROGRESS = Column("Progress", "percent", 1, _PROGRESS_HELP, after="client", volatile=True)
_CALL = "Client method; submit: all single submits of a function, tag: all tasks with a tag"
_LEFT = Column("Time left", "seconds", 1, "Estimated time until the call ends", after="client", volatile=True)
LEFT_ERROR = Column(unit="seconds", help="Uncertainty of the estimate", volatile=True)
_RATE = Column("Items/s", "count", 2, "That ended lately", volatile=True, zero_is_none=True)


class CallRow(NamedTuple):
    """A client's call: a map, a graph, all single submits of a function, or all tasks with a tag.

    Items are tasks, except in maps. queued: includes items that the client has not sent. ended: includes failed and
    cancelled items. cancelled: includes items never sent because the call ended. reason: why the oldest waiting task
    waits. has_chunks: some tasks were chunks, so durations of items are unknown. The receiver sets the
    last six columns.
    """

    id: str = ""
    call: Annotated[str, Column("Call", help=_CALL)] = ""
    name: Annotated[str, Column("Function")] = ""
    client: Annotated[str, Column("Client", rank=3)] = ""
    queued: Annotated[int, Column("Queued", "count", 2)] = 0
    running: Annotated[int, Column("Running", "count", 2)] = 0
    ended: Annotated[int, Column("Ended", "count", 2)] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count", 2, "Includes unsent items", zero_is_none=True)] = 0
    began_at: Annotated[float, Column("Began", "time", 3)] = 0.0
    has_chunks: Annotated[bool, INTERNAL] = False
    p50_seconds: Annotated[float, INTERNAL] = 0.0
    p95_seconds: Annotated[float, INTERNAL] = 0.0
    max_seconds: Annotated[float, INTERNAL] = 0.0
    reason: Annotated[str, Column("Why it waits", help="Why the oldest waiting task waits")] = ""
    oldest: Annotated[str, Column(help="The affected task")] = ""
    job_ended: Annotated[int, Column(help="Ended items; for single submits, since the function was last idle")] = 0
    job_failed: Annotated[int, Column(help="Failed items in job_ended")] = 0
    job_cancelled: Annotated[int, Column(help="Cancelled items in job_ended")] = 0
    tasks_per_second: Annotated[float, _RATE] = 0.0
    left_seconds: Annotated[float | None, _LEFT] = None
    left_error_seconds: Annotated[float | None, LEFT_ERROR] = None

    @property
    def live(self) -> int:
        return self.queued + self.running

    @property
    def progress_percent(self) -> Annotated[float | None, _PROGRESS]:
        return done_percent(self.job_ended, self.job_failed, self.job_cancelled, self.live)


def done_percent(ended: int, failed: int, cancelled: int, live: int) -> float | None:
    """Return the percentage of a job's items that finished with a result; None for a job without items."""
    items = ended + live
    return 100.0 * (ended - failed - cancelled) / items if items else None
