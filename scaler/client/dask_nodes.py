"""The view of Dask's graph nodes that a Plan needs. Pure.

Does not import Dask: no value is a node before the program imports Dask. `Alias` and `TaskRef` refer to another key, a
`DataNode` holds a value.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable
from typing import Any

from scaler.serialization import name_of

_NODES = "dask._task_spec"
_NAMES = "dask.utils"
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, deque)


def node_types() -> tuple[type, ...]:
    """Return the types of nodes and references; empty before Dask is imported."""
    module = sys.modules.get(_NODES)
    return () if module is None else (module.GraphNode, module.TaskRef)


def target_of(node: Any) -> tuple[Hashable] | None:
    module = sys.modules[_NODES]
    if isinstance(node, module.Alias):
        return (node.target,)
    return (node.key,) if isinstance(node, module.TaskRef) else None


def value_of(node: Any) -> tuple[Any] | None:
    return (node.value,) if isinstance(node, sys.modules[_NODES].DataNode) else None


def find_node(value: object, types: tuple[type, ...]) -> object | None:
    """Return a node inside a (possibly recursive) container of built-in types, None without one."""
    waiting = [value]
    seen: set[int] = set()
    plain: set[type] = set()
    while waiting:
        each = waiting.pop()
        if type(each) in plain:
            continue
        if isinstance(each, types):
            return each
        container = next((kind for kind in _CONTAINERS if isinstance(each, kind)), None)
        if container is None:
            plain.add(type(each))
        elif id(each) not in seen:
            seen.add(id(each))
            waiting.extend(container.__iter__(each))
            if isinstance(each, dict):
                waiting.extend(dict.values(each))
    return None


def name_of_node(key: Hashable, node: Any) -> str:
    """Return the display name of a task: the prefix of its key, as in Dask's monitors, or the name of its function."""
    prefix: str = sys.modules[_NAMES].key_split(key)
    if prefix != (key[0] if isinstance(key, tuple) and key else key):
        return prefix
    return name_of(getattr(node, "func", type(node)))


class NodeCall:
    __slots__ = ("keys", "node")

    def __init__(self, node: Any, keys: tuple[Hashable, ...]) -> None:
        self.node = node
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeCall, (self.node, self.keys)

    def __call__(self, *values: Any) -> Any:
        return self.node(dict(zip(self.keys, values, strict=True)))


class NodeFunction:
    """The function of a node's task. Nodes of one name share it, and so their tasks share a template."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, call: NodeCall, *values: Any) -> Any:
        return call(*values)
