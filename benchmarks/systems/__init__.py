"""The compared systems, behind a common interface.

An adaptor is a module with a class `Adaptor` and a list PACKAGES, whose versions are shown next to the figures. The
class takes a number of workers with one thread each. Unless its docstring says otherwise, it uses the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Pending(Protocol):
    """A future of any system."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None, /) -> Any: ...


class System(Protocol):
    """Methods that every system supports."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending: ...

    def gather(self, futures: Sequence[Pending], /) -> list[Any]:
        """Return all results, in the way that users of the system collect them."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        """Return the results in order, with the system's default chunks."""

    def close(self) -> None: ...


class Shared(System, Protocol):
    """A system that several clients can use at once. Its module has a class `Connected` for further clients."""

    @property
    def address(self) -> str: ...

    def submit_urgent(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        """Submit a task with a high priority, if the system has priorities."""


class Platform(System, Protocol):
    """A system with nested tasks, graphs, and objects sent once."""

    def graph(self, graph: dict[str, Any], keys: list[str], /) -> list[Any]: ...

    def fibonacci(self, number: int, /) -> int:
        """Compute a Fibonacci number with tasks that submit tasks. Equal calls are not shared."""

    def recursion(self, depth: int, /) -> int:
        """Return the depth, computed by a chain of tasks in which each task waits for the next."""

    def put(self, value: Any, /) -> Any:
        """Send a value once, and return a reference that tasks accept as an argument."""


class Spread(Platform, Protocol):
    """A platform on several hosts."""

    def submit_on(self, host: str, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        """Submit a task to the workers of this host only."""


Start = Callable[[int], Platform]
"""Function that starts a system with this many workers."""
