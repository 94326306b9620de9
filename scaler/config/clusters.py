"""The components of a cluster on this machine: the ones in a file, or a scheduler with workers and a web page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from scaler.config.addresses import local_address, split_tcp
from scaler.config.load import Sources, resolve
from scaler.config.monitors import WebUiConfig
from scaler.config.servers import ExtensionNames, ObjectStorageServerConfig, SchedulerConfig, scheduler_model
from scaler.config.setting import SettingsModel
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig
from scaler.errors import ConfigError

LOCAL = "local"
M = TypeVar("M", bound=SettingsModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    object_storage_server: ObjectStorageServerConfig | None = None
    """Settings of the object storage; None: the scheduler contains the storage, or uses a remote one."""
    processes: Mapping[str, SettingsModel] = field(default_factory=dict)
    """Settings for the extensions' processes, by section."""
    scheduler: SchedulerConfig
    worker_managers: tuple[WorkerManagerConfig, ...] = ()
    webui: WebUiConfig | None = None
    name: str = LOCAL
    """Name that this user's programs and commands use to find the cluster."""

    def __post_init__(self) -> None:
        counts = Counter(manager.worker_manager_id for manager in self.worker_managers)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ConfigError(f"two worker managers have the same worker_manager_id: {', '.join(map(repr, twice))}")
        for key in ("bind_address", "monitor_address"):
            address = getattr(self.scheduler, key)
            found = split_tcp(address)
            if found is not None and found[1] == 0:
                raise ConfigError(
                    f"scheduler.{key}: {address}: give a fixed port, not 0 (any free port), so that peers can find it"
                )
        # After two thirds of its timeout without contact, a worker starts no tasks.
        limit = self.scheduler.worker_timeout_seconds * 2 / 3
        for manager in self.worker_managers:
            if manager.heartbeat_interval_seconds >= limit:
                raise ConfigError(
                    f"heartbeat_interval_seconds ({manager.heartbeat_interval_seconds:g}) of worker manager "
                    f"{manager.worker_manager_id!r} must be less than two thirds of the scheduler's "
                    f"worker_timeout_seconds ({self.scheduler.worker_timeout_seconds:g})"
                )


def scheduler_model_of(sources: Sources) -> type[SchedulerConfig]:
    """Return the [scheduler] model, including the settings of the extensions that the sources enable."""

    def only_names(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key == "extensions"}

    table = None if sources.table is None else replace(sources.table, values=only_names(sources.table.values))
    flags, implied = only_names(sources.flags), only_names(sources.implied)
    return scheduler_model(
        resolve(ExtensionNames, replace(sources, flags=flags, table=table, implied=implied)).extensions
    )


def local_config(
    sources: Sources,
    address: str,
    *,
    storage_address: str | None = None,
    has_workers: bool = True,
    has_page: bool = True,
    name: str = LOCAL,
) -> LauncherConfig:
    """Return a scheduler, fixed workers, and a web page. A setting applies to all components that have it. address:
    default for the scheduler's address. storage_address: address of a separate object storage server.
    """

    def load(model: type[M], **own: object) -> M:
        keys = {item.name for item in fields(model)}
        flags, implied = (
            {key: value for key, value in values.items() if key in keys} for values in (sources.flags, sources.implied)
        )
        return resolve(model, replace(sources, flags=flags, implied=implied | own))

    storage, beside = None, dict[str, object]()
    if storage_address is not None:
        storage = load(ObjectStorageServerConfig, bind_address=storage_address)
        # The separate storage writes objects to disk.
        beside = {"object_storage_address": storage_address, "spill_directory": "", "spill_limit_bytes": -1}
    scheduler = load(scheduler_model_of(sources), bind_address=address, **beside)
    own_address = local_address(scheduler.bind_address)
    workers = load(ClusterConfig, scheduler_address=own_address)
    return LauncherConfig(
        object_storage_server=storage,
        scheduler=scheduler,
        worker_managers=(workers.as_worker_manager(),) if has_workers else (),
        webui=load(WebUiConfig, monitor_address=local_address(scheduler.monitor_address)) if has_page else None,
        name=name,
    )
