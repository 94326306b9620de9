"""Parts of chunks, tasks that make several calls, which processors and clients recognize."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from scaler.serialization import Buffer, load_function
from scaler.serialization.snapshot import Fresh, Unchanging

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Immutable types, which are safe to share and cheap to keep in one pickle."""


class ManyCalls:
    """Results of a chunk. calls: number of ended and of failed ones."""

    __slots__ = ()

    @property
    def calls(self) -> tuple[int, int]:
        raise NotImplementedError


class ManyCallsFunction(Unchanging):
    """A function that makes the calls of a chunk."""

    def replay(self, *args: Any) -> list[Any]:
        """Make the calls as a debugger needs them: an exception propagates from the call that raised it."""
        raise NotImplementedError


class PickledFunction(Unchanging):
    """A pickled function. `fresh` returns the function in its pickled state for each call."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts = [memoryview(part).toreadonly() for part in parts]  # for repeated loading
        self.fresh = Fresh(lambda: load_function(parts))

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        return PickledFunction, ([outside(part, protocol) for part in self._parts],)


def outside(part: Buffer, protocol: int) -> Buffer | pickle.PickleBuffer:
    """Return pickled bytes out of band if the protocol allows, so that they are not searched for names."""
    return pickle.PickleBuffer(part) if protocol >= 5 else bytes(part)
