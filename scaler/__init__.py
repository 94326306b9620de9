"""Scaler: elastic compute for Python. Public names load on first use: `import scaler` takes less than a millisecond."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from scaler._version import __version__

if TYPE_CHECKING:
    from scaler.client.client import Client
    from scaler.client.future import ScalerFuture
    from scaler.client.options import Exponential
    from scaler.cluster.combo import SchedulerClusterCombo
    from scaler.extensions.asynchronous.client import AsyncClient
    from scaler.extensions.gangs.member import current_gang
    from scaler.extensions.maps.executor import ScalerExecutor
    from scaler.extensions.maps.pool import Pool
    from scaler.serialization import Serializer

__all__ = [
    "AsyncClient",
    "Client",
    "Exponential",
    "Pool",
    "ScalerExecutor",
    "ScalerFuture",
    "SchedulerClusterCombo",
    "Serializer",
    "__version__",
    "current_gang",
]

_HOMES = {
    "AsyncClient": "scaler.extensions.asynchronous.client",
    "Client": "scaler.client.client",
    "Exponential": "scaler.client.options",
    "Pool": "scaler.extensions.maps.pool",
    "ScalerExecutor": "scaler.extensions.maps.executor",
    "ScalerFuture": "scaler.client.future",
    "SchedulerClusterCombo": "scaler.cluster.combo",
    "Serializer": "scaler.serialization",
    "current_gang": "scaler.extensions.gangs.member",
}


_MODULES = frozenset({"dask", "joblib"})  # for other libraries; not imported by `import scaler`


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"scaler.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'scaler' has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name is None or not home.startswith(f"{error.name}.") or error.name == __name__:
            raise
        raise ImportError(f"{name} needs the extension {home.split('.')[2]!r}, which is not installed") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
