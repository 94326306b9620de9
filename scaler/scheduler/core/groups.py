"""Groups come with their first task and go with their last; what is measured of a function outlives them."""

from __future__ import annotations

from scaler.needs import Needs
from scaler.protocol.messages import Spec
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.state import Client, Function, Group, Timing

MAX_TIMINGS = 10_000
"""Functions whose measured duration is remembered."""
MAX_FUNCTIONS = 10_000
"""Names of functions for which tasks are counted, beside those of living tasks."""


class Groups:
    """Makes and drops the groups of all clients. A living group uses its definitions."""

    __slots__ = ("_objects", "_timings", "functions")

    def __init__(self, objects: ObjectTable) -> None:
        self._objects = objects
        self._timings: dict[bytes, Timing] = {}
        self.functions: dict[str, Function] = {}
        """By name, those that were in use last at the end."""

    def of(self, client: Client, spec: Spec) -> Group:
        """Return the client's group of this spec, whose definitions are known."""
        group = client.groups.get(spec)
        if group is None:
            timing = self._timings.pop(spec.function, None) or Timing()
            self._timings[spec.function] = timing
            if len(self._timings) > MAX_TIMINGS:
                del self._timings[next(iter(self._timings))]
            function = self.function(spec.name)
            depth = _depth(client, spec)
            group = client.groups[spec] = Group(client, spec, Needs(spec.needs), depth, timing, function)
            self._objects.use_definition(spec.function)
            if spec.serializer:
                self._objects.use_definition(spec.serializer)
        return group

    def function(self, name: str) -> Function:
        """Return where tasks of this name are counted."""
        functions = self.functions
        function = functions.pop(name, None) or Function(name)
        functions[name] = function
        if len(functions) > MAX_FUNCTIONS:
            del functions[next(iter(functions))]
        return function

    def settle(self, group: Group) -> None:
        """Drop a group that has no living task."""
        if group.live or group.client.groups.get(group.spec) is not group:
            return
        del group.client.groups[group.spec]
        self._objects.drop_definition(group.spec.function)
        if group.spec.serializer:
            self._objects.drop_definition(group.spec.serializer)


def _depth(client: Client, spec: Spec) -> int:
    """Return how many tasks these are nested in, by what is known of the one that submits them; 0 outside of tasks."""
    if client.via is None or not spec.parent:
        return 0
    parent = client.via.tasks.get(spec.parent)
    return 1 if parent is None else parent.group.depth + 1
