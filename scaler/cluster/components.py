"""From a component's configuration to its process; `inside` is the way back.

The configuration travels as one JSON document in SCALER_COMPONENT. It was checked where it was read, so the component
takes it as it is: the models and what checks them would cost each process 10 MB and a tenth of a second.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from scaler.cluster.child import python_command
from scaler.cluster.inside import COMPONENT_VARIABLE
from scaler.cluster.supervision import Component
from scaler.config.setting import SettingsModel

STORAGE_TIER = 0
SCHEDULER_TIER = 1
WORKERS_TIER = 2


def component(
    kind: str, config: SettingsModel, *, tier: int, name: str = "", patience_seconds: float = 0.0
) -> Component:
    """Return the process that runs this kind (a key of `inside.RUNS`) with this configuration. name is for people."""
    environment = {COMPONENT_VARIABLE: config.to_json()}
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


def _own_import_paths(paths: Sequence[str]) -> list[str]:
    """Return where this program imports from beside the installation: its workers must find the same modules."""
    installed = [Path(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    found = dict.fromkeys(str(Path(path or ".").absolute()) for path in paths)
    return [path for path in found if not any(Path(path).is_relative_to(place) for place in installed)]
