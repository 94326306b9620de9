"""What a component's process needs of this package: its configuration out of the environment, and what runs it.

By itself, so that components do not import what starts and supervises them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping

from scaler.config.setting import SettingsModel
from scaler.plugins import load, worker_manager_type

COMPONENT_VARIABLE = "SCALER_COMPONENT"

COMPONENTS = {
    "object-storage-server": ("scaler.object_storage.server:run", "scaler.config.servers:ObjectStorageServerConfig"),
    "scheduler": ("scaler.scheduler.server:run", "scaler.config.servers:SchedulerConfig"),
    "worker-manager": ("scaler.worker_manager.runner:run", ""),
    "cluster": ("scaler.worker_manager.runner:run", ""),
    "web-ui": ("scaler.monitor.web.server:run", "scaler.config.monitors:WebUiConfig"),
}
"""For each kind of component the function that runs it, and its settings; those of a worker manager have a type."""


def component_from(environment: MutableMapping[str, str], kind: str) -> Callable[[], int]:
    """Take the configuration out of the environment, and return what runs the component with it."""
    document = environment.pop(COMPONENT_VARIABLE)
    function, settings = COMPONENTS[kind]
    run = load(function)
    model = load(settings or worker_manager_type(json.loads(document)["type"]).settings)
    assert callable(run)
    assert isinstance(model, type)
    assert issubclass(model, SettingsModel)
    config = model.from_json(document)
    return lambda: run(config)
