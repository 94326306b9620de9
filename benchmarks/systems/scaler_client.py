"""Scaler and opengris-scaler: the same calls, in different interpreters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.systems import Pending
from benchmarks.tasks import fibonacci, recursion
from scaler import Client, SchedulerClusterCombo


class Adaptor:
    def __init__(self, workers: int) -> None:
        self._cluster = SchedulerClusterCombo(n_workers=workers, logging_level="WARNING")
        self._client = Client(address=self._cluster.get_address())

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        return self._client.submit(function, *arguments)

    @property
    def address(self) -> str:
        return self._cluster.get_address()

    def submit_urgent(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        return self._client.submit_verbose(function, arguments, priority=100)

    def gather(self, futures: Sequence[Pending], /) -> list[Any]:
        return [future.result() for future in futures]

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        return self._client.map(function, items)

    def graph(self, graph: dict[str, Any], keys: list[str], /) -> list[Any]:
        values = self._client.get(graph, keys=keys)
        return [values[key] for key in keys]

    def fibonacci(self, number: int, /) -> int:
        return int(self._client.submit(fibonacci, self._client, number).result())

    def recursion(self, depth: int, /) -> int:
        return int(self._client.submit(recursion, self._client, depth).result())

    def put(self, value: Any, /) -> Any:
        return self._client.send_object(value)

    def close(self) -> None:
        self._client.disconnect()
        self._cluster.shutdown()


class Connected(Adaptor):
    """A further client of a running cluster. Not for opengris-scaler."""

    def __init__(self, address: str, credentials: str) -> None:
        self._client = Client(address, credentials=credentials or None)

    def submit_on(self, host: str, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        return self._client.submit_verbose(function, arguments, capabilities={host: None})

    def close(self) -> None:
        self._client.disconnect()
