"""The systems that are compared, each behind the same few methods.

An adaptor is a module with a class `Adaptor`, made with a number of workers of one thread each, and PACKAGES, whose
versions belong to its figures. It uses the defaults of its system unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Pending(Protocol):
    """A future of any of the systems."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None, /) -> Any: ...


class System(Protocol):
    """What every system has."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending: ...

    def gather(self, futures: Sequence[Pending], /) -> list[Any]:
        """Return all results, as its users would collect them."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        """Return the results in order, with the system's default chunks."""

    def close(self) -> None: ...


class Platform(System, Protocol):
    """What systems have that are more than a pool of processes."""

    def graph(self, graph: dict[str, Any], keys: list[str], /) -> list[Any]: ...

    def fibonacci(self, number: int, /) -> int:
        """Compute it in tasks that submit tasks, without sharing equal ones."""

    def recursion(self, depth: int, /) -> int:
        """Return the depth, computed by a chain of tasks in which each waits for the next."""

    def put(self, value: Any, /) -> Any:
        """Send a value once; return what stands for it as an argument."""


class Spread(Platform, Protocol):
    """A platform on several hosts."""

    def submit_on(self, host: str, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        """Submit a task that only the workers of this host may run."""


Start = Callable[[int], Platform]
"""Starts a system with this many workers."""
