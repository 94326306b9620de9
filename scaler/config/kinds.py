"""The types of settings: what a value must be, checked once where it enters."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field

from scaler.config.addresses import check_address, check_server_address
from scaler.config.preload import parse_preload
from scaler.config.worker import LoggingLevel
from scaler.needs import Offers, parse_capabilities

# What is larger is a mistake, and would not fit in a message.
MAX_COUNT = 1_000_000
MAX_LIMIT = 2**63 - 1
MAX_SECONDS = 1e9


def _limit(value: int) -> int:
    if value == -1 or 0 < value <= MAX_LIMIT:
        return value
    raise ValueError(f"must be -1 (no limit), or from 1 to {MAX_LIMIT}")


def _name(value: str) -> str:
    if not value or not value.isprintable() or value != value.strip():
        raise ValueError("must be a name: not empty, without control characters and outer blanks")
    return value


def _capabilities(value: object) -> object:
    return parse_capabilities(value) if isinstance(value, str) else value


def _offered(value: dict[str, float | None]) -> dict[str, float | None]:
    Offers.of(value)
    return value


def _preload(value: str) -> str:
    parse_preload(value)
    return value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


Address = Annotated[str, AfterValidator(check_address)]
"""`tcp://host:port` or `ipc://path`: where to listen."""
ServerAddress = Annotated[str, AfterValidator(check_server_address)]
"""The same, of a server to connect to."""
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Bytes = Annotated[int, Field(ge=0)]
Limit = Annotated[int, AfterValidator(_limit)]
"""At least 1, or -1: no limit."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS), AllowInfNan(False)]
"""A time that must pass."""
SecondsOrNone = Annotated[float, Field(ge=0, le=MAX_SECONDS), AllowInfNan(False)]
"""A time that may be 0: none."""
Name = Annotated[str, AfterValidator(_name)]
Capabilities = Annotated[dict[str, float | None], BeforeValidator(_capabilities), AfterValidator(_offered)]
"""A mapping of name to amount (None: a label), written as `linux,cpu=4,gpu=1`."""
Preload = Annotated[str, AfterValidator(_preload)]
"""`module.path:function(literals)`."""
Paths = Annotated[tuple[Name, ...], BeforeValidator(_split)]
"""One or more paths, as a list or separated by commas."""
Names = Annotated[tuple[Name, ...], BeforeValidator(_split)]
"""Names, as a list or separated by commas."""
Level = Annotated[LoggingLevel, BeforeValidator(_upper)]
"""A level of logging, in any case."""
