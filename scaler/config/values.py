"""The types of settings: annotations with validation rules. Does not import pydantic (10 MB, 45 ms), because every
process imports this module. `load.py` applies the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

from scaler.capabilities import parse_capabilities
from scaler.config.addresses import check_address, check_server_address, check_server_addresses
from scaler.errors import UsageError
from scaler.needs import Offers

_SHAPE = (
    "write module.path:function or module.path:function(literals), such as package.setup:connect('eu', tries=2); "
    "literals are numbers, strings, booleans, None, and lists, tuples, sets, and dicts of these"
)


class PreloadCall(NamedTuple):
    module: str
    function: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


def parse_preload(text: str) -> PreloadCall:
    """Parse a preload hook without importing the module. Raises UsageError."""
    module, _, call = (part.strip() for part in text.partition(":"))
    try:
        tree = ast.parse(call, mode="eval").body
        if isinstance(tree, ast.Name):
            tree = ast.Call(tree, [], [])
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
            raise ValueError("not a call")
        args = tuple(map(ast.literal_eval, tree.args))
        kwargs = {each.arg: ast.literal_eval(each.value) for each in tree.keywords}
        if None in kwargs or not all(name.isidentifier() for name in module.split(".")):
            raise ValueError("not a name")
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise UsageError(f"preload {text!r}: {_SHAPE}") from None
    return PreloadCall(module, tree.func.id, args, cast("dict[str, object]", kwargs))


MAX_COUNT = 1_000_000  # larger values are mistakes and do not fit in a message
MAX_LIMIT = 2**63 - 1
MAX_SECONDS = MAX_PRICE = 1e9


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that returns the value, possibly normalized, or raises ValueError with the reason. of_text: whether the
    rule converts strings, which happens before the type check; other values skip the rule."""

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
    """Bounds of a number, as in pydantic. Importing annotated_types would cost every process 1 MB."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        bounds = {"ge": self.ge, "gt": self.gt, "le": self.le}
        return handler(source) | {name: bound for name, bound in bounds.items() if bound is not None}


def must(is_right: Callable[[Any], object], reason: str) -> Check:
    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(reason)
        return value

    return Check(check)


def matching(pattern: str, reason: str) -> Check:
    return must(re.compile(pattern).fullmatch, reason)


def taken_by(parse: Callable[[Any], object]) -> Check:
    def check(value: Any) -> Any:
        parse(value)
        return value

    return Check(check)


def length(least: int, most: int) -> Check:
    return must(lambda value: least <= len(value) <= most, f"the number of items must be from {least} to {most}")


Address = Annotated[str, Check(check_address)]  # `tcp://host:port` or `ipc://path` to listen on
ServerAddress = Annotated[str, Check(check_server_address)]  # address to connect to
ServerAddresses = Annotated[str, Check(check_server_addresses)]  # one or several, separated by commas
Count = Annotated[int, Range(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[int, Range(ge=0, le=MAX_COUNT)]  # 0 disables the limit
Bytes = Annotated[int, Range(ge=0)]
Limit = Annotated[
    int, must(lambda value: value == -1 or 0 < value <= MAX_LIMIT, f"must be -1 (no limit), or from 1 to {MAX_LIMIT}")
]  # at least 1, or -1: no limit
LimitOrNone = Annotated[int, Range(ge=-1, le=MAX_LIMIT)]  # at least 1, -1: no limit, or 0: disabled
Seconds = Annotated[float, Range(gt=0, le=MAX_SECONDS)]
SecondsOrNone = Annotated[float, Range(ge=0, le=MAX_SECONDS)]  # 0 disables the limit
Price = Annotated[float, Range(ge=0, le=MAX_PRICE)]  # per unit and hour, in any currency
Name = Annotated[
    str,
    must(
        lambda value: value and value.isprintable() and value == value.strip(),
        "must be a nonempty name without control characters or surrounding spaces",
    ),
]
Capabilities = Annotated[dict[str, float | None], Check(parse_capabilities, of_text=True), taken_by(Offers.of)]
"""Amounts by name (None: a label), written as `linux,cpu=4,gpu=1`."""
Preload = Annotated[str, taken_by(parse_preload)]  # `module.path:function(literals)`
_Split = Check(lambda value: tuple(part.strip() for part in value.split(",")), of_text=True)
Names = Annotated[tuple[Name, ...], _Split]  # list or comma-separated string of names or paths
EventLoop = Literal["builtin", "uvloop"]
LoggingLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], Check(str.upper, of_text=True)]
LoggingFormat = Literal["text", "json"]


Compression = Literal["auto", "on", "off"]
COMPRESSION_VARIABLE = "SCALER_COMPRESSION"
