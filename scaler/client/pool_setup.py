"""The initializer of a pool, in the workers' processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class Setup:
    key: str
    initargs: tuple[Any, ...]

    def __repr__(self) -> str:
        return "initargs"


_prepared: dict[tuple[str, int], object] = {}
"""Initializers that have run in this process, by key of the pool and id of the initializer."""


class Prepared:
    """Calls a function after the pool's initializer has run in this process.

    Functions of `__main__` are pickled by value and share the globals of their pickle, so the initializer is pickled
    with the function and runs once per copy. An imported initializer is the same object in every pickle, and runs once.
    """

    def __init__(self, func: Callable[..., Any], initializer: Callable[..., object], spread: bool) -> None:
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
