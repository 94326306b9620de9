"""What a component's process needs of this package: its configuration out of the environment, and what runs it.

By itself, so that components do not import what starts and supervises them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, MutableMapping
from types import SimpleNamespace

COMPONENT_VARIABLE = "SCALER_COMPONENT"

RUNS = {
    "object-storage-server": "scaler.object_storage.server",
    "scheduler": "scaler.scheduler.server",
    "worker-manager": "scaler.worker_manager.runner",
    "cluster": "scaler.worker_manager.runner",
    "web-ui": "scaler.monitor.web.server",
}
"""Module of each kind of component; its function `run` takes the configuration and returns the exit code."""


def component_from(environment: MutableMapping[str, str], kind: str) -> Callable[[], int]:
    """Take the configuration out of the environment, and return what runs the component with it."""
    settings = json.loads(environment.pop(COMPONENT_VARIABLE))
    run: Callable[[SimpleNamespace], int] = importlib.import_module(RUNS[kind]).run
    return lambda: run(SimpleNamespace(**settings))
