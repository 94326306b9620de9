"""Capabilities: what a worker offers and what a task needs, and the one rule that compares them.

A capability is a label (`linux`) or a quantity (`gpu=2`). An offered label has no end (it satisfies any quantity); a
needed label is satisfied by any offer of that name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaler.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Offers:
    """What one worker offers: pairs of name and amount, sorted by name; a label's amount is infinite."""

    items: tuple[tuple[str, float], ...] = ()
    amounts: dict[str, float] = field(init=False, compare=False, hash=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "amounts", dict(self.items))

    @classmethod
    def of(cls, capabilities: Mapping[str, float | None]) -> Offers:
        """Build from a mapping of name to amount, None or -1 for a label. Raises UsageError on a bad amount."""
        return cls(_checked(capabilities, math.inf))

    def __str__(self) -> str:
        return ",".join(name if math.isinf(amount) else f"{name}={amount:g}" for name, amount in self.items)


@dataclass(frozen=True, slots=True)
class Needs:
    """What one task needs: pairs of name and least amount, sorted by name; a label's amount is 0."""

    items: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, capabilities: Mapping[str, float | None]) -> Needs:
        """Build from a mapping of name to amount, None or -1 for a label. Raises UsageError on a bad amount."""
        return cls(_checked(capabilities, 0.0))

    def fits(self, offers: Offers) -> bool:
        """Tell whether a worker with these offers may run a task with these needs."""
        amounts = offers.amounts
        return all(amounts.get(name, -1.0) >= amount for name, amount in self.items)

    def __str__(self) -> str:
        return ",".join(name if amount == 0 else f"{name}={amount:g}" for name, amount in self.items)


def parse_capabilities(text: str) -> dict[str, float | None]:
    """Parse `linux,cpu=4,gpu=1` into a mapping; a label's amount is None. Raises UsageError and says what to change."""
    found: dict[str, float | None] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        name, separator, amount = (part.strip() for part in item.partition("="))
        if not _NAME.fullmatch(name):
            raise UsageError(f"capability {item!r}: write a name, or name=number, such as linux,cpu=4,gpu=1")
        if name in found:
            raise UsageError(f"capability {name!r} is given twice")
        if not separator:
            found[name] = None
            continue
        try:
            found[name] = float(amount)
        except ValueError:
            raise UsageError(f"capability {item!r}: {amount!r} is not a number") from None
    _checked(found, 0.0)
    return found


def _checked(capabilities: Mapping[str, float | None], label: float) -> tuple[tuple[str, float], ...]:
    items: list[tuple[str, float]] = []
    for name in sorted(capabilities, key=str):
        amount = capabilities[name]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"capability {name!r}: a name has letters, digits, '_', '.' and '-'")
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int | float)):
            raise UsageError(f"capability {name!r}: the amount must be a number or None, not {amount!r}")
        if amount is None or amount == -1:
            items.append((name, label))
        elif math.isfinite(amount) and amount > 0:
            items.append((name, float(amount)))
        else:
            raise UsageError(f"capability {name}={amount}: the amount must be a number above 0, or left out")
    return tuple(items)
