"""Monitor rows of the connections to the scheduler. Pure."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column

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


LINK_COLUMNS = LinkRow._fields[:-2]
"""Columns sent by the scheduler."""


class NetworkRow(NamedTuple):
    """Whether the network or the cluster delays tasks. cause: none, scheduler, storage, network, or distance."""

    cause: str = ""
    text: Annotated[str, Column(help="Includes the figures behind it")] = ""
