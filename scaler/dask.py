"""Runs Dask graphs and collections on a cluster: `dask.compute(x, scheduler=scaler.dask.get)`. Needs Dask."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.core import flatten

from scaler.client.client import Client, shared_client
from scaler.errors import UsageError


def get(dsk: Any, keys: Any, *, client: Client | None = None, address: str | None = None, **options: Any) -> Any:
    """Compute keys of a Dask graph. Pass this function to `compute` as `scheduler`.

    dsk: a dict, a HighLevelGraph, or an expression. keys: a key, or a nested list of keys; the values are in tuples of
    the same shape. `compute` forwards its other keywords: client or address select the cluster, by default that of
    `Client()`, with one client for the whole program. options: keywords of `Client.get` for each task, such as memory
    and cpus.

    Raises KeyError for an unknown key, and UsageError for a node that cannot run.
    """
    if client is not None and address is not None:
        raise UsageError("scaler.dask.get takes a client or an address, not both")
    graph = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    graph = convert_legacy_graph(graph)
    wanted = dict.fromkeys(flatten(keys) if isinstance(keys, list) else [keys])
    for key in wanted:
        if key not in graph:
            raise KeyError(key)
    values = (client or shared_client(address)).get(graph, list(wanted), **options)
    return _shaped(keys, values)


def _shaped(keys: Any, values: Mapping[Hashable, Any]) -> Any:
    return tuple(_shaped(key, values) for key in keys) if isinstance(keys, list) else values[keys]
