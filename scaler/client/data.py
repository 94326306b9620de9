"""The scheduler's records of the locations of clients' objects, and of the costs of clients' functions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaler.client.options import check_integer
from scaler.errors import UsageError
from scaler.protocol.messages import CostsFound, FindCosts, FindObjects, ObjectsFound

if TYPE_CHECKING:
    from scaler.client.future import ScalerFuture
    from scaler.client.loop import ClientLoop
    from scaler.client.tasks import ObjectReference

MAX_OBJECTS = 1_000
MAX_COSTS = 1_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A host that stores a value, or `object storage`. size_bytes: of the value; 0 if unknown."""

    host: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A large object. function, task_id: of the task that made it; empty for an object that a client has sent.

    client: name of its client, or the id of a disconnected client. hosts: hosts that store the object, or `object
    storage`.
    """

    id: str
    size_bytes: int
    function: str
    task_id: str
    client: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """Cost of a client's function in this run, in the currency of unit_price. key: name of the client's key."""

    function: str
    client: str
    key: str
    cost: float


def who_has(loop: ClientLoop, value: ScalerFuture | ObjectReference) -> list[Holder]:
    """Raises UsageError for an invalid argument, and UnreachableError."""
    identifier = getattr(value, "_reference_id", None)
    if not isinstance(identifier, bytes):
        raise UsageError(f"{value!r} is no future and no object that send_object has returned")
    return [Holder(host, each.size_bytes) for each in _found(loop, [identifier], 1) for host in each.hosts]


def objects(loop: ClientLoop, limit: int) -> list[LargeObject]:
    """Raises UsageError for an invalid limit, and UnreachableError."""
    check_integer("limit", limit, 1, MAX_OBJECTS)
    return _found(loop, [], limit)


def costs(loop: ClientLoop, limit: int) -> list[FunctionCost]:
    """Raises UsageError for an invalid limit, and UnreachableError."""
    check_integer("limit", limit, 1, MAX_COSTS)
    return [FunctionCost(*row) for row in json.loads(loop.ask(FindCosts(limit), CostsFound).json)]


def _found(loop: ClientLoop, named: list[bytes], most: int) -> list[LargeObject]:
    answer = loop.ask(FindObjects(named, most), ObjectsFound)
    return [
        LargeObject(identifier, size_bytes, function, task, client, tuple(hosts))
        for identifier, size_bytes, function, task, client, hosts in json.loads(answer.json)
    ]
