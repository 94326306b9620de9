"""The two servers: object storage and scheduler."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from scaler.config.addresses import monitor_address_beside
from scaler.config.kinds import Address, Count, Limit, Name, Seconds, SecondsOrNone, ServerAddress
from scaler.config.logging import LoggingConfig
from scaler.config.machine import default_memory_limit_bytes
from scaler.config.setting import Alias, Setting
from scaler.config.worker import EventLoop

_ALLOCATE = {"even": "even_load", "even_load": "even_load", "capability": "capability"}


def _content_of_allocate_policy(value: object) -> object:
    allocate = _ALLOCATE.get(value) if isinstance(value, str) else None
    if allocate is None:
        raise ValueError(f"must be one of {', '.join(_ALLOCATE)}")
    return f"allocate={allocate}; scaling=vanilla"


def _default_monitor_address(validated: dict[str, Any]) -> str:
    return monitor_address_beside(validated["bind_address"])


def _object_storage_address(validated: dict[str, Any]) -> str | None:
    address: str | None = validated["object_storage_address"]
    return address


class ObjectStorageServerConfig(LoggingConfig):
    """Object storage."""

    bind_address: Annotated[
        Address, Setting(positional=True, aliases=(Alias("object_storage_address"),), metavar="ADDRESS")
    ]
    """Where it listens: tcp://host:port or ipc://path."""
    memory_limit_bytes: Annotated[Limit, Setting(default_text="half of the machine's memory", metavar="BYTES")] = Field(
        default_factory=default_memory_limit_bytes
    )
    """Most bytes of objects that it keeps; -1: no limit. Beyond it, a new object is refused."""
    max_object_bytes: Annotated[Limit, Setting(default_text="-1, no limit", metavar="BYTES")] = -1
    """Largest object that it accepts; -1: no limit."""


class SchedulerConfig(LoggingConfig):
    """Scheduler."""

    bind_address: Annotated[Address, Setting(positional=True, aliases=(Alias("scheduler_address"),), metavar="ADDRESS")]
    """Where clients, workers and worker managers connect to: tcp://host:port or ipc://path."""
    object_storage_address: Annotated[
        ServerAddress | None,
        Setting("-osa", default_text="none: one is started inside the scheduler", metavar="ADDRESS"),
    ] = None
    """Where the scheduler finds the object storage."""
    advertised_object_storage_address: Annotated[
        ServerAddress | None, Setting("-aosa", default_text="object_storage_address", metavar="ADDRESS")
    ] = Field(default_factory=_object_storage_address)
    """Where clients and workers find the object storage, when that is another address than the scheduler's own."""
    monitor_address: Annotated[
        Address,
        Setting("-ma", default_text="two ports above bind_address, or .monitor after its path", metavar="ADDRESS"),
    ] = Field(default_factory=_default_monitor_address)
    """Where monitors connect to."""
    protected: Annotated[bool, Setting("-p")] = True
    """Refuse to shut down when a client asks for it."""
    max_number_of_tasks_waiting: Annotated[Limit, Setting("-mt", default_text="-1, no limit", metavar="COUNT")] = -1
    """Most unfinished tasks of all clients together; a task beyond it is rejected."""
    client_timeout_seconds: Annotated[Seconds, Setting("-ct", metavar="SECONDS")] = 60.0
    """A client out of contact for this long is given up: its tasks are cancelled, and nobody keeps its objects."""
    worker_timeout_seconds: Annotated[Seconds, Setting("-wt", metavar="SECONDS")] = 60.0
    """A worker out of contact for this long is given up: its tasks go to others."""
    object_retention_seconds: Annotated[SecondsOrNone, Setting("-ot", metavar="SECONDS")] = 60.0
    """How long the objects of a client that was given up are kept, should it come back."""
    load_balance_seconds: Annotated[Seconds, Setting("-ls", metavar="SECONDS")] = 1.0
    """How often the scheduler looks whether some workers wait while tasks queue behind others."""
    load_balance_trigger_times: Annotated[Count, Setting("-lbt", metavar="COUNT")] = 2
    """How many looks in a row must find this before queued tasks are moved."""
    event_loop: Annotated[EventLoop, Setting("-el", "-e")] = "builtin"
    """Python's own event loop, or uvloop."""
    io_threads: Annotated[Count, Setting("-it", metavar="COUNT")] = 1
    """Threads that move bytes between ZeroMQ's sockets and the process. Peers on the scheduler's host need none."""
    status_report_interval_seconds: Annotated[Seconds, Setting("-sri", metavar="SECONDS")] = 1.0
    """How often monitors are told how things stand; what happens comes sooner, within 0.25 s."""
    policy_engine_type: Annotated[Name, Setting("-et", metavar="NAME")] = "simple"
    """The scaling policy: simple, waterfall_v1, target_v1, or one that is installed under scaler.scaling_policies."""
    policy_content: Annotated[
        str,
        Setting("-pc", aliases=(Alias("allocate_policy", _content_of_allocate_policy),), metavar="TEXT"),
    ] = "allocate=even_load; scaling=vanilla"
    """The policy's own settings, in its own syntax."""
