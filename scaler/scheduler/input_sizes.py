"""Memory that the scheduler's recorded inputs keep alive; see `scaler.recorder`. Pure."""

from __future__ import annotations

from collections.abc import Collection

from scaler.net.connection import Received
from scaler.protocol.messages import Done, ManagerStatus, Output, Printed, Submit, WorkerHeartbeat
from scaler.recorder import ROW_BYTES
from scaler.scheduler.core.commands import Input, Recovered, Relayed, StorageSaid

ID_BYTES = 128
"""Approximate memory per id in a message, with its row."""


def size_of(item: Input) -> int:
    """Return the approximate memory of an input."""
    match item.message if isinstance(item, Received | StorageSaid | Relayed) else item:
        case Submit(functions, groups):
            size = sum(_columns(group.payloads) for group in groups)
            return size + _columns([payload for _, payload in functions]) if functions else size
        case Done(payloads=texts) | Printed(texts=texts):
            return _columns(texts)
        case Output(text=text):
            return ROW_BYTES + len(text)
        case WorkerHeartbeat(processors=rows) | ManagerStatus(units=rows):
            return ROW_BYTES * (1 + len(rows))
        case Recovered(client=client, submits=submits, results=results, values=values):
            size = sum(_columns(each.payloads) for each in results) + _columns(values.values())
            return size + sum(size_of(Received(client, submit)) for submit in submits)
        case other:
            return ROW_BYTES + ID_BYTES * len(getattr(other, "ids", ()))


def _columns(payloads: Collection[bytes]) -> int:
    return ROW_BYTES * len(payloads) + sum(map(len, payloads))
