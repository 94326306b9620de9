"""Worker managers, and the fixed cluster that is one of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, model_validator

from scaler.config.kinds import (
    Bytes,
    Capabilities,
    Count,
    Limit,
    Name,
    Preload,
    Seconds,
    SecondsOrNone,
    ServerAddress,
)
from scaler.config.logging import LoggingConfig
from scaler.config.machine import default_concurrency
from scaler.config.setting import Alias, Setting
from scaler.config.worker import EventLoop, WorkerConfig
from scaler.plugins import load, worker_manager_type

PROCESSOR_SETTINGS = ("garbage_collect_interval_seconds", "trim_memory_threshold_bytes", "hard_processor_suspend")
"""Settings of a worker's processors, which tasks that run elsewhere do not have."""
TASKS_AT_ONCE = Setting("-mtc", "-n", aliases=(Alias("num_of_workers"),), metavar="COUNT")


def _scheduler_address(validated: dict[str, Any]) -> str:
    address: str = validated["scheduler_address"]
    return address


def _cluster_id() -> str:
    return f"cluster-{socket.gethostname()}-{os.getpid()}"


class WorkerSettings(LoggingConfig):
    """Workers."""

    scheduler_address: Annotated[ServerAddress, Setting(positional=True, metavar="ADDRESS")]
    """Where the scheduler listens."""
    worker_scheduler_address: Annotated[
        ServerAddress, Setting("-wsa", default_text="scheduler_address", metavar="ADDRESS")
    ] = Field(default_factory=_scheduler_address)
    """Where the workers find the scheduler, when that is another address than the manager's own."""
    object_storage_address: Annotated[
        ServerAddress | None, Setting("-osa", default_text="what the scheduler advertises", metavar="ADDRESS")
    ] = None
    """Where the workers find the object storage."""
    per_worker_capabilities: Annotated[Capabilities, Setting("-pwc", default_text="none", metavar="CAPABILITIES")] = (
        Field(default_factory=dict)
    )
    """What each worker offers to tasks that ask for it, such as linux,cpu=4,gpu=1."""
    per_worker_task_queue_size: Annotated[Count, Setting("-wtqs", metavar="COUNT")] = (
        WorkerConfig.per_worker_task_queue_size
    )
    """Most tasks that wait behind the running one of a worker; fewer do when tasks are long."""
    heartbeat_interval_seconds: Annotated[Seconds, Setting("-his", metavar="SECONDS")] = (
        WorkerConfig.heartbeat_interval_seconds
    )
    """How often a worker and its manager tell the scheduler how they are; at least four times in its timeout."""
    task_timeout_seconds: Annotated[SecondsOrNone, Setting("-tts", default_text="0, no limit", metavar="SECONDS")] = (
        WorkerConfig.task_timeout_seconds
    )
    """A task that runs for longer is ended; 0: no limit."""
    death_timeout_seconds: Annotated[Seconds, Setting("-dts", "-ds", metavar="SECONDS")] = (
        WorkerConfig.death_timeout_seconds
    )
    """A worker that finds no scheduler for this long ends."""
    garbage_collect_interval_seconds: Annotated[Seconds, Setting("-gc", metavar="SECONDS")] = (
        WorkerConfig.garbage_collect_interval_seconds
    )
    """How often an idle processor collects garbage. Not for symphony and aws_hpc in mode offload."""
    trim_memory_threshold_bytes: Annotated[Bytes, Setting("-tm", metavar="BYTES")] = (
        WorkerConfig.trim_memory_threshold_bytes
    )
    """A processor larger than this gives memory that it does not use back to the system when it collects garbage. Not
    for symphony and aws_hpc in mode offload.
    """
    hard_processor_suspend: Annotated[bool, Setting("-hps")] = WorkerConfig.hard_processor_suspend
    """Stop a suspended processor with a signal; otherwise its threads go on while its task waits. Not for symphony and
    aws_hpc in mode offload, whose tasks are not suspended.
    """
    preload: Annotated[Preload | None, Setting(metavar="CALL")] = None
    """What each processor, service or job calls before its first task: module.path:function(literals)."""
    io_threads: Annotated[Count, Setting("-it", metavar="COUNT")] = WorkerConfig.io_threads
    """Threads that move bytes between ZeroMQ's sockets and the process. Peers on the scheduler's host need none."""
    event_loop: Annotated[EventLoop, Setting("-el", "-e")] = WorkerConfig.event_loop
    """Python's own event loop, or uvloop."""

    @model_validator(mode="after")
    def _times_are_in_order(self) -> WorkerSettings:
        if self.death_timeout_seconds <= self.heartbeat_interval_seconds:
            raise ValueError(
                f"death_timeout_seconds ({self.death_timeout_seconds:g}) must be more than "
                f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds:g})"
            )
        return self


class WorkerManagerConfig(WorkerSettings):
    """Worker manager."""

    # Values of required settings that `setup`, `show` and `teardown` of the type do not use.
    setup_defaults: ClassVar[Mapping[str, object]] = {"scheduler_address": "tcp://127.0.0.1:1"}

    type: Name
    """What the workers run on."""
    worker_manager_id: Annotated[Name, Setting("-wmi", metavar="NAME")]
    """The manager's name; no two managers of a scheduler share one."""
    max_task_concurrency: Annotated[
        Limit,
        Setting(
            "-mtc",
            "-n",
            aliases=(Alias("num_of_workers"),),
            default_text="CPUs minus 1, at least 1",
            metavar="COUNT",
        ),
    ] = Field(default_factory=default_concurrency)
    """Most tasks that the manager's workers run at once; -1: no limit."""


class ClusterConfig(WorkerSettings):
    """Cluster: a fixed set of local workers."""

    num_of_workers: Annotated[
        Count,
        Setting(
            "-n",
            "-mtc",
            aliases=(Alias("max_task_concurrency"),),
            default_text="CPUs minus 1, at least 1",
            metavar="COUNT",
        ),
    ] = Field(default_factory=default_concurrency)
    """How many workers run."""
    worker_manager_id: Annotated[Name, Setting("-wmi", default_text="cluster-HOST-PID", metavar="NAME")] = Field(
        default_factory=_cluster_id
    )
    """The cluster's name; no two managers of a scheduler share one."""

    def as_worker_manager(self) -> WorkerManagerConfig:
        """Return the same workers as a worker manager of the type baremetal_native in fixed mode."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "num_of_workers"}
        values |= {"max_task_concurrency": self.num_of_workers, "mode": "fixed"}
        return settings_model("baremetal_native")(**values)


def settings_model(kind: str) -> type[WorkerManagerConfig]:
    """Return the settings model of a worker manager type. Raises UsageError for one that is not installed."""
    return cast("type[WorkerManagerConfig]", load(worker_manager_type(kind).settings))


def refuse_processor_settings(config: WorkerManagerConfig, tasks: str) -> None:
    """Raise ValueError when a setting of processors is given. tasks: which tasks have no processors."""
    for key in PROCESSOR_SETTINGS:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise ValueError(f"{key} is for the processors of workers, and {tasks} have none: leave it out")
