"""How plain messages look on the wire: the kind of each of their fields. `batch_shapes` has those about many tasks."""

from __future__ import annotations

from typing import Any

from scaler.protocol import messages as m
from scaler.protocol.kinds import (
    AS_IS,
    CLOCK,
    ID,
    IDS,
    LIMIT,
    OFFERS,
    OPTIONAL_ID,
    PEER,
    PERCENT,
    SECONDS,
    SIZES,
    TEXTS,
    Kind,
    Shape,
    enum_of,
    list_of,
)

_PROCESSOR = Shape(
    m.ProcessorStatus,
    pid=AS_IS,
    cpu_percent=PERCENT,
    rss_bytes=AS_IS,
    initialized=AS_IS,
    suspended=AS_IS,
    running=OPTIONAL_ID,
    running_seconds=SECONDS,
)
_UNIT = Shape(m.UnitStatus, unit_id=AS_IS, state=enum_of(m.UnitState), slots=AS_IS, age_seconds=SECONDS, reason=AS_IS)
_DETAILS: dict[type[Any], tuple[str, Shape]] = {
    m.ClientDetails: ("client", Shape(m.ClientDetails, name=AS_IS)),
    m.WorkerDetails: (
        "worker",
        Shape(m.WorkerDetails, manager_id=AS_IS, unit_id=AS_IS, slots=AS_IS, queue_size=AS_IS, capabilities=OFFERS),
    ),
    m.ManagerDetails: (
        "manager",
        Shape(
            m.ManagerDetails,
            manager_id=AS_IS,
            kind=AS_IS,
            max_concurrency=LIMIT,
            unit_slots=AS_IS,
            capabilities=OFFERS,
            fixed=AS_IS,
        ),
    ),
}
_DETAILS_BY_WIRE = dict(_DETAILS.values())


def _write_details(details: m.Details) -> dict[str, Any]:
    if details is None:
        return {"none": None}
    wire, shape = _DETAILS[type(details)]
    return {wire: shape.as_mapping(details)}


def _read_details(reader: Any) -> Any:
    wire = str(reader.which)
    return None if wire == "none" else _DETAILS_BY_WIRE[wire].read(getattr(reader, wire))


_DETAILS_KIND = Kind(_write_details, _read_details)

SHAPES = (
    Shape(
        m.Hello,
        role=enum_of(m.Role),
        resume=AS_IS,
        protocol_version=AS_IS,
        scaler_version=AS_IS,
        python_version=AS_IS,
        cloudpickle_version=AS_IS,
        hostname=AS_IS,
        pid=AS_IS,
        details=_DETAILS_KIND,
    ),
    Shape(
        m.Welcome,
        resumed=AS_IS,
        incarnation=AS_IS,
        lease_seconds=SECONDS,
        heartbeat_seconds=SECONDS,
        object_storage_address=AS_IS,
        max_pending_tasks=LIMIT,
        shared_memory=AS_IS,
    ),
    Shape(m.Refused, reason=enum_of(m.RefusalReason), text=AS_IS),
    Shape(m.Goodbye, text=AS_IS),
    Shape(m.Acknowledge),
    Shape(m.AcknowledgeResults, acknowledged=AS_IS),
    Shape(m.Cancel, ids=IDS),
    Shape(m.Clear),
    Shape(m.Pin, ids=IDS),
    Shape(m.Release, ids=IDS),
    Shape(m.ForgetFunctions, ids=IDS),
    Shape(m.Started, ids=IDS),
    Shape(m.Output, task=ID, is_stderr=AS_IS, text=AS_IS),
    Shape(
        m.WorkerHeartbeat,
        sent_at=CLOCK,
        agent_cpu_percent=PERCENT,
        agent_rss_bytes=AS_IS,
        queued=AS_IS,
        latency_seconds=SECONDS,
        processors=list_of(_PROCESSOR),
    ),
    Shape(m.Heartbeat, sent_at=CLOCK),
    Shape(m.HeartbeatEcho, sent_at=CLOCK),
    Shape(m.Drain, text=AS_IS),
    Shape(m.Relay, client=PEER, body=AS_IS),
    Shape(m.RelayClosed, client=PEER),
    Shape(m.ShutdownCluster),
    Shape(m.ShutdownReply, accepted=AS_IS, text=AS_IS),
    Shape(m.Shutdown, text=AS_IS),
    Shape(m.ManagerStatus, sent_at=CLOCK, units=list_of(_UNIT), degraded_reason=AS_IS),
    Shape(m.Desired, units=AS_IS, drained=TEXTS, reason=AS_IS, joined=TEXTS),
    Shape(m.MonitorStatus, json=AS_IS),
    Shape(m.MonitorEvents, json=AS_IS),
    Shape(m.Explain, task=ID),
    Shape(m.Explained, task=ID, text=AS_IS),
    Shape(m.ReadLog, task=ID),
    Shape(m.TaskLog, task=ID, stdout=AS_IS, stderr=AS_IS, truncated_bytes=AS_IS),
    Shape(m.PutObject, request=AS_IS, id=ID, parts=SIZES, offset=AS_IS, shared=AS_IS),
    Shape(m.GetObject, request=AS_IS, id=ID, deadline_seconds=SECONDS, shared=AS_IS),
    Shape(m.LinkObject, request=AS_IS, id=ID, target=ID),
    Shape(m.ForgetObjects, ids=IDS),
    Shape(m.ForgetOwner, owner=PEER),
    Shape(m.StatStorage, request=AS_IS),
    Shape(
        m.StorageReply,
        request=AS_IS,
        result=enum_of(m.StorageResult),
        text=AS_IS,
        parts=SIZES,
        offset=AS_IS,
        shared=AS_IS,
    ),
    Shape(m.StorageStatus, request=AS_IS, objects=AS_IS, bytes=AS_IS, limit_bytes=AS_IS, waiting_gets=AS_IS),
)
