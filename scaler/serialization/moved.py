"""Old names of modules that have moved since the last release. Pickles in journals and bundles contain these names.

Importing this module makes them importable."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "scaler.client.chunks": "scaler.extensions.maps.chunks",
    "scaler.client.graph_plan": "scaler.extensions.graphs.plan",
    "scaler.client.graph_tasks": "scaler.extensions.graphs.program",
    "scaler.serialization.separate": "scaler.extensions.maps.values",
}


class MovedModules:
    """An import hook. A module with an old name contains the new module's contents."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, MovedModules) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None: ...

    @staticmethod
    def exec_module(old: ModuleType) -> None:
        new = import_module(MOVED[old.__name__])
        vars(old).update({name: value for name, value in vars(new).items() if not name.startswith("__")})


sys.meta_path.append(MovedModules)
