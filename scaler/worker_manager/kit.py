"""Stable imports for custom worker manager types (docs/backends.md). The underlying modules may move."""

from scaler.config.setting import Setting
from scaler.config.values import Count, Limit, Name, Range, Seconds
from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.plugins import WorkerManagerType
from scaler.processes import describe_exit
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Backend, BackendError, Capacity, EndedUnits, Unit, units_credential
from scaler.worker_manager.baremetal_native import LocalAgents
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

__all__ = [
    "ENDED",
    "WORKER_CONFIG_VARIABLE",
    "Backend",
    "BackendError",
    "Capacity",
    "Count",
    "EndedUnits",
    "Limit",
    "LocalAgents",
    "Name",
    "PolledBackend",
    "Range",
    "Seconds",
    "SeenUnit",
    "Setting",
    "Stopped",
    "Unit",
    "UnitState",
    "UsageError",
    "WorkerConfig",
    "WorkerManagerConfig",
    "WorkerManagerType",
    "describe_exit",
    "units_credential",
]
