"""Monitor rows of data: stores, transfers between them, and the largest objects. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column

_LIMIT_HELP = "Most memory for objects"
_LIMIT = Column("Limit", "bytes", 1, _LIMIT_HELP, metric="scaler_store_limit_bytes", zero_is_none=True)
_MISSES = Column("Misses", "count", 3, "Gets served after a fetch", metric="scaler_store_misses_total")
_FETCHED = Column("Fetched", "bytes", 1, "From other stores", metric="scaler_store_received_bytes_total")
_HIT_RATE = Column("Hit rate", "percent", 2, "Share of gets that were hits; empty before the first", after="misses")


class StoreRow(NamedTuple):
    """A store: the object storage (id 0) or a host's store. Counts cover the time since its start, as far as known.
    hits: gets of objects present in the store; misses: gets that fetched the object."""

    id: str = ""
    host: Annotated[str, Column("Host", help="Whose store it is")] = ""
    address: Annotated[str, Column("Address", rank=3, help="Address for other stores; empty: unreachable")] = ""
    objects: Annotated[int, Column("Objects", "count", 2, metric="scaler_store_objects")] = 0
    bytes: Annotated[int, Column("Memory", "bytes", 1, "Of its objects", metric="scaler_store_bytes")] = 0
    limit_bytes: Annotated[int, _LIMIT] = 0
    spilled_bytes: Annotated[
        int, Column("On disk", "bytes", 2, "Spilled objects", metric="scaler_store_spilled_bytes")
    ] = 0
    hits: Annotated[int, Column("Hits", "count", 3, "Gets served locally", metric="scaler_store_hits_total")] = 0
    misses: Annotated[int, _MISSES] = 0
    received_bytes: Annotated[int, _FETCHED] = 0
    sent_bytes: Annotated[
        int, Column("Served", "bytes", 2, "To other stores", metric="scaler_store_sent_bytes_total")
    ] = 0
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


STORE_COLUMNS = StoreRow._fields[:-1]
"""Columns sent by the scheduler."""


class PairRow(NamedTuple):
    id: str = ""
    source: Annotated[str, Column("From")] = ""
    target: Annotated[str, Column("To")] = ""
    bytes: Annotated[int, Column("Bytes", "bytes")] = 0
    unreachable: Annotated[bool, Column(help="They cannot connect: objects go through the object storage")] = False


class ObjectRow(NamedTuple):
    """A large object. function, task: origin of the object; empty if sent by a client."""

    id: Annotated[str, Column("Object")] = ""
    size_bytes: Annotated[int, Column("Size", "bytes")] = 0
    function: Annotated[str, Column("Function", help="Whose result it is")] = ""
    task: Annotated[str, Column("Task", rank=2, help="Whose result it is")] = ""
    client: Annotated[str, Column("Client", rank=3, help="Whose object it is")] = ""
    holders: Annotated[str, Column("Held by", help="Hosts whose stores hold it, or the object storage")] = ""
