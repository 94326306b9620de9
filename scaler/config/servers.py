"""Settings for the connections and keys of all components, and for the two servers: object storage and scheduler."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Self, cast

from scaler.config import values as v
from scaler.config.addresses import MONITOR_PORT_OFFSET, beside
from scaler.config.compatibility import OF_OBJECT_STORAGE_ADDRESS, OF_POLICY_CONTENT, OF_SCHEDULER_ADDRESS
from scaler.config.setting import LoggingConfig, Setting, SettingsModel
from scaler.host import default_memory_limit_bytes
from scaler.plugins import extensions, load
from scaler.security import CREDENTIALS_VARIABLE, INSECURE_VARIABLE

_NEED_NONE = "none; not needed by one user's processes on one machine"
_CREDENTIALS = Setting("-cr", default_text=_NEED_NONE, metavar="PATH", variable=CREDENTIALS_VARIABLE)


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig(SettingsModel):
    """Connections."""

    compression: Annotated[v.Compression, Setting(variable=v.COMPRESSION_VARIABLE)] = "auto"
    """Compress traffic between hosts. auto: only if compression saves time; on: whenever the data shrinks, even through
    a tunnel on this host; off: never. Both ends of a connection must allow compression."""


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(ConnectionConfig):
    """Security."""

    credentials: Annotated[v.Name | None, _CREDENTIALS] = None
    """For servers and local components: keys directory from `scaler keys init`. Elsewhere: file from `scaler keys
    add`."""
    insecure_no_auth: Annotated[bool, Setting(variable=INSECURE_VARIABLE)] = False
    """Accept every peer and disable encryption. All components and clients in the cluster must set this."""

    def check(self) -> None:
        super().check()
        if self.credentials and self.insecure_no_auth:
            raise ValueError("credentials and insecure_no_auth are mutually exclusive: set only one")


_STORAGE = Setting("-osa", default_text="none: the scheduler contains one", metavar="ADDRESS")
_BESIDE = "two ports above bind_address, or .monitor after its path"
_MONITORS = Setting("-ma", default_text=_BESIDE, metavar="ADDRESS")


@dataclass(frozen=True, kw_only=True)
class SpillConfig(SettingsModel):
    """Objects on disk."""

    spill_directory: Annotated[str, Setting(default_text="none: objects are in memory only", metavar="PATH")] = ""
    """Directory for the least recently used objects when memory is full. The files have no names and disappear with the
    process."""
    spill_limit_bytes: Annotated[v.Limit, Setting(default_text="-1, no limit", metavar="BYTES")] = -1
    """Maximum bytes in spill_directory; -1: until the disk is full."""

    def check(self) -> None:
        super().check()
        if self.spill_limit_bytes >= 0 and not self.spill_directory:
            raise ValueError("spill_limit_bytes has no effect without spill_directory: set both")


@dataclass(frozen=True, kw_only=True)
class ObjectStorageServerConfig(LoggingConfig, SecurityConfig, SpillConfig):
    """Object storage."""

    section = "object_storage_server"

    bind_address: Annotated[v.Address, Setting(positional=True, aliases=OF_OBJECT_STORAGE_ADDRESS, metavar="ADDRESS")]
    """Address to listen on: tcp://host:port or ipc://path."""
    memory_limit_bytes: Annotated[v.Limit, Setting(default_text="half of the machine's memory", metavar="BYTES")] = (
        field(default_factory=default_memory_limit_bytes)
    )
    """Maximum bytes of objects in memory; -1: no limit. Above the limit, a new object waits up to 5 seconds for space,
    and is then rejected."""
    max_object_bytes: Annotated[v.Limit, Setting(default_text="-1, no limit", metavar="BYTES")] = -1
    """Maximum size of one object; -1: no limit."""
    cache_limit_bytes: Annotated[v.LimitOrNone, Setting(metavar="BYTES")] = 1024**3
    """Maximum bytes of cached results, which count toward the object limits. The least recently used results are
    evicted first. 0: disable the cache; -1: no limit."""
    state_directory: Annotated[str, Setting(default_text="none: objects are in memory only", metavar="PATH")] = ""
    """Directory that preserves objects across restarts and power loss. May be shared with the scheduler, but not with
    another object storage. Storing an object waits for the disk."""
    backend: Annotated[str, Setting(default_text="none", metavar="URL")] = ""
    """URL at which objects of at least 1 MiB are also stored, so that they need no memory: s3://bucket/prefix, or any
    fsspec URL such as file:///shared/directory. Worker hosts read these objects there."""


@dataclass(frozen=True, kw_only=True)
class ExtensionNames(SettingsModel):
    """Extensions."""

    section = "scheduler"

    extensions: Annotated[v.Names, Setting(default_text="all built-in ones", metavar="NAME")] = ()
    """Built-in extensions to disable (-NAME), installed extensions to enable (NAME). As a flag: --extensions=-NAME."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(LoggingConfig, SecurityConfig, SpillConfig, ExtensionNames):
    """Scheduler."""

    section = "scheduler"

    bind_address: Annotated[v.Address, Setting(positional=True, aliases=OF_SCHEDULER_ADDRESS, metavar="ADDRESS")]
    """Address for clients, workers, and worker managers: tcp://host:port or ipc://path."""
    object_storage_address: Annotated[v.ServerAddress | None, _STORAGE] = None
    """Address that the scheduler uses to reach the object storage."""
    advertised_object_storage_address: Annotated[
        v.ServerAddress | None, Setting("-aosa", default_text="object_storage_address", metavar="ADDRESS")
    ] = None
    """Address that clients and workers use to reach the object storage, if different from the scheduler's. With the
    host 0.0.0.0, each peer substitutes the host that it uses to reach the scheduler."""
    monitor_address: Annotated[v.Address, _MONITORS] = ""
    """Address for monitors."""
    protected: Annotated[bool, Setting("-p")] = True
    """Reject shutdown requests from clients without the admin role."""
    max_number_of_tasks_waiting: Annotated[v.Limit, Setting("-mt", default_text="-1, no limit", metavar="COUNT")] = -1
    """Maximum unfinished tasks of all clients. If a single client reaches the limit, its submit blocks. Other tasks
    above the limit are rejected."""
    max_tasks_per_client: Annotated[v.Limit, Setting(metavar="COUNT")] = 10_000_000
    """Maximum unfinished tasks per key. Tasks above the limit are rejected. -1: no limit."""
    max_bytes_per_client: Annotated[
        v.Limit, Setting(default_text="a quarter of the machine's memory", metavar="BYTES")
    ] = field(default_factory=lambda: default_memory_limit_bytes() // 2)
    """Maximum bytes of arguments, functions, and results per key in the scheduler's own memory; -1: no limit. All keys
    together may use half of the machine's memory, or this limit if it is larger."""
    client_timeout_seconds: Annotated[v.Seconds, Setting("-ct", metavar="SECONDS")] = 60.0
    """Time without contact after which a client counts as lost. Its tasks are then cancelled, and its objects released
    after object_retention_seconds."""
    worker_timeout_seconds: Annotated[v.Seconds, Setting("-wt", metavar="SECONDS")] = 60.0
    """Time without contact after which a worker counts as lost. Its tasks are then rescheduled on other workers."""
    object_retention_seconds: Annotated[v.SecondsOrNone, Setting("-ot", metavar="SECONDS")] = 60.0
    """How long to keep a lost client's objects, in case the client reconnects."""
    event_loop: Annotated[v.EventLoop, Setting("-el -e")] = "builtin"
    """Event loop: Python's own (builtin) or uvloop."""
    policy_engine_type: Annotated[v.Name, Setting("-et", metavar="NAME")] = "simple"
    """Scaling policy: simple, waterfall_v1, target_v1, or an entry point in the group scaler.scaling_policies."""
    policy_content: Annotated[
        str, Setting("-pc", aliases=OF_POLICY_CONTENT, default_text="the policy's own defaults", metavar="TEXT")
    ] = ""
    """Policy settings, in the policy's syntax."""
    state_directory: Annotated[str, Setting(default_text="none: the state is in memory only", metavar="PATH")] = ""
    """Directory of the journal, which preserves tasks and results across restarts and power loss. Readable only by its
    owner, and used by one scheduler. Needs 128 MiB plus twice the size of unfinished tasks and results."""

    @property
    def max_bytes(self) -> int:
        """Maximum bytes for all keys together; see max_bytes_per_client."""
        return max(default_memory_limit_bytes(), self.max_bytes_per_client)

    @classmethod
    def from_json(cls, text: str) -> Self:
        names = tuple(json.loads(text).get("extensions", ()))
        return cast("Self", super(SchedulerConfig, scheduler_model(names)).from_json(text))

    def __post_init__(self) -> None:
        if not self.monitor_address:
            self.default("monitor_address", beside(self.bind_address, MONITOR_PORT_OFFSET, ".monitor"))
        self.default("advertised_object_storage_address", self.object_storage_address)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.object_storage_address and self.spill_directory:
            raise ValueError(
                f"spill_directory applies to the object storage inside the scheduler, but object_storage_address is "
                f"{self.object_storage_address}: set it in [object_storage_server]"
            )
        for each in extensions(tuple(name for name in self.extensions if not name.startswith("-"))):
            if f"-{each.name}" in self.extensions and each.settings:
                for item in fields(cast("type[Any]", load(each.settings))):
                    usual = item.default if item.default_factory is MISSING else item.default_factory()
                    if getattr(self, item.name, usual) != usual:
                        raise ValueError(f"{item.name} has no effect while the extension {each.name} is disabled")


def scheduler_model(changes: tuple[str, ...] = ()) -> type[SchedulerConfig]:
    """Return the [scheduler] model, including the settings of extensions. changes: see `extensions`."""
    return _model(tuple(each for each in changes if not each.startswith("-")))


@cache
def _model(added: tuple[str, ...]) -> type[SchedulerConfig]:
    models = [cast("type[Any]", load(each.settings)) for each in extensions(added) if each.settings]
    made = type(SchedulerConfig.__name__, (SchedulerConfig, *models), {"__doc__": SchedulerConfig.__doc__})
    return dataclass(frozen=True, kw_only=True)(made)
