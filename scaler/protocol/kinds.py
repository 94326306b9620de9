"""Kinds of fields: what a builder takes for a value, the value of what a reader gives, and the rules for both.

A field's name on the wire is its name in camel case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from scaler.ids import PEER_ID_BYTES
from scaler.protocol import columns

MAX_SECONDS = 1e9
"""Longest duration that anything may name: thirty years, and still exact to the microsecond."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of field: `write` makes what a builder takes of a value, `read` a value of what a reader gives.

    Both raise ValueError for what the protocol does not allow.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Shape:
    """The fields of one message or of a part of one, in the order of its dataclass."""

    __slots__ = ("_fields", "type", "wire")

    def __init__(self, of: type[Any], /, **kinds: Kind) -> None:
        names = [field.name for field in fields(of)]
        if names != list(kinds):
            raise TypeError(f"{of.__name__} has the fields {names}, not {list(kinds)}")
        self.type = of
        self._fields = [(name, camel_case(name), kind.write, kind.read) for name, kind in kinds.items()]
        self.wire = of.__name__[0].lower() + of.__name__[1:]
        """Name of the message in the union of all of them."""

    def write(self, builder: Any, message: Any) -> None:
        """Fill a builder."""
        for name, wire, write, _ in self._fields:
            setattr(builder, wire, write(getattr(message, name)))

    def as_mapping(self, part: Any) -> dict[str, Any]:
        """Return what a builder takes for a part of a message."""
        return {wire: write(getattr(part, name)) for name, wire, write, _ in self._fields}

    def read(self, reader: Any) -> Any:
        """Make the dataclass from a reader, touching each field once."""
        return self.type(*[read(getattr(reader, wire)) for _, wire, _, read in self._fields])


def camel_case(name: str) -> str:
    """Return a field's name on the wire."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _same(value: Any) -> Any:
    return value


def _checked(check: Callable[[Any], Any]) -> Kind:
    return Kind(check, check)


def check_seconds(value: float) -> float:
    """Return the number of seconds; it is from 0 to MAX_SECONDS."""
    if not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{value} is not a number of seconds from 0 to {MAX_SECONDS:g}")
    return value


def _clock(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not the reading of a clock")
    return value


def _percent(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{value} is not a percentage")
    return value


def _no_limit_or(value: int) -> int:
    if value < -1:
        raise ValueError(f"{value} is neither a limit nor -1")
    return value


def _peer(value: bytes) -> bytes:
    if len(value) != PEER_ID_BYTES:
        raise ValueError(f"a peer id has {PEER_ID_BYTES} bytes, not {len(value)}")
    return value


def enum_of(members: type[StrEnum]) -> Kind:
    """Return the kind of a choice; the wire numbers its members in their order."""
    by_number = tuple(members)
    by_member = {member: number for number, member in enumerate(by_number)}

    def read(value: Any) -> StrEnum:
        number: int = value.raw
        if number >= len(by_number):
            raise ValueError(f"{members.__name__} {number} is not known")
        return by_number[number]

    return Kind(by_member.__getitem__, read)


def _write_texts(texts: list[str]) -> list[str]:
    columns.limit_entries("texts", len(texts))
    return texts


def _read_texts(reader: Any) -> list[str]:
    columns.check_entries("texts", len(reader))
    return list(reader)


def list_of(shape: Shape) -> Kind:
    """Return the kind of a list of parts, at most MAX_ENTRIES of them."""

    def write(parts: list[Any]) -> list[dict[str, Any]]:
        columns.limit_entries("entries", len(parts))
        return [shape.as_mapping(part) for part in parts]

    def read(reader: Any) -> list[Any]:
        columns.check_entries("entries", len(reader))
        return [shape.read(part) for part in reader]

    return Kind(write, read)


def write_needs(needs: tuple[tuple[str, float], ...]) -> list[dict[str, Any]]:
    """Return what a builder takes for the needs of a spec."""
    _check_needs(needs)
    return [{"name": name, "amount": amount} for name, amount in needs]


def read_needs(reader: Any) -> tuple[tuple[str, float], ...]:
    """Read the needs of a spec."""
    columns.check_entries("needs", len(reader))
    needs = tuple([(need.name, need.amount) for need in reader])
    _check_needs(needs)
    return needs


def _check_needs(needs: tuple[tuple[str, float], ...]) -> None:
    columns.check_entries("needs", len(needs))
    before = ""
    for name, amount in needs:
        if name <= before:
            raise ValueError(f"needs are out of order, or twice the same, at {name!r}")
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"need {name}={amount} is neither a label nor an amount above 0")
        before = name


def _write_offers(offers: Mapping[str, float | None]) -> list[dict[str, Any]]:
    columns.limit_entries("capabilities", len(offers))
    return [{"name": name, "amount": _amount(name, amount)} for name, amount in offers.items()]


def _amount(name: str, amount: float | None) -> float:
    if amount is None or amount == -1:
        return 0.0
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"capability {name}={amount} is neither a label nor an amount above 0")
    return float(amount)


def _read_offers(reader: Any) -> dict[str, float | None]:
    columns.check_entries("capabilities", len(reader))
    offers: dict[str, float | None] = {}
    for capability in reader:
        name, amount = capability.name, capability.amount
        if name in offers:
            raise ValueError(f"capability {name!r} is there twice")
        offers[name] = _amount(name, amount) if amount else None
    return offers


AS_IS = Kind(_same, _same)
"""Text, truth values, whole numbers and bytes without a rule: the wire's own type is the rule."""
SECONDS = _checked(check_seconds)
CLOCK = _checked(_clock)
PERCENT = _checked(_percent)
LIMIT = _checked(_no_limit_or)
ID = _checked(columns.check_id)
OPTIONAL_ID = _checked(columns.check_optional_id)
PEER = _checked(_peer)
IDS = Kind(columns.join_ids, columns.split_ids)
SIZES = Kind(columns.pack_sizes, columns.unpack_sizes)
OFFERS = Kind(_write_offers, _read_offers)
TEXTS = Kind(_write_texts, _read_texts)
