"""From a component's configuration to its process, and back inside that process.

The configuration travels as one JSON document in SCALER_COMPONENT. It was checked where it was read, so the component
takes it as it is: the models and what checks them would cost each process 10 MB and a tenth of a second.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from scaler.cluster.child import python_command
from scaler.cluster.supervision import Component

if TYPE_CHECKING:
    from scaler.config.setting import SettingsModel

COMPONENT_VARIABLE = "SCALER_COMPONENT"

STORAGE_TIER = 0
SCHEDULER_TIER = 1
WORKERS_TIER = 2

RUNS = {
    "object-storage-server": "scaler.object_storage.server",
    "scheduler": "scaler.scheduler.server",
    "worker-manager": "scaler.worker_manager.runner",
    "cluster": "scaler.worker_manager.runner",
    "web-ui": "scaler.monitor.web.server",
}
"""Module of each kind of component; its function `run` takes the configuration and returns the exit code."""


def component(
    kind: str, config: SettingsModel, *, tier: int, name: str = "", patience_seconds: float = 0.0
) -> Component:
    """Return the process that runs this kind (a key of `RUNS`) with this configuration. name is for people."""
    environment = {COMPONENT_VARIABLE: config.model_dump_json()}
    if paths := _own_import_paths(sys.path):
        inherited = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*paths, inherited] if inherited else paths)
    return Component(
        name or kind.replace("-", " "),
        python_command("scaler.cluster", kind),
        tier,
        environment=environment,
        patience_seconds=patience_seconds,
    )


def component_from(environment: MutableMapping[str, str], kind: str) -> Callable[[], int]:
    """Take the configuration out of the environment, and return what runs the component with it."""
    settings = json.loads(environment.pop(COMPONENT_VARIABLE))
    run: Callable[[SimpleNamespace], int] = importlib.import_module(RUNS[kind]).run
    return lambda: run(SimpleNamespace(**settings))


def _own_import_paths(paths: Sequence[str]) -> list[str]:
    """Return where this program imports from beside the installation: its workers must find the same modules."""
    installed = [Path(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    found = dict.fromkeys(str(Path(path or ".").absolute()) for path in paths)
    return [path for path in found if not any(Path(path).is_relative_to(place) for place in installed)]
