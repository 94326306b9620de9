"""The initializer of a pool, in the workers' processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class Setup:
    """What a pool's initializer gets. key: of the pool."""

    key: str
    initargs: tuple[Any, ...]

    def __repr__(self) -> str:
        return "initargs"


_prepared: dict[tuple[str, int], object] = {}
"""Initializers that have run in this process, by the key of their pool and their id."""


class Prepared:
    """Calls a function in a process in which the pool's initializer has run.

    Functions of `__main__` travel by value, and those of one pickle share their globals: so the initializer travels
    with the function, and runs once for each such copy. One that is imported is the same object in every pickle.
    """

    def __init__(self, func: Callable[..., Any], initializer: Callable[..., object], spread: bool) -> None:
        """spread: the item is the function's arguments."""
        self.func = func
        self.initializer = initializer
        self.spread = spread

    def __call__(self, with_setup: tuple[Setup, Any], **kwds: Any) -> Any:
        setup, item = with_setup
        copy = setup.key, id(self.initializer)
        if copy not in _prepared:
            self.initializer(*setup.initargs)
            _prepared[copy] = self.initializer
        return self.func(*item, **kwds) if self.spread else self.func(item)
