"""Workers as processes of this machine: a unit is an agent process, `python -m scaler.worker`.

mode=dynamic: one slot a unit, as many units as the scheduler wants. mode=fixed: all of max_task_concurrency from the
start, in units of up to `FIXED_UNIT_SLOTS` slots, because agents with several slots need less memory.
"""

from __future__ import annotations

import socket
import sys

from scaler.config.worker_managers import default_concurrency
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.backend import Capacity
from scaler.worker_manager.baremetal_native.settings import BaremetalNativeConfig
from scaler.worker_manager.local_agents import LocalAgents

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.baremetal_native:BaremetalNative",
    settings="scaler.worker_manager.baremetal_native.settings:BaremetalNativeConfig",
)
COMMAND = (sys.executable, "-m", "scaler.worker")
FIXED_UNIT_SLOTS = 8


class BaremetalNative(LocalAgents):
    """The backend of the type baremetal_native."""

    def __init__(self, config: BaremetalNativeConfig) -> None:
        sizes = _fixed_sizes(config)
        label = socket.gethostname() if config.worker_type == "auto" else config.worker_type
        super().__init__(_capacity(config, sizes), label, COMMAND, config.worker_config, sizes=sizes)


def _fixed_sizes(config: BaremetalNativeConfig) -> tuple[int, ...]:
    """Return the slots of every unit of the fixed mode; empty in dynamic mode."""
    if config.mode == "dynamic":
        return ()
    slots = default_concurrency() if config.max_task_concurrency < 0 else config.max_task_concurrency
    whole, rest = divmod(slots, FIXED_UNIT_SLOTS)
    return (FIXED_UNIT_SLOTS,) * whole + ((rest,) if rest else ())


def _capacity(config: BaremetalNativeConfig, sizes: tuple[int, ...]) -> Capacity:
    cpus = default_concurrency() + 1
    if config.mode == "fixed":
        return Capacity(max(sizes), sum(sizes), len(sizes), fixed=True, starting=cpus)
    limit = config.max_task_concurrency
    return Capacity(1, limit, None if limit < 0 else limit, starting=cpus)
