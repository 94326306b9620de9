"""Grammar of generated sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 task, 2,060 tasks."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def called(function: str) -> str:
    return f"{function}()" if function else "a function without a name"


def listed(names: Sequence[str], most: int) -> str:
    """Join at most this many names: a, b and c, or a, b, c and 3 more."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    *first, last = [*names[:most], *more]
    return f"{', '.join(first)} and {last}" if first else last


def sized(size_bytes: float) -> str:
    """Format bytes for a sentence: 512 B, 1.2 MiB, 10 GiB."""
    amount = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 9.95 else f"{amount:.1f} {unit}"


def timed(seconds: float) -> str:
    """Format a time for a sentence: 1.5 ms, 2.5 s, 3 min, 2.5 h."""
    if seconds >= 120:
        return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{max(0.0, seconds) * 1e3:.3g} ms"
