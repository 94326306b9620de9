"""Runs workers as local processes: one slot per unit, or up to `FIXED_UNIT_SLOTS` with mode=fixed."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Name
from scaler.config.worker_managers import WorkerManagerConfig, default_concurrency
from scaler.host import usable_cpus, usable_memory
from scaler.interpreter import worker_command
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.backend import Capacity, units_credential
from scaler.worker_manager.local_agents import LocalAgents

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.baremetal_native:BaremetalNative",
    settings="scaler.worker_manager.baremetal_native:BaremetalNativeConfig",
)
COMMAND = worker_command("scaler.worker")
FIXED_UNIT_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class BaremetalNativeConfig(WorkerManagerConfig):
    """Worker manager baremetal_native: processes of this machine."""

    type: Literal["baremetal_native"] = "baremetal_native"
    mode: Literal["dynamic", "fixed"] = "dynamic"
    """dynamic: the scaling policy sets the number of workers; fixed: always run max_task_concurrency workers."""
    worker_type: Annotated[Name, Setting(default_text="auto, the host's name", metavar="NAME")] = "auto"
    """Prefix of unit names."""


class BaremetalNative(LocalAgents):
    def __init__(self, config: BaremetalNativeConfig) -> None:
        label = socket.gethostname() if config.worker_type == "auto" else config.worker_type
        cpus = usable_cpus()
        limit = config.max_task_concurrency
        sizes: tuple[int, ...] = ()
        memory_bytes, _ = usable_memory()
        capacity = Capacity(1, limit, None if limit < 0 else limit, starting=cpus, unit_memory_bytes=memory_bytes)
        if config.mode == "fixed":
            whole, rest = divmod(default_concurrency() if limit < 0 else limit, FIXED_UNIT_SLOTS)
            sizes = (FIXED_UNIT_SLOTS,) * whole + ((rest,) if rest else ())
            sums = max(sizes), sum(sizes), len(sizes)
            capacity = Capacity(*sums, fixed=True, starting=cpus, unit_memory_bytes=memory_bytes)
        credential = partial(units_credential, config)
        super().__init__(capacity, label, COMMAND, config.worker_config, credential=credential, sizes=sizes)
