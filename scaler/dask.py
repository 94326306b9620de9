"""Runs Dask graphs and collections on a cluster: `dask.compute(x, scheduler=scaler.dask.get)`. Needs Dask."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from dask._task_spec import Alias, DataNode, convert_legacy_graph
from dask.core import flatten
from dask.utils import key_split

from scaler.client.client import Client, shared_client
from scaler.errors import UsageError
from scaler.extensions.graphs.plan import KEY_TYPES, NodeCall, NodeFunction, is_computation
from scaler.serialization import name_of


def get(dsk: Any, keys: Any, *, client: Client | None = None, address: str | None = None, **options: Any) -> Any:
    """Compute keys of a Dask graph. Pass this function to `compute` as `scheduler`.

    dsk: a dict, a HighLevelGraph, or an expression. keys: a key, or a nested list of keys; the values are in tuples of
    the same shape. `compute` forwards its other keywords. client or address: the cluster; default: that of `Client()`,
    with one client for the whole program. options: keywords of `Client.get` for each task, such as memory and cpus.

    Raises KeyError for an unknown key, and UsageError for a node that cannot run.
    """
    if client is not None and address is not None:
        raise UsageError("scaler.dask.get takes a client or an address, not both")
    graph = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    graph = _without_nodes(convert_legacy_graph(graph))
    wanted = dict.fromkeys(flatten(keys) if isinstance(keys, list) else [keys])
    for key in wanted:
        if key not in graph:
            raise KeyError(key)
    values = (client or shared_client(address)).get(graph, list(wanted), **options)
    return _shaped(keys, values)


def _without_nodes(graph: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return a graph with Dask's nodes as keys, values, and computations. Raises UsageError for a missing key."""
    plain: dict[Hashable, Any] = {}
    functions: dict[str, NodeFunction] = {}
    for key, node in graph.items():
        if missing := [each for each in node.dependencies if each not in graph]:
            raise UsageError(f"key {key!r} needs {missing[0]!r}, but the graph has no such key")
        if isinstance(node, Alias):
            plain[key] = node.target
        elif isinstance(node, DataNode) and _is_plain(node.value, graph):
            plain[key] = node.value
        else:
            name = _name_of(key, node)
            needs = tuple(node.dependencies)
            plain[key] = functions.setdefault(name, NodeFunction(name)), NodeCall(node, needs), *needs
    return plain


def _is_plain(value: Any, graph: Mapping[Hashable, Any]) -> bool:
    """Return whether a value in a graph cannot be mistaken for a key or a computation."""
    if type(value) is list or is_computation(value):
        return False
    try:
        return type(value) not in KEY_TYPES or value not in graph
    except TypeError:  # a tuple that cannot be hashed
        return True


def _name_of(key: Hashable, node: Any) -> str:
    """Return the display name of a task: the prefix of its key, as in Dask's monitors, or the name of its function."""
    prefix: str = key_split(key)
    if prefix != (key[0] if isinstance(key, tuple) and key else key):
        return prefix
    return name_of(getattr(node, "func", type(node)))


def _shaped(keys: Any, values: Mapping[Hashable, Any]) -> Any:
    return tuple(_shaped(key, values) for key in keys) if isinstance(keys, list) else values[keys]
