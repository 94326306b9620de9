"""Grammar of composed sentences: every count with its noun comes from here. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in the right number: 1 task, 2,060 tasks."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def called(function: str) -> str:
    """Return a function's name for a sentence."""
    return f"{function}()" if function else "a function without a name"


def listed(names: Sequence[str], most: int) -> str:
    """Return one or more names as a list that names at most this many: a, b and c, or a, b, c and 3 more."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    *first, last = [*names[:most], *more]
    return f"{', '.join(first)} and {last}" if first else last
