"""The call of asyncio clients that computes a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from scaler.client.asynchronous import AsyncCalls, in_thread
from scaler.extensions.graphs.calls import graph_run
from scaler.extensions.graphs.plan import Key
from scaler.extensions.graphs.run import GraphRun


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
        with run.shown(progress):
            return {key: await future for key, future in run.futures.items()}
