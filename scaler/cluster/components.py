"""From a component's configuration to its process, and back inside that process.

The configuration travels as one JSON document in SCALER_COMPONENT: it was checked where it was read, and no flag has to
be spelled out for it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from scaler.cluster.child import python_command
from scaler.cluster.supervision import Component
from scaler.config.setting import SettingsModel

COMPONENT_VARIABLE = "SCALER_COMPONENT"

STORAGE_TIER = 0
SCHEDULER_TIER = 1
WORKERS_TIER = 2

RUNS = {
    "object-storage-server": "scaler.object_storage.server",
    "scheduler": "scaler.scheduler.server",
    "worker-manager": "scaler.worker_manager.runner",
    "cluster": "scaler.cluster.fixed",
}
"""Module of each kind of component; its function `run` takes the configuration and returns the exit code."""


def component(kind: str, config: SettingsModel, *, tier: int, name: str = "") -> Component:
    """Return the process that runs this kind (a key of `RUNS`) with this configuration. name is for people."""
    model = type(config)
    document = {"model": f"{model.__module__}:{model.__qualname__}", "settings": config.model_dump(mode="json")}
    environment = {COMPONENT_VARIABLE: json.dumps(document)}
    if paths := _own_import_paths(sys.path):
        inherited = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*paths, inherited] if inherited else paths)
    return Component(
        name or kind.replace("-", " "), python_command("scaler.cluster", kind), tier, environment=environment
    )


def component_from(
    environment: MutableMapping[str, str], kind: str
) -> tuple[Callable[[SettingsModel], int], SettingsModel]:
    """Take the configuration out of the environment, and return what runs it with it."""
    document = json.loads(environment.pop(COMPONENT_VARIABLE))
    module, _, name = document["model"].partition(":")
    model: type[SettingsModel] = getattr(importlib.import_module(module), name)
    run: Callable[[SettingsModel], int] = importlib.import_module(RUNS[kind]).run
    return run, model.model_validate(document["settings"])


def _own_import_paths(paths: Sequence[str]) -> list[str]:
    """Return where this program imports from beside the installation: its workers must find the same modules."""
    installed = [Path(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    found = dict.fromkeys(str(Path(path or ".").absolute()) for path in paths)
    return [path for path in found if not any(Path(path).is_relative_to(place) for place in installed)]
