"""Settings of the worker manager type baremetal_native."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Name
from scaler.config.worker_managers import WorkerManagerConfig


@dataclass(frozen=True, kw_only=True)
class BaremetalNativeConfig(WorkerManagerConfig):
    """Worker manager baremetal_native: processes of this machine."""

    type: Literal["baremetal_native"] = "baremetal_native"
    """What the workers run on."""
    mode: Literal["dynamic", "fixed"] = "dynamic"
    """dynamic: as many workers as the scaling policy wants; fixed: max_task_concurrency of them, always."""
    worker_type: Annotated[Name, Setting(default_text="auto, the host's name", metavar="NAME")] = "auto"
    """Begins the names of this manager's workers."""
