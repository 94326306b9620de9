"""One run of a graph: submits what the wanted keys need, each task naming the futures of those before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaler.client.future import ScalerFuture
from scaler.client.graph import Key, fill, plan_graph
from scaler.client.object_reference import ObjectReference, SharedValue
from scaler.client.submission import Submission
from scaler.client.tasks import Kind
from scaler.serialization import ByReference, dump_value, size_of
from scaler.serialization.references import same

SHARED_VALUE_BYTES = 4096
"""A larger value that several computations need is put into the object storage, once."""
_SMALL = (type(None), bool, int, float, complex)

KindOf = Callable[[Callable[..., Any], bool], Kind]
"""The kind of a task, by its function and whether its value is wanted here."""


class GraphRun:
    """One run of a graph. futures: those of the wanted keys, in their order."""

    def __init__(self, graph: Mapping[Any, Any], keys: Sequence[Any]) -> None:
        """Raises UsageError when the graph cannot be run."""
        self._plan = plan_graph(graph, keys)
        self._tasks: list[ScalerFuture] = []
        self.futures: dict[Key, ScalerFuture] = {}

    def submit(self, submission: Submission, kind_of: KindOf) -> None:
        """Submit the tasks. When it raises, what was submitted is cancelled."""
        try:
            self._submit(submission, kind_of)
        except BaseException:
            self.cancel()
            raise

    def values(self) -> dict[Key, Any]:
        """Wait for the wanted keys. Raises the exception of the first that fails; what is unfinished is cancelled."""
        try:
            return {key: future.result() for key, future in self.futures.items()}
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel what has not ended."""
        for task in self._tasks:
            task.cancel()

    def _submit(self, submission: Submission, kind_of: KindOf) -> None:
        self._prepare(submission, kind_of)
        while not submission.submit_all(self._tasks):
            # A future among the graph's values has ended meanwhile: its value must be embedded.
            self._prepare(submission, kind_of)

    def _prepare(self, submission: Submission, kind_of: KindOf) -> None:
        """Make all tasks before the first is submitted: the values of inner nodes never come here to be embedded."""
        plan = self._plan
        wanted = set(plan.wanted.values())
        kinds: dict[tuple[int, bool], Kind] = {}
        placed: dict[Key, Any] = dict(plan.values)
        self._tasks = []
        self._share_values(submission, kind_of, placed)
        value_of = placed.__getitem__
        for key, node in plan.nodes.items():
            deliver = key in wanted
            kind = kinds.get((id(node.function), deliver))
            if kind is None:
                kind = kinds[id(node.function), deliver] = kind_of(node.function, deliver)
            arguments = tuple([fill(argument, value_of) for argument in node.arguments])
            task = placed[key] = submission.prepare(kind, arguments, {})
            task.node = (key,)
            self._tasks.append(task)
        for key, target in plan.wanted.items():
            future = placed[target]
            if target in plan.values:
                value = plan.values[target]
                kind = kind_of(same, True)
                if isinstance(value, ScalerFuture):
                    future = value
                elif isinstance(value, ObjectReference):
                    future = submission.prepare(kind, (value,), {})
                    self._tasks.append(future)
                else:
                    future = submission.finished(kind, value)
            self.futures[key] = future

    def _share_values(self, submission: Submission, kind_of: KindOf, placed: dict[Key, Any]) -> None:
        uses = Counter(key for node in self._plan.nodes.values() for key in node.needs if key in self._plan.values)
        for key, count in uses.items():
            value = placed[key]
            if count < 2 or isinstance(value, (*_SMALL, ByReference)):
                continue
            if isinstance(value, str | bytes) and len(value) < SHARED_VALUE_BYTES:
                continue
            parts = dump_value(value, kind_of(same, True).serializer, f"the value of key {key!r}")
            if size_of(parts) >= SHARED_VALUE_BYTES:
                placed[key] = SharedValue(submission.upload(parts))
