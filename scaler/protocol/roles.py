"""Which messages may go between whom. Everything else is a peer's nonsense, whatever it holds.

Only connections to a server exist: MAY_SEND is what their connecting sides may say, MAY_ANSWER what the server may. The
role is that of the connecting side. A nested client's messages, inside a Relay, are judged as those of a client.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from scaler.protocol.messages import (
    Acknowledge,
    AcknowledgeResults,
    Cancel,
    Clear,
    Desired,
    Done,
    Drain,
    Explain,
    Explained,
    Finished,
    ForgetFunctions,
    ForgetObjects,
    ForgetOwner,
    GetObject,
    Goodbye,
    Heartbeat,
    HeartbeatEcho,
    Hello,
    LinkObject,
    ManagerStatus,
    Message,
    MonitorEvents,
    MonitorStatus,
    Output,
    Pin,
    Printed,
    PutObject,
    ReadLog,
    Recall,
    Refused,
    Relay,
    RelayClosed,
    Release,
    Returned,
    Role,
    Run,
    Shutdown,
    ShutdownCluster,
    ShutdownReply,
    Started,
    StatStorage,
    StorageReply,
    StorageStatus,
    Submit,
    Suspended,
    TaskLog,
    Welcome,
    WorkerHeartbeat,
)


class Server(StrEnum):
    """What a peer connects to."""

    SCHEDULER = "scheduler"
    OBJECT_STORAGE = "object_storage"


_Types = frozenset[type[Any]]

_NOBODY: _Types = frozenset()
_PEER: _Types = frozenset({Hello, Goodbye, Acknowledge, Heartbeat})
_SERVER: _Types = frozenset({Welcome, Refused, Goodbye, Acknowledge, HeartbeatEcho})
_OBJECTS: _Types = frozenset({PutObject, GetObject, LinkObject, ForgetObjects, StatStorage})
_STORED: _Types = frozenset({StorageReply, StorageStatus})

MAY_SEND: dict[Server, dict[Role, _Types]] = {
    Server.SCHEDULER: {
        Role.CLIENT: _PEER
        | {Submit, AcknowledgeResults, Cancel, Clear, Pin, Release, ShutdownCluster, Explain, ReadLog},
        Role.WORKER: _PEER
        | {WorkerHeartbeat, Done, Returned, Started, Suspended, Output, Printed, Drain, Relay, RelayClosed},
        Role.MANAGER: _PEER | {ManagerStatus},
        Role.MONITOR: _PEER | {Explain, ReadLog},
        Role.ADMIN: _PEER | {ShutdownCluster},
        Role.SCHEDULER: _NOBODY,
    },
    Server.OBJECT_STORAGE: {
        Role.CLIENT: _PEER | _OBJECTS,
        Role.WORKER: _PEER | _OBJECTS,
        Role.MANAGER: _NOBODY,
        Role.MONITOR: _PEER | {StatStorage},
        Role.ADMIN: _PEER | {StatStorage},
        Role.SCHEDULER: _PEER | _OBJECTS | {ForgetOwner},
    },
}
"""What a peer of each role may send to each server; nothing at all: that role has no business there."""

MAY_ANSWER: dict[Server, dict[Role, _Types]] = {
    Server.SCHEDULER: {
        Role.CLIENT: _SERVER | {Started, Finished, Output, ShutdownReply, Explained, TaskLog},
        Role.WORKER: _SERVER | {Run, ForgetFunctions, Recall, Drain, Relay, Shutdown},
        Role.MANAGER: _SERVER | {Desired, Shutdown},
        Role.MONITOR: _SERVER | {MonitorStatus, MonitorEvents, Explained, TaskLog},
        Role.ADMIN: _SERVER | {ShutdownReply},
        Role.SCHEDULER: frozenset({Refused}),
    },
    Server.OBJECT_STORAGE: {
        Role.CLIENT: _SERVER | _STORED,
        Role.WORKER: _SERVER | _STORED,
        Role.MANAGER: frozenset({Refused}),
        Role.MONITOR: _SERVER | {StorageStatus},
        Role.ADMIN: _SERVER | {StorageStatus},
        Role.SCHEDULER: _SERVER | _STORED,
    },
}
"""What each server may send to a peer of each role. Whoever it is, a server may refuse it."""


def may_send(server: Server, role: Role, message_type: type[Message]) -> bool:
    """Tell whether a peer of this role may send this message to the server."""
    return message_type in MAY_SEND[server][role]


def may_answer(server: Server, role: Role, message_type: type[Message]) -> bool:
    """Tell whether the server may send this message to a peer of this role."""
    return message_type in MAY_ANSWER[server][role]
