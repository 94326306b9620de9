"""Settings for worker managers, and for the fixed cluster, which runs a worker manager."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, ClassVar, cast

from scaler.config.compatibility import OF_MAX_TASK_CONCURRENCY, OF_NUM_OF_WORKERS
from scaler.config.servers import SecurityConfig
from scaler.config.setting import Setting
from scaler.config.values import Count, CountOrNone, Limit, Name, Price, ServerAddresses
from scaler.config.worker import ProcessorSettings, WorkerConfig, WorkerSettings
from scaler.host import unique_name, usable_cpus
from scaler.interpreter import own_hash_seed
from scaler.needs import GPU
from scaler.paths import local_path
from scaler.plugins import load, worker_manager_type

FILE_MARK = "@"  # prefix of a requirements file's path
_COMMENT = re.compile(r"(^|\s)#.*")
FAR_WORKERS = """\
Workers must be able to reach the scheduler: set worker_scheduler_address to an address that works for them, and
[scheduler] advertised_object_storage_address to the same host with the next port."""
TASKS_AT_ONCE = Setting("-mtc -n", aliases=OF_MAX_TASK_CONCURRENCY, metavar="COUNT")


def default_concurrency() -> int:
    """Return the default number of local workers: usable CPUs minus 1, at least 1."""
    return max(1, usable_cpus() - 1)


@dataclass(frozen=True, kw_only=True)
class ConnectedWorkerSettings(WorkerSettings, SecurityConfig):
    """Workers."""

    scheduler_address: Annotated[ServerAddresses, Setting(positional=True, metavar="ADDRESS")]
    """Address of the scheduler. With a standby scheduler: both addresses, separated by a comma."""
    worker_scheduler_address: Annotated[
        ServerAddresses, Setting("-wsa", default_text="scheduler_address", metavar="ADDRESS")
    ] = ""
    """Address that workers use to reach the scheduler, if different from the manager's."""

    def __post_init__(self) -> None:
        self.default("worker_scheduler_address", self.scheduler_address)
        super().__post_init__()

    def all_requirements(self) -> tuple[str, ...]:
        """Return all requirements, including the contents of @ files. Raises ValueError for an unreadable file."""
        found: list[str] = []
        for each in self.requirements:
            if not each.startswith(FILE_MARK):
                found.append(each)
                continue
            path = local_path(each.removeprefix(FILE_MARK))
            try:
                lines = path.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"requirements: cannot read {str(path)!r}: {error}") from None
            found += [text for line in lines if (text := _COMMENT.sub("", line).strip())]
        return tuple(found)

    def check(self) -> None:
        super().check()
        if any(each.startswith("-") for each in self.all_requirements()):
            raise ValueError("requirements: installer options are not allowed; set UV_... or PIP_... variables instead")
        if self.death_timeout_seconds <= self.heartbeat_interval_seconds:
            raise ValueError(
                f"death_timeout_seconds ({self.death_timeout_seconds:g}) must be more than "
                f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds:g})"
            )
        if 0 < self.memory_limit_bytes < self.processor_memory_limit_bytes:
            raise ValueError(
                f"processor_memory_limit_bytes ({self.processor_memory_limit_bytes}) must not be more than "
                f"memory_limit_bytes ({self.memory_limit_bytes}), the limit for all processors of a worker together"
            )


@dataclass(frozen=True, kw_only=True)
class WorkerManagerConfig(ConnectedWorkerSettings):
    """Worker manager."""

    section = "worker_manager"
    note: ClassVar[str] = ""  # follows the type in the file that `scaler init` writes
    # Placeholders for required settings that `setup`, `show`, and `teardown` do not use.
    runs_elsewhere: ClassVar[bool] = False  # whether tasks run at a service instead of in local processors
    setup_defaults: ClassVar[Mapping[str, object]] = {"scheduler_address": "tcp://127.0.0.1:1"}

    type: Name
    """Backend that provides the workers."""
    worker_manager_id: Annotated[Name, Setting("-wmi", metavar="NAME")]
    """Name of the manager, unique within a scheduler."""
    max_task_concurrency: Annotated[Limit, replace(TASKS_AT_ONCE, default_text="CPUs minus 1, at least 1")] = field(
        default_factory=default_concurrency
    )
    """Maximum tasks that run at once on the manager's workers; -1: no limit."""

    unit_price: Annotated[Price | None, Setting(default_text="the type's default, otherwise 0", metavar="PRICE")] = None
    """Hourly price of a unit (process, container, machine, or job), or of a task if tasks are jobs, for the scheduler's
    spend_limit; 0: free."""
    minimum_units: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """Units that always exist, even without work."""
    warm_units: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """Running units to keep when work ends. Starts no units."""
    buffer_units: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """Spare units whose slots are kept free while other slots are busy."""

    def offer_gpus(self, count: int) -> None:
        """Add the capability gpu unless the user has set one. For `__post_init__` only."""
        if count and GPU not in self.per_worker_capabilities:
            object.__setattr__(self, "per_worker_capabilities", {**self.per_worker_capabilities, GPU: float(count)})

    def check(self) -> None:
        super().check()
        for item in fields(ProcessorSettings) if self.runs_elsewhere else ():
            if getattr(self, item.name) != item.default:
                mode = getattr(self, "mode", "")
                tasks = f"tasks of {self.type}{f' in mode {mode}' if mode else ''}"
                raise ValueError(f"{item.name} applies to workers' processors, which {tasks} do not have: remove it")

    def worker_config(
        self, unit_id: str, slots: int, *, unit_id_from: str = "unit_id", stop_grace_seconds: float = 5.0
    ) -> WorkerConfig:
        """Return the configuration document for one unit."""
        values = {item.name: getattr(self, item.name) for item in fields(WorkerSettings)}
        return WorkerConfig(
            **values | {"requirements": self.all_requirements()},
            scheduler_address=self.worker_scheduler_address,
            insecure_no_auth=self.insecure_no_auth,
            compression=self.compression,
            worker_manager_id=self.worker_manager_id,
            unit_id=unit_id,
            unit_id_from=unit_id_from,
            slots=slots,
            hash_seed=own_hash_seed(),
            stop_grace_seconds=stop_grace_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(ConnectedWorkerSettings):
    """Cluster: a fixed set of local workers."""

    section = "cluster"

    num_of_workers: Annotated[
        Count, Setting("-n -mtc", aliases=OF_NUM_OF_WORKERS, default_text="CPUs minus 1, at least 1", metavar="COUNT")
    ] = field(default_factory=default_concurrency)
    """Number of workers."""
    worker_manager_id: Annotated[Name, Setting("-wmi", default_text="cluster-HOST-PID-RANDOM", metavar="NAME")] = field(
        default_factory=partial(unique_name, "cluster")
    )
    """Name of the cluster, unique among a scheduler's worker managers."""

    def as_worker_manager(self) -> WorkerManagerConfig:
        """Return the equivalent baremetal_native manager in fixed mode."""
        values = {name: value for name, value in vars(self).items() if name != "num_of_workers"}
        values |= {"max_task_concurrency": self.num_of_workers, "mode": "fixed"}
        return settings_model("baremetal_native")(**values)


def settings_model(kind: str) -> type[WorkerManagerConfig]:
    return cast("type[WorkerManagerConfig]", load(worker_manager_type(kind).settings))
