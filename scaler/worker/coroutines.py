"""Coroutine functions as tasks: a call gives a coroutine, and what users want is what it returns."""

from __future__ import annotations

from types import CoroutineType
from typing import Any


def finish(value: Any) -> Any:
    """Run a coroutine to its end, in an event loop of its own, and return its result; anything else as it is."""
    if type(value) is not CoroutineType:
        return value
    import asyncio  # noqa: PLC0415 (it takes a while to import, and few tasks need it)

    return asyncio.run(value)
