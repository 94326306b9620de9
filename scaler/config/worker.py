"""Worker settings, and the JSON document in SCALER_WORKER_CONFIG that starts a worker. Unknown and missing keys are
errors, because the manager and the worker may have different versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

from scaler.config import values as v
from scaler.config.setting import LoggingConfig, Setting, SettingsModel
from scaler.errors import ConfigError
from scaler.interpreter import HASH_SEED

WORKER_CONFIG_VARIABLE = "SCALER_WORKER_CONFIG"
LAST_WORDS_FD_VARIABLE = "SCALER_LAST_WORDS_FD"  # file descriptor for the text of a fatal error
UNIT_ID_VARIABLES = {"ecs": "ECS_CONTAINER_METADATA_URI_V4"}
"""Environment variables with a value unique to the unit. The ECS variable contains the task's metadata endpoint."""


@dataclass(frozen=True, kw_only=True)
class ProcessorSettings(SettingsModel):
    """Processors and hosts. Not used by manager types whose tasks run in a service."""

    host_name: Annotated[str, Setting(default_text="the machine", metavar="NAME")] = ""
    """Name of a separate host to which these workers belong, with its own object store. Without a name, all workers on
    a machine share one store, or the object storage if it runs there."""
    store_memory_limit_bytes: Annotated[v.Bytes, Setting(default_text="a third of the memory", metavar="BYTES")] = 0
    """Memory limit for a host's object store; 0: a third of the host's memory."""
    store_spill_directory: Annotated[str, Setting(default_text="auto: a temporary one", metavar="PATH")] = "auto"
    """Directory where a host's store spills objects that exist nowhere else, up to half of the free disk space. The
    files have no names. auto: the first of TMPDIR, /tmp, and /var/tmp that is not in memory; empty: never spill."""
    memory_limit_bytes: Annotated[
        v.Bytes, Setting(default_text="0: the limit of the container or cgroup minus a reserve", metavar="BYTES")
    ] = 0
    """Memory limit for all processors of a worker. Above it, the largest processor is killed with its task. Shared
    memory does not count. 0: in a container or cgroup with a limit, a processor is killed if it is the largest process
    when memory runs out."""
    processor_memory_limit_bytes: Annotated[v.Bytes, Setting(default_text="0, no limit", metavar="BYTES")] = 0
    """Memory limit for a processor and its child processes. Above it, the processor is killed with its task. Shared
    memory does not count. 0: no limit."""
    max_tasks_per_processor: Annotated[v.CountOrNone, Setting(default_text="0, no limit", metavar="COUNT")] = 0
    """Replace a processor after this many tasks; 0: no limit."""
    max_suspended_tasks: Annotated[v.Count, Setting(metavar="COUNT")] = 1000
    """Maximum tasks per worker that may wait for nested tasks at the same time. Each occupies a 9 MB processor. Further
    tasks fail with TaskRejectedError."""
    requirements: Annotated[v.Names, Setting(default_text="none", metavar="REQUIREMENT")] = ()
    """Packages that tasks import, such as numpy>=2, or @PATH for a file with one requirement per line. Each host
    installs them once into ~/.cache/scaler/packages, with uv if available, otherwise pip."""
    preload_timeout_seconds: Annotated[v.SecondsOrNone, Setting(metavar="SECONDS")] = 600.0
    """Time limit for preload. After a timeout, the processor is killed and replaced. After three consecutive timeouts,
    the worker returns its tasks and exits. 0: no limit."""
    profile_interval_seconds: Annotated[v.SecondsOrNone, Setting(metavar="SECONDS")] = 0.1
    """Sampling interval for profiles of functions and tasks; 0: no profiles."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(ProcessorSettings, LoggingConfig):
    """Workers."""

    object_storage_address: Annotated[
        v.ServerAddress | None, Setting("-osa", default_text="what the scheduler advertises", metavar="ADDRESS")
    ] = None
    """Address that workers use to reach the object storage."""
    per_worker_capabilities: Annotated[v.Capabilities, Setting("-pwc", default_text="none", metavar="CAPABILITIES")] = (
        field(default_factory=dict)
    )
    """Capabilities that each worker offers to tasks, such as linux,cpu=4,gpu=1."""
    per_worker_task_queue_size: Annotated[v.Count, Setting("-wtqs", metavar="COUNT")] = 1000
    """Maximum number of tasks queued behind a worker's running task. Use a low number for long tasks."""
    heartbeat_interval_seconds: Annotated[v.Seconds, Setting("-his", metavar="SECONDS")] = 2.0
    """Interval between heartbeats of workers and worker managers. Must be well below the scheduler's timeout."""
    task_timeout_seconds: Annotated[v.SecondsOrNone, Setting("-tts", default_text="0, no limit", metavar="SECONDS")] = (
        0.0
    )
    """Time limit for a task; 0: no limit."""
    death_timeout_seconds: Annotated[v.Seconds, Setting("-dts -ds", metavar="SECONDS")] = 300.0
    """A worker exits after this time without contact with the scheduler or, if idle, with its manager."""
    preload: Annotated[v.Preload | None, Setting(metavar="CALL")] = None
    """Function to call in each processor, service, or job before its first task: module.path:function(literals)."""
    event_loop: Annotated[v.EventLoop, Setting("-el -e")] = "builtin"
    """Event loop: Python's own (builtin) or uvloop."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(WorkerSettings):
    """Document for one unit: an agent with `slots` processors."""

    scheduler_address: str
    insecure_no_auth: bool = False
    compression: v.Compression = "auto"
    worker_manager_id: str
    unit_id: str
    """Empty if unit_id_from names another source."""
    unit_id_from: str = "unit_id"
    """Source of the unit id: the key unit_id, `ecs`, or `env:NAME` for any environment variable."""
    slots: int = 1
    gpus: tuple[str, ...] = ()
    """GPUs, named as in CUDA_VISIBLE_DEVICES. The worker claims them at startup."""
    stop_grace_seconds: float = 5.0
    """Grace period for running tasks when the worker is stopped."""
    hash_seed: str = HASH_SEED
    """PYTHONHASHSEED for the processors, unless it is set in the host's environment."""

    @property
    def unit_id_variable(self) -> str:
        """The environment variable that unit_id_from refers to, or an empty string."""
        kind, _, name = self.unit_id_from.partition(":")
        return name if kind == "env" else UNIT_ID_VARIABLES.get(kind, "")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the document from SCALER_WORKER_CONFIG. Raises ConfigError if it is missing or invalid."""
        text = environment.get(WORKER_CONFIG_VARIABLE)
        if text is None:
            raise ConfigError(
                f"{WORKER_CONFIG_VARIABLE} is not set: a worker manager starts workers, "
                "see scaler_worker_manager -h and scaler_cluster -h"
            )
        try:
            return cls.from_json(text)
        except ConfigError as error:
            raise ConfigError(
                f"{WORKER_CONFIG_VARIABLE}: {error}: the worker and the manager have different versions"
            ) from None
