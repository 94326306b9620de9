"""The method of clients, including asyncio clients, that computes a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from scaler.client.options import OptionKeywords, Options, iterated
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.client.tasks import TaskTemplate
from scaler.extensions.async_calls import AsyncCalls, in_thread
from scaler.extensions.chunk_options import chunk_size_of, why_alone
from scaler.extensions.graphs.plan import Key
from scaler.extensions.graphs.run import GraphRun, nodes_with_options
from scaler.grammar import counted


@hiding_frames_of_methods()
class GraphCalls(TaskCalls):
    def get(
        self,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        block: bool = True,
        *,
        node_options: Mapping[Any, OptionKeywords] | None = None,
        chunk_size: int | None = None,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> dict[Key, Any]:
        """Compute keys of a graph and their dependencies.

        Args:
            graph: a dict of keys to values and to computations `(callable, key, ...)`.
            keys: the wanted keys.
            block: wait for the values. If False, returns futures.
            node_options: options of single computations by key, which override `options`: `{"train": {"memory": "8GB",
                "retries": 5}}`.
            chunk_size: maximum number of inner computations in a task. By default, short computations of large graphs
                are grouped by measurement.
            progress: show a bar of finished computations.
            options: options of each computation, as in `submit_verbose`.

        Returns:
            The keys with their values or futures.

        Raises:
            UsageError: A key is missing, or the graph has a cycle. Nothing has been sent.
        """
        run = graph_run(self, graph, keys, node_options, chunk_size, block, **options)
        return run.values(progress) if block else run.futures


def graph_run(
    client: TaskCalls,
    graph: Mapping[Any, Any],
    keys: Sequence[Any],
    node_options: Mapping[Any, OptionKeywords] | None = None,
    chunk_size: int | None = None,
    block: bool = True,
    **options: Unpack[OptionKeywords],
) -> GraphRun:
    client._check_open()
    carried = client._options_of(options, "get")
    common: OptionKeywords = {**client._given, **options}
    own = nodes_with_options(graph, node_options or {}, common, lambda given: client._options_of(given, "get"))
    parent = client._parent()
    if not isinstance(keys, str | bytes):  # refused with an alternative
        keys = list(iterated("keys", keys))
    call = client._loop.calls.begin("get", counted(len(keys), "key"), 0, has_chunks=False)

    def template(fn: Callable[..., Any], deliver: bool, node: Options | None) -> TaskTemplate:
        return client._templates.template(fn, (node or carried)._replace(deliver=deliver, call=call.number), parent)

    why = why_alone(carried, client._serializer)
    if not why:
        alone = {"block=False": not block, "expected_seconds": carried.expected_seconds, "profiling": carried.profiling}
        why = next((name for name, applies in alone.items() if applies), "")
    size = chunk_size_of(chunk_size, why)
    if chunk_size is None and client._is_in_process:
        size = 1  # so that a debugger finds one node after the other
    return GraphRun(graph, keys, client._futures, template, own, size)


class AsyncGraphCalls(AsyncCalls):
    async def get(
        self,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        block: bool = True,
        *,
        progress: bool = False,
        **options: Any,
    ) -> dict[Key, Any]:
        """Compute these keys of a graph, like `Client.get`; return the keys with their values or futures."""
        call = partial(graph_run, self._open, graph, keys, block=block, **options)
        run = await in_thread(self._thread, call, late=GraphRun.cancel)
        if not block:
            return run.futures
        try:
            if progress:
                await asyncio.to_thread(run.show)
            return {key: await future for key, future in run.futures.items()}
        except BaseException:
            run.cancel()
            raise
