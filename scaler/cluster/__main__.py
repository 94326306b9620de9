"""`python -m scaler.cluster KIND`: one component of a supervisor, configured by the environment. Signal handlers are
restored before the imports. Otherwise, a SIGTERM during the imports could be lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from scaler.config.setting import SettingsModel

COMPONENTS = {
    "object-storage-server": ("scaler.object_storage.server:run", "scaler.config.servers:ObjectStorageServerConfig"),
    "scheduler": ("scaler.scheduler.server:run", "scaler.config.servers:SchedulerConfig"),
    "worker-manager": ("scaler.worker_manager.main:run", ""),
    "web-ui": ("scaler.monitor.web.server:run", "scaler.config.monitors:WebUiConfig"),
}
"""Function and settings model for each kind of component. A worker manager's model depends on its type."""


def component_from(environment: MutableMapping[str, str], kind: str) -> Callable[[], int]:
    from scaler.plugins import load, own_processes, worker_manager_type  # noqa: PLC0415 (see the module)
    from scaler.processes import COMPONENT_VARIABLE  # noqa: PLC0415

    document = environment.pop(COMPONENT_VARIABLE)
    process = None if kind in COMPONENTS else own_processes()[kind]
    function, settings = COMPONENTS[kind] if process is None else (process.run, process.settings)
    model = load(settings or worker_manager_type(json.loads(document)["type"]).settings)
    config = cast("type[SettingsModel]", model).from_json(document)
    run = cast("Callable[[SettingsModel], int]", load(function))
    return lambda: run(config)


def main(kind: str) -> int:
    if sys.platform != "win32":
        from scaler.process_state import restore_signals  # noqa: PLC0415 (see the module)

        restore_signals()
    from scaler.component import note_bug, report  # noqa: PLC0415
    from scaler.errors import ScalerError  # noqa: PLC0415

    try:
        return component_from(os.environ, kind)()
    except ScalerError as error:
        return report(kind, error)
    except BaseException as error:
        note_bug(error)
        raise


sys.exit(main(sys.argv[1]))
