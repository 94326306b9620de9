"""Settings of the two servers: object storage and scheduler."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Self, cast

from scaler.config.addresses import monitor_address_beside
from scaler.config.compatibility import OF_OBJECT_STORAGE_ADDRESS, OF_POLICY_CONTENT, OF_SCHEDULER_ADDRESS
from scaler.config.security import SecurityConfig
from scaler.config.setting import LoggingConfig, Setting, SettingsModel
from scaler.config.values import (
    Address,
    Count,
    EventLoop,
    Limit,
    LimitOrNone,
    Name,
    Names,
    Seconds,
    SecondsOrNone,
    ServerAddress,
)
from scaler.host import default_memory_limit_bytes
from scaler.plugins import extensions, load


@dataclass(frozen=True, kw_only=True)
class SpillConfig(SettingsModel):
    """Objects on disk."""

    spill_directory: Annotated[str, Setting(default_text="none: objects are in memory only", metavar="PATH")] = ""
    """Directory on disk for objects that memory has no room for, the least recently used ones first. Its files have no
    names, and end with the process."""
    spill_limit_bytes: Annotated[Limit, Setting(default_text="-1, no limit", metavar="BYTES")] = -1
    """Maximum bytes that it keeps in spill_directory; -1: until the disk is full."""

    def check(self) -> None:
        super().check()
        if self.spill_limit_bytes >= 0 and not self.spill_directory:
            raise ValueError("spill_limit_bytes limits what is in spill_directory: give that, too")


@dataclass(frozen=True, kw_only=True)
class ObjectStorageServerConfig(LoggingConfig, SecurityConfig, SpillConfig):
    """Object storage."""

    section = "object_storage_server"

    bind_address: Annotated[Address, Setting(positional=True, aliases=OF_OBJECT_STORAGE_ADDRESS, metavar="ADDRESS")]
    """Where it listens: tcp://host:port or ipc://path."""
    memory_limit_bytes: Annotated[Limit, Setting(default_text="half of the machine's memory", metavar="BYTES")] = field(
        default_factory=default_memory_limit_bytes
    )
    """Maximum bytes of objects that it keeps in memory; -1: no limit. Beyond it, a new object waits for room, and is
    refused after 5 seconds."""
    max_object_bytes: Annotated[Limit, Setting(default_text="-1, no limit", metavar="BYTES")] = -1
    """Largest object that it accepts; -1: no limit."""
    cache_limit_bytes: Annotated[LimitOrNone, Setting(metavar="BYTES")] = 1024**3
    """Maximum bytes of cached results, which count among its objects; those unused for longest go first. 0: none are
    kept; -1: no limit."""
    state_directory: Annotated[str, Setting(default_text="none: objects are in memory only", metavar="PATH")] = ""
    """Directory in which objects outlive the object storage's process and a power loss. One object storage uses it at a
    time; the scheduler may have the same one. An object is stored when the disk has it, so storing is as fast as that.
    """
    backend: Annotated[str, Setting(default_text="none", metavar="URL")] = ""
    """Where objects of 1 MiB and more are written to, too: s3://bucket/prefix, or a URL of a filesystem that fsspec
    knows, such as file:///shared/directory. Hosts of workers fetch them there, and memory need not keep them."""


@dataclass(frozen=True, kw_only=True)
class ExtensionNames(SettingsModel):
    """Extensions."""

    section = "scheduler"

    extensions: Annotated[Names, Setting(default_text="all built-in ones", metavar="NAME")] = ()
    """Extensions to leave out, as -NAME, and installed ones to add, as NAME. As a flag: --extensions=-NAME."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(LoggingConfig, SecurityConfig, SpillConfig, ExtensionNames):
    """Scheduler."""

    section = "scheduler"

    bind_address: Annotated[Address, Setting(positional=True, aliases=OF_SCHEDULER_ADDRESS, metavar="ADDRESS")]
    """Where clients, workers and worker managers connect: tcp://host:port or ipc://path."""
    object_storage_address: Annotated[
        ServerAddress | None,
        Setting("-osa", default_text="none: one is started inside the scheduler", metavar="ADDRESS"),
    ] = None
    """Where the scheduler finds the object storage."""
    advertised_object_storage_address: Annotated[
        ServerAddress | None, Setting("-aosa", default_text="object_storage_address", metavar="ADDRESS")
    ] = None
    """Where clients and workers find the object storage, when that is not the address that the scheduler uses. The host
    0.0.0.0 is the scheduler's, by the address at which each of them reaches it."""
    monitor_address: Annotated[
        Address,
        Setting("-ma", default_text="two ports above bind_address, or .monitor after its path", metavar="ADDRESS"),
    ] = ""
    """Where monitors connect."""
    protected: Annotated[bool, Setting("-p")] = True
    """Refuse to shut down when a client asks for it."""
    max_number_of_tasks_waiting: Annotated[Limit, Setting("-mt", default_text="-1, no limit", metavar="COUNT")] = -1
    """Maximum number of unfinished tasks of all clients together; a task beyond it is rejected."""
    max_tasks_per_client: Annotated[Limit, Setting(metavar="COUNT")] = 10_000_000
    """Maximum number of unfinished tasks of one key; a task beyond it is rejected. -1: no limit."""
    max_bytes_per_client: Annotated[
        Limit, Setting(default_text="a quarter of the machine's memory", metavar="BYTES")
    ] = field(default_factory=lambda: default_memory_limit_bytes() // 2)
    """Maximum bytes of arguments, functions and results that the scheduler itself keeps for one key; -1: no limit."""
    max_bytes: Annotated[Limit, Setting(default_text="half of the machine's memory", metavar="BYTES")] = field(
        default_factory=default_memory_limit_bytes
    )
    """The same of all keys together."""
    max_connections_per_client: Annotated[Limit, Setting(metavar="COUNT")] = 20_000
    """Maximum number of clients, workers and worker managers that one key has here at a time; -1: no limit."""
    max_connections: Annotated[Limit, Setting(metavar="COUNT")] = 60_000
    """The same of all keys together."""
    max_sessions_per_hour: Annotated[Limit, Setting(metavar="COUNT")] = 100_000
    """Maximum number of sessions that one key opens within an hour; reconnecting within the lease opens none."""
    client_timeout_seconds: Annotated[Seconds, Setting("-ct", metavar="SECONDS")] = 60.0
    """A client without contact for this long is lost: its tasks are cancelled and its objects are no longer kept."""
    worker_timeout_seconds: Annotated[Seconds, Setting("-wt", metavar="SECONDS")] = 60.0
    """A worker without contact for this long is lost: its tasks run on other workers."""
    object_retention_seconds: Annotated[SecondsOrNone, Setting("-ot", metavar="SECONDS")] = 60.0
    """How long the objects of a lost client are kept, in case it comes back."""
    session_retention_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 604_800.0
    """How long a durable session is kept that no client uses, after its last task has ended."""
    load_balance_seconds: Annotated[Seconds, Setting("-ls", metavar="SECONDS")] = 1.0
    """How often the scheduler checks whether some workers are idle while tasks queue behind others."""
    load_balance_trigger_times: Annotated[Count, Setting("-lbt", metavar="COUNT")] = 2
    """How many checks in a row must find this before queued tasks are moved."""
    event_loop: Annotated[EventLoop, Setting("-el -e")] = "builtin"
    """Python's own event loop, or uvloop."""
    io_threads: Annotated[Count, Setting("-it", metavar="COUNT")] = 1
    """Threads that move bytes between ZeroMQ sockets and the process. Peers on the scheduler's host need none."""
    status_report_interval_seconds: Annotated[Seconds, Setting("-sri", metavar="SECONDS")] = 1.0
    """Interval of status reports to monitors; events are reported within 0.25 s."""
    policy_engine_type: Annotated[Name, Setting("-et", metavar="NAME")] = "simple"
    """The scaling policy: simple, waterfall_v1, target_v1, or one that is installed under scaler.scaling_policies."""
    policy_content: Annotated[
        str,
        Setting("-pc", aliases=OF_POLICY_CONTENT, default_text="the policy's own defaults", metavar="TEXT"),
    ] = ""
    """Settings of the policy, in the policy's own syntax."""
    state_directory: Annotated[str, Setting(default_text="none: the state is in memory only", metavar="PATH")] = ""
    """Directory of the journal, so that tasks and results outlive the scheduler's process and a power loss. One
    scheduler uses it at a time; only its owner can read it. It needs 128 MiB, and twice what unfinished tasks and
    results take."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        names = tuple(json.loads(text).get("extensions", ()))
        return cast("Self", super(SchedulerConfig, scheduler_model(names)).from_json(text))

    def __post_init__(self) -> None:
        if not self.monitor_address:
            self.default("monitor_address", monitor_address_beside(self.bind_address))
        self.default("advertised_object_storage_address", self.object_storage_address)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.object_storage_address and self.spill_directory:
            raise ValueError(
                f"spill_directory is for the object storage inside the scheduler, and object_storage_address names "
                f"{self.object_storage_address}: set it in [object_storage_server]"
            )
        for each in extensions(tuple(name for name in self.extensions if not name.startswith("-"))):
            if f"-{each.name}" in self.extensions and each.settings:
                for item in fields(cast("type[Any]", load(each.settings))):
                    if getattr(self, item.name, item.default) != item.default:
                        raise ValueError(f"{item.name} has no effect, because extensions leaves {each.name} out")


def scheduler_model(changes: tuple[str, ...] = ()) -> type[SchedulerConfig]:
    """Return the model of [scheduler] with the settings of extensions. changes: as in `extensions`."""
    return _scheduler_model(tuple(each for each in changes if not each.startswith("-")))


@cache
def _scheduler_model(added: tuple[str, ...]) -> type[SchedulerConfig]:
    models = [cast("type[Any]", load(each.settings)) for each in extensions(added) if each.settings]
    made = type(SchedulerConfig.__name__, (SchedulerConfig, *models), {"__doc__": SchedulerConfig.__doc__})
    return dataclass(frozen=True, kw_only=True)(made)
