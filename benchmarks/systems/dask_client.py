"""Dask's distributed scheduler, started by its LocalCluster.

Without its dashboard, which the other systems lack. Calls are not `pure`: the other systems do not reuse the results of
equal calls, and Dask need not hash arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, LocalCluster, worker_client  # type: ignore[import-not-found]

from benchmarks.systems import Pending


def fibonacci(number: int) -> int:
    if number < 2:
        return number
    with worker_client() as client:
        futures = [client.submit(fibonacci, number - less, pure=False) for less in (1, 2)]
        return int(sum(client.gather(futures)))


def recursion(depth: int) -> int:
    if not depth:
        return 0
    with worker_client() as client:
        return 1 + int(client.submit(recursion, depth - 1, pure=False).result())


class Adaptor:
    def __init__(self, workers: int) -> None:
        self._cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        self._client = Client(self._cluster)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        future: Pending = self._client.submit(function, *arguments, pure=False)
        return future

    @property
    def address(self) -> str:
        return str(self._cluster.scheduler_address)

    def submit_urgent(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        future: Pending = self._client.submit(function, *arguments, pure=False, priority=100)
        return future

    def gather(self, futures: Sequence[Pending], /) -> list[Any]:
        return list(self._client.gather(futures))

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        return list(self._client.gather(self._client.map(function, items, pure=False)))

    def graph(self, graph: dict[str, Any], keys: list[str], /) -> list[Any]:
        return list(self._client.get(graph, keys))

    def fibonacci(self, number: int, /) -> int:
        return int(self._client.submit(fibonacci, number, pure=False).result())

    def recursion(self, depth: int, /) -> int:
        return int(self._client.submit(recursion, depth, pure=False).result())

    def put(self, value: Any, /) -> Any:
        return self._client.scatter(value)

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


class Connected(Adaptor):
    """A further client of a running cluster."""

    def __init__(self, address: str, _credentials: str) -> None:
        self._client = Client(address)

    def submit_on(self, host: str, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        future: Pending = self._client.submit(function, *arguments, pure=False, resources={host: 1})
        return future

    def close(self) -> None:
        self._client.close()
