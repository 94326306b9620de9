"""The standard library's ProcessPoolExecutor: no scheduler, no network, and processes started on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.systems import Pending


class Adaptor:
    def __init__(self, workers: int) -> None:
        self._executor = ProcessPoolExecutor(workers)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        return self._executor.submit(function, *arguments)

    def gather(self, futures: Sequence[Pending], /) -> list[Any]:
        return [future.result() for future in futures]

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        return list(self._executor.map(function, items))

    def close(self) -> None:
        self._executor.shutdown()
