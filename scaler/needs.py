"""Capabilities: a worker's offers, a task's needs, and their comparison. A capability is a label (`linux`) or a
quantity (`gpu=2`). An offered label satisfies any quantity. A needed label is satisfied by any offer with that name.
Three quantities are *counted*: a running task occupies its `memory` (bytes), `gpu`, and `cpus` on its worker. Every
worker offers memory and cpus, explicitly or implicitly. Other quantities are counted if a task asks for them with
`resources`, and only compared otherwise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaler.errors import UsageError

MEMORY, GPU, CPUS = "memory", "gpu", "cpus"
UNITS_PER_ONE = 1000  # counted amounts are integer thousandths, so that fractions add up
_MEMORY_STEP_BYTES = 64 * 1024**2  # rounds implied memory down, so that equal hosts make equal offers
BYTE_PREFIXES = " KMGT"
PIN, LIMIT, NEAR, GANG, COUNTED = "worker:", "limit:", "near:", "gang:", "counted:"
"""Prefixes of terms: one worker (its id in hex follows), a limit of the cluster, a preferred place, the number of tasks
that start together, and a capability that is counted. Terms are part of the needs. Only the first and the last are
compared with offers. Capability names have no colon."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Offers:
    """One worker's offers: pairs of name and amount, sorted by name; a label's amount is infinite. implied: memory and
    cpus that are not named. worker: its unique id, which equality ignores."""

    items: tuple[tuple[str, float], ...] = ()
    implied: tuple[tuple[str, float], ...] = ()
    worker: bytes = field(default=b"", compare=False, hash=False, repr=False)
    amounts: dict[str, float] = field(init=False, compare=False, hash=False, repr=False)

    def __post_init__(self) -> None:
        pin = {PIN + self.worker.hex(): math.inf} if self.worker else {}
        object.__setattr__(self, "amounts", dict(self.implied) | dict(self.items) | pin)

    @classmethod
    def of(
        cls,
        capabilities: Mapping[str, float | None],
        slots: int | None = None,
        memory_bytes: float = math.inf,
        worker: bytes = b"",
    ) -> Offers:
        """Build offers from amounts by name; None or -1: a label. slots, memory_bytes: implied. Raises UsageError."""
        if slots is None:
            return cls(checked(capabilities, math.inf))
        if math.isfinite(memory_bytes):
            memory_bytes = max(1, memory_bytes // _MEMORY_STEP_BYTES) * _MEMORY_STEP_BYTES
        return cls(checked(capabilities, math.inf), ((CPUS, slots), (MEMORY, memory_bytes)), worker)

    def text(self, needs: Needs) -> str:
        """Return the offers for display, including implied offers if these needs use them."""
        asked = {name for name, _ in needs.items}
        return str(Offers(tuple(sorted({*self.items, *(each for each in self.implied if each[0] in asked)}))))

    def __str__(self) -> str:
        return ",".join(name if math.isinf(amount) else with_amount(name, amount) for name, amount in self.items)


@dataclass(frozen=True, slots=True)
class Needs:
    """Pairs of name and minimum amount, sorted by name; 0 for a label. is_alone: the worker runs no other task.
    required: the pairs that a worker must offer, without other terms. environment: as in a `Spec`, not compared with
    offers."""

    items: tuple[tuple[str, float], ...] = ()
    is_alone: bool = False
    environment: bytes = b""
    cpus: float = field(init=False, compare=False, hash=False, repr=False)
    claims: tuple[tuple[str, int], ...] = field(init=False, compare=False, hash=False, repr=False)
    """Memory, gpu, other capabilities, and limits (with their prefix) occupied while running, in thousandths."""
    is_limited: bool = field(init=False, compare=False, hash=False, repr=False)
    is_counted: bool = field(init=False, compare=False, hash=False, repr=False)  # occupies more than a slot
    pin: str = field(init=False, compare=False, hash=False, repr=False)  # the required worker; empty for any
    required: tuple[tuple[str, float], ...] = field(init=False, compare=False, hash=False, repr=False)
    near: str = field(init=False, compare=False, hash=False, repr=False)  # the preferred place; empty for any
    gang: str = field(init=False, compare=False, hash=False, repr=False)  # id of tasks that start together, or empty
    gang_size: int = field(init=False, compare=False, hash=False, repr=False)  # 0: without a gang
    gang_per_host: int = field(init=False, compare=False, hash=False, repr=False)  # 0: no maximum
    is_fixed: bool = field(init=False, compare=False, hash=False, repr=False)  # never moves to another worker

    def __post_init__(self) -> None:
        required = [(name.removeprefix(COUNTED), amount) for name, amount in _without(self.items, LIMIT, NEAR, GANG)]
        object.__setattr__(self, "required", tuple(required))
        amounts = dict(self.items) if self.items else {}
        claims = [(name, math.ceil(amounts[name] * UNITS_PER_ONE)) for name in (GPU, MEMORY) if amounts.get(name)]
        counted = [item for item in self.items if item[0].startswith((COUNTED, LIMIT))]
        claims += [(name.removeprefix(COUNTED), max(1, round(amount * UNITS_PER_ONE))) for name, amount in counted]
        object.__setattr__(self, "is_limited", any(name.startswith(LIMIT) for name, _ in claims))
        object.__setattr__(self, "cpus", amounts.get(CPUS, 0.0))
        object.__setattr__(self, "claims", tuple(claims))
        object.__setattr__(self, "is_counted", bool(claims) or self.cpus > 0 or self.is_alone)
        object.__setattr__(self, "pin", next((name for name in amounts if name.startswith(PIN)), ""))
        object.__setattr__(self, "near", next((name for name in amounts if name.startswith(NEAR)), ""))
        object.__setattr__(self, "gang", next((name for name in amounts if name.startswith(GANG)), ""))
        object.__setattr__(self, "gang_size", int(amounts.get(self.gang, 0)))
        per_host = self.gang.rpartition("/")[2][:6]
        object.__setattr__(self, "gang_per_host", int(per_host) if per_host.isdecimal() else 0)
        object.__setattr__(self, "is_fixed", bool(self.pin or self.gang))

    @classmethod
    def of(cls, capabilities: Mapping[str, float | None]) -> Needs:
        """Build needs from amounts by name; None or -1: a label. Raises UsageError for an invalid amount."""
        return cls(checked(capabilities, 0.0))

    def fits(self, offers: Offers) -> bool:
        amounts = offers.amounts
        return all(amounts.get(name, -1.0) >= amount for name, amount in self.required)

    def width(self, offers: Offers, slots: int) -> float:
        """Return a task's slots on a worker: its share of the cpus, at least one."""
        if self.is_alone:
            return slots
        if not self.cpus:
            return 1
        # Multiples of 1/64 add up without rounding errors.
        return max(1, math.ceil(64 * self.cpus * slots / offers.amounts.get(CPUS, slots)) / 64)

    def slots_taken(self, offers: Offers, slots: int) -> float:
        """Return the slots that a task makes unavailable, given all resources."""
        amounts = [(name, amount / UNITS_PER_ONE) for name, amount in self.claims]
        shares = [amount / offers.amounts.get(name, math.inf) for name, amount in amounts]
        return min(slots, max([self.width(offers, slots), *(slots * share for share in shares)]))

    @property
    def capabilities(self) -> Needs:
        return Needs(_without(self.items, PIN, LIMIT, NEAR, GANG))

    def __str__(self) -> str:
        pairs = (
            ("gang" if name == self.gang else name.removeprefix(COUNTED).replace(":", " "), amount)
            for name, amount in self.items
        )
        return ",".join(name if amount == 0 else with_amount(name, amount) for name, amount in pairs)


def pinned(worker: str) -> tuple[tuple[str, float], ...]:
    """Return the needs of a task for this worker only. worker: its id in hex."""
    return ((PIN + worker, 0.0),)


def pinned_worker(pin: str) -> bytes:
    """Return the id of the worker in a pin, or an empty id if the pin is malformed."""
    try:
        return bytes.fromhex(pin.removeprefix(PIN))
    except ValueError:
        return b""


def function_needs(items: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """Return the capabilities and limits by which a function's tasks are grouped for counts."""
    return _without(items, PIN, NEAR, GANG)


def _without(items: tuple[tuple[str, float], ...], *terms: str) -> tuple[tuple[str, float], ...]:
    return tuple([item for item in items if not item[0].startswith(terms)])


def with_amount(name: str, amount: float) -> str:
    """Return a capability in parsable form: gpu=2, memory=8GB."""
    return f"{name}={exact_bytes(amount).replace(' ', '') if name == MEMORY else format(amount, 'g')}"


def exact_bytes(count: float) -> str:
    for power in range(4, 0, -1):
        for base, infix in ((1000, ""), (1024, "i")):
            value = count / base**power
            if value >= 1 and value * 10 % 1 == 0:
                return f"{value:.15g} {BYTE_PREFIXES[power]}{infix}B"
    return f"{count:.0f} B"


def checked(capabilities: Mapping[str, float | None], label: float) -> tuple[tuple[str, float], ...]:
    items: list[tuple[str, float]] = []
    for name in sorted(capabilities, key=str):
        amount = capabilities[name]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"capability {name!r}: a name consists of letters, digits, '_', '.' and '-'")
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int | float)):
            raise UsageError(f"capability {name!r}: the amount must be a number or None, not {amount!r}")
        if amount is None or amount == -1:
            items.append((name, label))
        elif math.isfinite(amount) and amount > 0:
            items.append((name, float(amount)))
        else:
            raise UsageError(f"capability {name}={amount}: the amount must be a number above 0, or left out")
    return tuple(items)
