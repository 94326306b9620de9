"""The `get` method of clients and asyncio clients, which computes a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from scaler.client.options import OptionKeywords
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.extensions.async_calls import AsyncCalls, in_thread
from scaler.extensions.graphs.plan import Key
from scaler.extensions.graphs.run import GraphRun


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
            node_options: options of individual computations by key, overriding `options`: `{"train": {"memory": "8GB",
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
        run = GraphRun(self, graph, keys, node_options, chunk_size, block, **options)
        return run.values(progress) if block else run.futures


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
        call = partial(GraphRun, self._open, graph, keys, block=block, **options)
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
