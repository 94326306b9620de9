"""Runs of graphs: each run creates the tasks for the wanted keys and submits them together."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

from scaler.client.future import Unloaded, error_of
from scaler.client.gathering import AsCompleted, Progress
from scaler.client.options import OptionKeywords, Options, iterated
from scaler.client.task_calls import TaskCalls
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectReference, TaskTemplate
from scaler.errors import UsageError
from scaler.extensions.chunk_options import chunk_size_of, why_alone
from scaler.extensions.graphs import chunks
from scaler.extensions.graphs.plan import Key, Plan, is_computation, too_deep
from scaler.extensions.graphs.program import ChunkFunction
from scaler.grammar import counted
from scaler.serialization import Buffer, Parts, dump_value, parts_of, size_of
from scaler.serialization.arguments import ByReference, same
from scaler.serialization.exception_graph import copy_of

SHARED_VALUE_BYTES = 4096
"""Minimum size (bytes) at which a value used by several computations is stored in the object storage."""
_SMALL = (type(None), bool, int, float, complex)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the garbage collector, which would repeatedly traverse the growing graph without freeing anything."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def nodes_with_options(
    graph: Mapping[Any, Any],
    given: Mapping[Any, OptionKeywords],
    common: OptionKeywords,
    checked: Callable[[OptionKeywords], Options],
) -> dict[Key, Options]:
    """Return the options of nodes with separate options, merged over the common options. Raises UsageError."""
    if not isinstance(given, Mapping):
        raise UsageError(f"node_options is {given!r}, but must map keys to dicts of options")
    found: dict[Key, Options] = {}
    for key, own in given.items():
        if not isinstance(own, Mapping):
            raise UsageError(f"node_options of key {key!r} is {own!r}, but must be a dict such as {{'priority': 5}}")
        if key not in graph or not is_computation(graph[key]):
            raise UsageError(f"node_options names key {key!r}, but the graph has no computation with this key")
        try:
            found[key] = checked({**common, **own})
        except (UsageError, TypeError) as error:
            raise UsageError(f"node_options of key {key!r}: {error}") from None
    return found


class GraphRun:
    def __init__(
        self,
        client: TaskCalls,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        node_options: Mapping[Any, OptionKeywords] | None = None,
        chunk_size: int | None = None,
        block: bool = True,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """The arguments of `Client.get`. Raises UsageError."""
        client._check_open()
        self._client, self._table, self._parent = client, client._futures, client._parent()
        carried = client._options_of(options, "get")
        common: OptionKeywords = {**client._given, **options}
        checked = partial(client._options_of, verb="get")
        self._own = nodes_with_options(graph, node_options or {}, common, checked)
        if not isinstance(keys, str | bytes):  # a string is rejected later, with a suggestion
            keys = list(iterated("keys", keys))
        self._number = client._loop.calls.begin("get", counted(len(keys), "key"), 0, has_chunks=False).number
        self._options = carried
        why = why_alone(carried, client._serializer)
        if not why:
            others = "expected_seconds", "profiling"
            alone = {"block=False": not block, **{name: getattr(carried, name) for name in others}}
            why = next((name for name, applies in alone.items() if applies), "")
        size = chunk_size_of(chunk_size, why)
        if chunk_size is None and client._is_in_process:
            size = 1  # a debugger then steps through one node after the other
        self._known: dict[tuple[int, bool], TaskTemplate] = {}
        self._tasks: list[TaskFuture] = []
        self.futures: dict[Key, TaskFuture] = {}
        try:
            with _no_collections():
                self._run(Plan(graph, keys), size)
        except BaseException:
            self.cancel()
            raise

    def values(self, progress: bool = False) -> dict[Key, Any]:
        try:
            if progress:
                self.show()
            return {key: future.result() for key, future in self.futures.items()}
        except BaseException:
            self.cancel()
            raise

    def show(self) -> None:
        """Show a progress bar until all tasks have ended, or a task with a requested value has failed."""
        wanted = set(self.futures.values())
        bar = Progress("get", sum(getattr(task, "calls", 1) for task in self._tasks))
        try:
            for task in AsCompleted(self._table, self._tasks, None):
                size, failed = getattr(task, "calls", 1), error_of(task) is not None
                bar.count(size, size if failed else 0)
                if failed and task in wanted:
                    return
        finally:
            bar.close()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _template(self, fn: Callable[..., Any], deliver: bool, node: Options | None = None) -> TaskTemplate:
        """deliver: whether the value is wanted here. node: options of the node."""
        options = (node or self._options)._replace(deliver=deliver, call=self._number)
        return self._client._templates.template(fn, options, self._parent)

    def _run(self, plan: Plan, chunk_size: int | None) -> None:
        """Make all tasks except samples before submitting the first. Inner values then never need to be embedded."""
        wanted = set(plan.wanted.values())
        found = dict(plan.values)
        self._share_values(plan, found)
        cut = self._cut(plan, found, wanted, chunk_size)
        measured = len(self._tasks)
        of_chunks = None if cut is None else ChunkFunction(cut.functions)
        for key in plan.nodes if cut is None else cut.order:
            if type(key) is chunks.NodeChunk:
                assert of_chunks is not None, "it has functions"
                self._make_chunk(key, of_chunks, found)
            elif key not in found:  # not a sample
                self._make(plan, key, found, deliver=key in wanted)
        for key, target in plan.wanted.items():
            future = found[target]
            if target in plan.values:
                value = plan.values[target]
                template = self._template(same, True)
                if isinstance(value, TaskFuture):
                    future = value
                elif isinstance(value, ObjectReference):
                    future = self._table.prepare(template, (value,), {})
                    self._tasks.append(future)
                else:
                    future = self._table.ended(template, value)
            self.futures[key] = future
        self._submit(measured)

    def _make(self, plan: Plan, key: Key, found: dict[Key, Any], *, deliver: bool) -> None:
        function, *arguments = plan.nodes[key]
        # Fast path: most arguments are keys.
        try:
            filled = [
                found[each] if type(each) is str and each in found else plan.fill(each, found) for each in arguments
            ]
        except RecursionError:
            raise too_deep(key) from None
        own = self._own.get(key)
        template = self._known.get((id(function), deliver)) if own is None else None
        if template is None:
            template = self._template(function, deliver, own)
            if own is None:
                self._known[id(function), deliver] = template
        task = found[key] = self._table.prepare(template, tuple(filled), {}, node=(key,))
        self._tasks.append(task)

    def _make_chunk(self, chunk: chunks.NodeChunk, function: ChunkFunction, found: dict[Key, Any]) -> None:
        template = self._template(function, False)
        task = self._table.prepare(template, chunk.arguments(found), {}, node=tuple(chunk.keys))
        task.calls = len(chunk.keys)
        chunk.future = task
        found |= chunk.values()
        self._tasks.append(task)

    def _cut(
        self, plan: Plan, found: dict[Key, Any], wanted: set[Key], chunk_size: int | None
    ) -> chunks.GraphCut | None:
        """Return the chunks, or None for no chunks. Without a size, runs samples first to measure functions."""
        alone = {*wanted, *self._own}
        if chunk_size is not None:
            return chunks.GraphCut(plan, chunks.Levels(plan, alone), chunk_size) if chunk_size > 1 else None
        if not chunks.is_large(plan, len(plan.nodes) - len(wanted)):
            return None
        samples = chunks.samples_of(plan, self._own)
        for key in samples:
            self._make(plan, key, found, deliver=True)
        self._submit(0)
        self._table.wait_ended(self._tasks, chunks.WAIT_SECONDS + len(plan.nodes) * chunks.WAIT_SECONDS_PER_NODE)
        measured = chunks.Measured(samples.values())
        for key in samples:
            measured.add(plan.nodes[key][0], *_measure(found[key]))
        if not any(measured.is_small(plan.nodes[key][0]) for key in samples):
            return None
        levels = chunks.Levels(plan, alone, samples, measured.is_small)
        return chunks.GraphCut(plan, levels, measured.size) if levels.are_worth_it else None

    def _submit(self, first: int) -> None:
        while not self._table.add(tasks := [task for task in self._tasks[first:] if not task.done()]):
            stored: dict[TaskFuture, ObjectReference] = {}
            for task in tasks:
                self._store_inputs(task, stored)

    def _store_inputs(self, task: TaskFuture, stored: dict[TaskFuture, ObjectReference]) -> None:
        """Pass finished inputs to a task through the object storage; fail the task if an input has failed."""
        for reference in task.references:
            if not isinstance(reference, TaskFuture) or not reference.must_embed:
                continue
            if reference not in stored:
                name = repr(reference)
                if reference.pickled:
                    stored[reference] = self._put(parts_of(reference.pickled), name)
                elif (error := error_of(reference)) is not None:
                    task.template = None
                    task.settle(None, copy_of(error))
                    task.references = ()
                    return
                else:
                    stored[reference] = self._put(self._dumped(reference.copy(), name), name)
            put = stored[reference]
            task.references = tuple([put if each is reference else each for each in task.references])
            task.uploads = (*task.uploads, put._upload)

    def _dumped(self, value: Any, what: str) -> Parts:
        return dump_value(value, self._template(same, True).serializer, what)

    def _put(self, parts: Sequence[Buffer], name: str) -> ObjectReference:
        return ObjectReference(self._table, self._table.upload([*parts]), name, size_of(parts))

    def _share_values(self, plan: Plan, found: dict[Key, Any]) -> None:
        for key, count in plan.uses.items():
            value = found[key]
            if count < 2 or isinstance(value, (*_SMALL, ByReference)):
                continue
            if isinstance(value, str | bytes) and len(value) < SHARED_VALUE_BYTES:
                continue
            parts = self._dumped(value, f"the value of key {key!r}")
            if size_of(parts) >= SHARED_VALUE_BYTES:
                found[key] = self._put(parts, repr(key))


def _measure(sample: TaskFuture) -> tuple[float, int]:
    """Return a task's duration (seconds) and value size. The duration is infinite if the task failed, is running, or
    returned a user's class."""
    is_here = sample.done() and not (type(sample._result) is Unloaded or sample.is_stored or sample.cancelled())
    if not is_here or sample.exception() is not None:
        return math.inf, 0
    return sample.profiling_info().duration_s, size_of(dump_value(sample.result()))
