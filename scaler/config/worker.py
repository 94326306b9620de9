"""What one worker needs to know, as one JSON document. No pydantic here: every worker's process imports this module.

The document is made by a worker manager from its own configuration, so its values were checked there; what is checked
here is that both sides speak of the same keys, for they may be of different versions.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from scaler.errors import ConfigError

if TYPE_CHECKING:
    from scaler.config.worker_managers import WorkerManagerConfig

WORKER_CONFIG_VARIABLE = "SCALER_WORKER_CONFIG"
LAST_WORDS_FD_VARIABLE = "SCALER_LAST_WORDS_FD"
"""Names a file descriptor to which a worker writes the text of the error that ends it."""
ECS_METADATA_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
BATCH_JOB_VARIABLE = "AWS_BATCH_JOB_ID"
OWN_VARIABLES = (WORKER_CONFIG_VARIABLE, ECS_METADATA_VARIABLE, BATCH_JOB_VARIABLE)
"""Their values together belong to one worker of this machine: all units of one request to a service share the first."""
GIBIBYTE = 1024**3

EventLoop = Literal["builtin", "uvloop"]
UnitIdFrom = Literal["unit_id", "ecs", "batch"]
"""Where a worker learns which unit it is: it is told, or asks the container it runs in."""
LoggingLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LoggingFormat = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """One unit of a worker manager: an agent with `slots` processors. Its defaults are the defaults of all workers."""

    scheduler_address: str
    object_storage_address: str = ""
    """Empty: what the scheduler advertises."""
    worker_manager_id: str
    unit_id: str
    """Empty: where unit_id_from says."""
    unit_id_from: UnitIdFrom = "unit_id"
    slots: int = 1
    per_worker_capabilities: dict[str, float | None] = field(default_factory=dict)
    per_worker_task_queue_size: int = 1000
    heartbeat_interval_seconds: float = 2.0
    task_timeout_seconds: float = 0.0
    death_timeout_seconds: float = 300.0
    stop_grace_seconds: float = 5.0
    """Running tasks have so long to end when the worker is told to stop."""
    garbage_collect_interval_seconds: float = 30.0
    trim_memory_threshold_bytes: int = GIBIBYTE
    hard_processor_suspend: bool = False
    preload: str | None = None
    io_threads: int = 1
    event_loop: EventLoop = "builtin"
    logging_level: LoggingLevel = "INFO"
    logging_format: LoggingFormat = "text"
    logging_paths: tuple[str, ...] = ("/dev/stdout",)
    logging_config_file: str | None = None

    @classmethod
    def of(
        cls,
        config: WorkerManagerConfig,
        unit_id: str,
        slots: int,
        *,
        unit_id_from: UnitIdFrom = "unit_id",
        stop_grace_seconds: float = 5.0,
    ) -> WorkerConfig:
        """Return what a unit of this manager needs."""
        own = {"scheduler_address", "object_storage_address", "unit_id", "unit_id_from", "slots", "stop_grace_seconds"}
        shared = {item.name: getattr(config, item.name) for item in dataclasses.fields(cls) if item.name not in own}
        return cls(
            scheduler_address=config.worker_scheduler_address,
            object_storage_address=config.object_storage_address or "",
            unit_id=unit_id,
            unit_id_from=unit_id_from,
            slots=slots,
            stop_grace_seconds=stop_grace_seconds,
            **shared,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the document from SCALER_WORKER_CONFIG. Raises ConfigError when it is missing or does not fit."""
        text = environment.get(WORKER_CONFIG_VARIABLE)
        if text is None:
            raise ConfigError(
                f"{WORKER_CONFIG_VARIABLE} is not set: workers are started by a worker manager, "
                "see scaler_worker_manager -h and scaler_cluster -h"
            )
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document. Raises ConfigError that names the key which is unknown, missing or of a wrong type."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{WORKER_CONFIG_VARIABLE} is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ConfigError(f"{WORKER_CONFIG_VARIABLE} is not a JSON object")
        hints = typing.get_type_hints(cls)
        for key, value in document.items():
            if key not in hints:
                raise ConfigError(
                    f"{WORKER_CONFIG_VARIABLE}: unknown key {key!r}; worker and manager differ in version"
                )
            if not _fits(value, hints[key]):
                raise ConfigError(f"{WORKER_CONFIG_VARIABLE}: {key} cannot be {value!r}")
        required = (item.name for item in dataclasses.fields(cls) if _is_required(item))
        missing = [name for name in required if name not in document]
        if missing:
            raise ConfigError(f"{WORKER_CONFIG_VARIABLE}: {', '.join(missing)} missing")
        paths = document.get("logging_paths")
        return cls(**document if paths is None else {**document, "logging_paths": tuple(paths)})

    def to_json(self) -> str:
        """Return the document for SCALER_WORKER_CONFIG."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def _is_required(item: dataclasses.Field[object]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _fits(value: object, hint: object) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    origin = typing.get_origin(hint)
    if origin is dict:
        kind = typing.get_args(hint)[1]
        return isinstance(value, dict) and all(_fits(item, kind) for item in value.values())
    if origin is tuple:
        kind = typing.get_args(hint)[0]
        return isinstance(value, list) and all(_fits(item, kind) for item in value)
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint is object:
        return True
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    assert isinstance(hint, type)
    return isinstance(value, hint)
