"""Ray, started by `ray.init` with one CPU per worker and without its dashboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import ray  # type: ignore[import-not-found]

from benchmarks.systems import Pending

remote = cache(ray.remote)


class Future:
    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.result = partial(ray.get, reference)

    def done(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0, fetch_local=False)[0])


class Adaptor:
    def __init__(self, workers: int) -> None:
        ray.init(num_cpus=workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        return Future(remote(function).remote(*arguments))

    @property
    def address(self) -> str:
        return str(ray.get_runtime_context().gcs_address)

    def submit_urgent(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        """Ray has no priorities."""
        return self.submit(function, *arguments)

    def gather(self, futures: Sequence[Any], /) -> list[Any]:
        return list(ray.get([future.reference for future in futures]))

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        return list(ray.get([remote(function).remote(item) for item in items]))

    def close(self) -> None:
        ray.shutdown()


class Connected(Adaptor):
    """A further client of a running cluster."""

    def __init__(self, address: str, _credentials: str) -> None:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
