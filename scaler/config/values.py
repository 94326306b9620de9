"""The types of settings: annotations with rules for values.

Every process imports this module, so it does not import pydantic, which costs a process 10 MB and 45 ms, and which
checks values where files, flags and the environment are read (`load.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from scaler.config.addresses import check_address, check_server_address
from scaler.config.preload import parse_preload
from scaler.config.spend_limit import parse_spend_limit
from scaler.needs import Offers, parse_capabilities

MAX_COUNT = 1_000_000  # more is a mistake, and would not fit in a message
MAX_LIMIT = 2**63 - 1
MAX_SECONDS = MAX_PRICE = 1e9


@dataclass(frozen=True, slots=True)
class Check:
    """A rule: takes a value and returns it, possibly normalised. Raises ValueError with the reason.

    of_text: applied to text only, before the type is checked, to convert it.
    """

    function: Callable[[Any], object]
    of_text: bool = False

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 (see the module)

        if not self.of_text:
            return core_schema.no_info_after_validator_function(self.function, handler(source))
        return core_schema.no_info_before_validator_function(
            lambda value: self.function(value) if isinstance(value, str) else value, handler(source)
        )


@dataclass(frozen=True, slots=True)
class Range:
    """A rule: bounds of a number, as in pydantic. Not annotated_types, which costs every process 1 MB."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        bounds = {"ge": self.ge, "gt": self.gt, "le": self.le}
        return handler(source) | {name: bound for name, bound in bounds.items() if bound is not None}


def must(is_right: Callable[[Any], object], reason: str) -> Check:
    """Return the rule that a value has a property. reason: the text of the error."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(reason)
        return value

    return Check(check)


def matching(pattern: str, reason: str) -> Check:
    return must(re.compile(pattern).fullmatch, reason)


def taken_by(parse: Callable[[Any], object]) -> Check:
    """Return the rule that a function accepts a value, which stays as it is."""

    def check(value: Any) -> Any:
        parse(value)
        return value

    return Check(check)


def length(least: int, most: int) -> Check:
    """Return the rule for a list's number of items."""

    def check(value: tuple[object, ...]) -> object:
        if not least <= len(value) <= most:
            raise ValueError(f"the number of items must be from {least} to {most}, not {len(value)}")
        return value

    return Check(check)


def _split(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(","))


Address = Annotated[str, Check(check_address)]  # `tcp://host:port` or `ipc://path`: where to listen
ServerAddress = Annotated[str, Check(check_server_address)]  # the address of a server to connect to
Count = Annotated[int, Range(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[int, Range(ge=0, le=MAX_COUNT)]  # 0 switches off what it limits
Bytes = Annotated[int, Range(ge=0)]
SpendLimit = Annotated[str, taken_by(parse_spend_limit)]  # amounts by period, such as `5/hour, 40/day, 100/run`
Limit = Annotated[
    int,
    must(lambda value: value == -1 or 0 < value <= MAX_LIMIT, f"must be -1 (no limit), or from 1 to {MAX_LIMIT}"),
]  # at least 1, or -1: no limit
LimitOrNone = Annotated[int, Range(ge=-1, le=MAX_LIMIT)]  # the same, or 0, which switches off what it limits
Seconds = Annotated[float, Range(gt=0, le=MAX_SECONDS)]
SecondsOrNone = Annotated[float, Range(ge=0, le=MAX_SECONDS)]  # 0 switches it off
Price = Annotated[float, Range(ge=0, le=MAX_PRICE)]  # per unit and hour, in any currency
Name = Annotated[
    str,
    must(
        lambda value: value and value.isprintable() and value == value.strip(),
        "must be a name: not empty, without control characters and outer blanks",
    ),
]
Capabilities = Annotated[dict[str, float | None], Check(parse_capabilities, of_text=True), taken_by(Offers.of)]
"""Name to amount (None: a label), written as `linux,cpu=4,gpu=1`."""
Preload = Annotated[str, taken_by(parse_preload)]  # `module.path:function(literals)`
Names = Annotated[tuple[Name, ...], Check(_split, of_text=True)]  # names or paths, as a list or separated by commas
EventLoop = Literal["builtin", "uvloop"]
LoggingLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], Check(str.upper, of_text=True)]
LoggingFormat = Literal["text", "json"]
