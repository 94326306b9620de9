"""Settings of workers, and the JSON document with which one worker starts.

The document travels in SCALER_WORKER_CONFIG. Manager and worker may differ in version, so unknown and missing keys are
errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

from scaler.config.compression import Compression
from scaler.config.setting import LoggingConfig, Setting, SettingsModel
from scaler.config.values import (
    Bytes,
    Capabilities,
    Count,
    CountOrNone,
    EventLoop,
    Names,
    Preload,
    Seconds,
    SecondsOrNone,
    ServerAddress,
)
from scaler.errors import ConfigError
from scaler.interpreter import HASH_SEED

WORKER_CONFIG_VARIABLE = "SCALER_WORKER_CONFIG"
LAST_WORDS_FD_VARIABLE = "SCALER_LAST_WORDS_FD"  # a file descriptor for the text of the error that ends a worker
UNIT_ID_VARIABLES = {"ecs": "ECS_CONTAINER_METADATA_URI_V4", "batch": "AWS_BATCH_JOB_ID"}
"""Variables unique to a service's unit. ECS: the address of an endpoint that knows the task."""
GIBIBYTE = 1024**3


@dataclass(frozen=True, kw_only=True)
class ProcessorSettings(SettingsModel):
    """Processors and hosts of workers; tasks that run elsewhere (symphony, aws_hpc in mode offload) have none."""

    host_name: Annotated[str, Setting(default_text="the machine", metavar="NAME")] = ""
    """Workers of one machine with the same name share an object store of their own, as if they were a host by
    themselves. Without a name, the workers of a machine share one, or the object storage if that is on it."""
    store_memory_limit_bytes: Annotated[Bytes, Setting(default_text="a third of the memory", metavar="BYTES")] = 0
    """Memory for objects in the store of a host; 0: a third of its memory."""
    store_spill_directory: Annotated[str, Setting(default_text="auto: a temporary one", metavar="PATH")] = "auto"
    """Where the store of a host puts objects that only it has, and for which memory has no room, in files without a
    name: up to half of what is free on that disk. auto: TMPDIR, /tmp or /var/tmp, the first that is not in memory;
    empty: nowhere."""
    garbage_collect_interval_seconds: Annotated[Seconds, Setting("-gc", metavar="SECONDS")] = 30.0
    """How often an idle processor collects garbage."""
    trim_memory_threshold_bytes: Annotated[Bytes, Setting("-tm", metavar="BYTES")] = GIBIBYTE
    """A processor larger than this returns unused memory to the system when it collects garbage."""
    memory_limit_bytes: Annotated[
        Bytes, Setting(default_text="0: the limit of the container or cgroup less a reserve", metavar="BYTES")
    ] = 0
    """Memory of all processors of a worker, above which the largest one is ended with its task. What processes share
    does not count. 0: when all processes of the container (a cgroup with a limit) come near its limit, its largest one
    is ended, if that is a processor; elsewhere no limit."""
    processor_memory_limit_bytes: Annotated[Bytes, Setting(default_text="0, no limit", metavar="BYTES")] = 0
    """Memory of a processor and what its task has started, above which it is ended with the task; 0: no limit. What
    processes share does not count."""
    max_tasks_per_processor: Annotated[CountOrNone, Setting(default_text="0, no limit", metavar="COUNT")] = 0
    """A processor that has run this many tasks is replaced by a new one; 0: no limit."""
    max_processor_memory_growth: Annotated[Bytes, Setting(default_text="0, no limit", metavar="BYTES")] = 0
    """A processor that keeps this many bytes more than after its first task is replaced between two tasks; 0: no limit.
    """
    max_suspended_tasks: Annotated[Count, Setting(metavar="COUNT")] = 1000
    """Tasks of a worker that may wait for tasks of their own at a time; each keeps a processor of 9 MB. One more ends
    with TaskRejectedError."""
    hard_processor_suspend: Annotated[bool, Setting("-hps")] = False
    """Stop a suspended processor with a signal; otherwise its threads continue while its task waits."""
    requirements: Annotated[Names, Setting(default_text="none", metavar="REQUIREMENT")] = ()
    """Packages that tasks import, such as numpy>=2, or @PATH: a file with one on each line. Each host installs them
    once, with uv, or with pip where there is no uv, into ~/.cache/scaler/requirements."""
    preload_timeout_seconds: Annotated[SecondsOrNone, Setting(metavar="SECONDS")] = 600.0
    """A processor whose preload takes longer is ended, and another one started; after three in a row the worker gives
    its tasks back and ends. 0: no limit."""
    profile_interval_seconds: Annotated[SecondsOrNone, Setting(metavar="SECONDS")] = 0.1
    """How often a processor looks where the code of its task is, for profiles of functions and tasks; 0: never."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(ProcessorSettings, LoggingConfig):
    """Workers."""

    object_storage_address: Annotated[
        ServerAddress | None, Setting("-osa", default_text="what the scheduler advertises", metavar="ADDRESS")
    ] = None
    """Where the workers find the object storage."""
    per_worker_capabilities: Annotated[Capabilities, Setting("-pwc", default_text="none", metavar="CAPABILITIES")] = (
        field(default_factory=dict)
    )
    """What each worker offers to tasks that ask for it, such as linux,cpu=4,gpu=1."""
    per_worker_task_queue_size: Annotated[Count, Setting("-wtqs", metavar="COUNT")] = 1000
    """Maximum number of tasks queued behind the running one of a worker; fewer are queued when tasks are long."""
    heartbeat_interval_seconds: Annotated[Seconds, Setting("-his", metavar="SECONDS")] = 2.0
    """How often a worker and its manager report to the scheduler; must be well below the scheduler's timeout."""
    task_timeout_seconds: Annotated[SecondsOrNone, Setting("-tts", default_text="0, no limit", metavar="SECONDS")] = 0.0
    """A task that runs for longer is ended; 0: no limit."""
    death_timeout_seconds: Annotated[Seconds, Setting("-dts -ds", metavar="SECONDS")] = 300.0
    """A worker exits after this long without contact to the scheduler, or without work while its manager is away."""
    preload: Annotated[Preload | None, Setting(metavar="CALL")] = None
    """What each processor, service or job calls before its first task: module.path:function(literals)."""
    io_threads: Annotated[Count, Setting("-it", metavar="COUNT")] = 1
    """Threads that move bytes between ZeroMQ sockets and the process. Peers on the scheduler's host need none."""
    event_loop: Annotated[EventLoop, Setting("-el -e")] = "builtin"
    """Python's own event loop, or uvloop."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(WorkerSettings):
    """One unit of a worker manager: an agent with `slots` processors."""

    scheduler_address: str
    insecure_no_auth: bool = False
    compression: Compression = "auto"
    worker_manager_id: str
    unit_id: str
    """Empty: see unit_id_from."""
    unit_id_from: str = "unit_id"
    """Where the worker gets its unit id from: the key unit_id, `ecs`, `batch`, or `env:NAME` for any variable."""
    slots: int = 1
    gpus: tuple[str, ...] = ()
    """Its gpus as CUDA_VISIBLE_DEVICES names them; the worker claims them when it starts."""
    stop_grace_seconds: float = 5.0
    """Running tasks have this long to end when the worker is asked to stop."""
    hash_seed: str = HASH_SEED
    """PYTHONHASHSEED of its processors, unless the environment on its host has one."""

    @property
    def unit_id_variable(self) -> str:
        """The variable for which unit_id_from stands; empty if it is none."""
        kind, _, name = self.unit_id_from.partition(":")
        return name if kind == "env" else UNIT_ID_VARIABLES.get(kind, "")

    @property
    def own_variables(self) -> tuple[str, ...]:
        """Variables that together identify this worker on its machine: units of one request share the document."""
        return tuple(filter(None, (WORKER_CONFIG_VARIABLE, self.unit_id_variable)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the document from SCALER_WORKER_CONFIG. Raises ConfigError if it is missing or does not fit."""
        text = environment.get(WORKER_CONFIG_VARIABLE)
        if text is None:
            raise ConfigError(
                f"{WORKER_CONFIG_VARIABLE} is not set: workers are started by a worker manager, "
                "see scaler_worker_manager -h and scaler_cluster -h"
            )
        try:
            return cls.from_json(text)
        except ConfigError as error:
            raise ConfigError(f"{WORKER_CONFIG_VARIABLE}: {error}: worker and manager differ in version") from None
