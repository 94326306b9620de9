"""Text formats of credentials and server keys (TOML), and of peers' keys (JSON lines). Pure. Errors omit values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from scaler.errors import ConfigError
from scaler.security.keys import Share

PEER_ROLES = ("client", "worker", "manager", "monitor", "admin")
GROUP = "group"
"""Role of an entry that describes the share of a group of keys instead of a key."""
MAX_SLOTS = 1_000_000
MAX_WEIGHT = 1_000.0
MAX_NAME_CHARACTERS = 60
MAX_CHARACTERS = 64 * 1024
SERVERS = ("scheduler", "object_storage")
RESERVED_NAMES = ("local", "anyone", *SERVERS)  # identities that a peer's key must not have
UNITS = ".units"  # Suffix in the name of the key for a manager's units. Peer names contain no dot.
NAME_RULE = f"a name: at most {MAX_NAME_CHARACTERS} letters, digits, - and _, with a letter or digit first"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
# 32 bytes in z85, as used by ZeroMQ.
_KEY = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")

Name: TypeAlias = str
Role: TypeAlias = str
Key: TypeAlias = str
Time: TypeAlias = datetime
Weight: TypeAlias = float
Slots: TypeAlias = int
"""Value types, by annotation in a document's class. Optional types end with | None."""
_KINDS: Mapping[str, tuple[type, Callable[[Any], object], str]] = {
    "Name": (str, lambda text: is_name(text.removesuffix(UNITS)), NAME_RULE),
    "Role": (str, (*PEER_ROLES, GROUP).__contains__, f"one of {', '.join(PEER_ROLES)}"),
    "Key": (str, _KEY.fullmatch, "a key of 40 characters in z85"),
    # Near the limits of datetime, a time zone can overflow.
    "Time": (
        datetime,
        lambda time: time.tzinfo is not None and 2000 <= time.year <= 9000,
        "a time with its zone, such as 2030-01-31T12:00:00Z",
    ),
    "Weight": (float, lambda weight: 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT, f"between 0.001 and {MAX_WEIGHT:g}"),
    "Slots": (int, lambda slots: type(slots) is int and 0 < slots <= MAX_SLOTS, f"a whole number, at most {MAX_SLOTS}"),
}


def parse(text: str, where: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return values by key (None: missing). where: named in errors. Raises ConfigError, also for unknown keys."""
    try:
        values = tomllib.loads(text) if len(text) <= MAX_CHARACTERS else {}
    except (ValueError, RecursionError):  # from the parser, or for a number too long for Python
        values = {}  # the error may quote secrets from the text
    return check(values, where, kinds)


def check(values: Any, where: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Validate values like `parse`. A time may be a string."""
    if not values or not isinstance(values, dict):
        raise ConfigError(f"{where} is not a Scaler credential or key: `scaler keys add` writes one")
    if other := sorted(values.keys() - kinds):
        raise ConfigError(
            f"{where}: unknown key{f' {other[0]!r}' if len(other[0]) < 20 else ''}; known: {', '.join(kinds)}"
        )
    for key, kind in kinds.items():
        if key in values:
            expected, is_right, rule = _KINDS[kind.removesuffix(" | None")]
            if expected is datetime and isinstance(values[key], str):
                with suppress(ValueError):
                    values[key] = datetime.fromisoformat(values[key])
            if expected is float and type(values[key]) is int:
                values[key] = float(values[key])
            if not (isinstance(values[key], expected) and is_right(values[key])):
                raise ConfigError(f"{where}: {key} must be {rule}")
        elif not kind.endswith(" | None"):
            raise ConfigError(f"{where}: {key} is missing")
    return {key: values.get(key) for key in kinds}


def lines(values: Mapping[str, str | datetime | float | None]) -> str:
    texts = {
        key: time_text(value) if isinstance(value, datetime) else json.dumps(value) for key, value in values.items()
    }
    return "".join(f"{key} = {text}\n" for key, text in texts.items() if values[key])


def complaint(name: str, value: Any) -> str:
    """Return the rule for a field of `PeerEntry` that this value violates, or an empty string."""
    expected, is_right, rule = _KINDS[PeerEntry.__annotations__[name].removesuffix(" | None")]
    return "" if isinstance(value, expected) and is_right(value) else rule


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def shown(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def time_text(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    """One key of a peer, without secrets, or the share of a group. units: public key for a manager's units."""

    name: Name
    role: Role
    public: Key | None = None
    units: Key | None = None
    added: Time
    expires: Time | None = None
    revoked: Time | None = None
    weight: Weight | None = None
    max_slots: Slots | None = None
    group: Name | None = None

    @property
    def share(self) -> Share:
        return Share(self.weight or 1.0, self.max_slots or 0, self.group or "")

    def problem(self, now: datetime) -> str:
        if self.revoked:
            return f"was revoked on {shown(self.revoked)}"
        if self.expires and self.expires <= now:
            return f"expired on {shown(self.expires)}"
        return ""

    @property
    def line(self) -> str:
        values = {key: value for key, value in asdict(self).items() if value}
        return json.dumps(values, default=time_text)


class BrokenEntry(NamedTuple):
    line: str
    error: str


def entry_of(line: str, where: str) -> PeerEntry | BrokenEntry:
    """Parse a `PeerEntry.line`. where: source, named in errors."""
    try:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        entry = PeerEntry(**check(values, where, PeerEntry.__annotations__))
        if not is_name(entry.name) or entry.name in RESERVED_NAMES:
            raise ConfigError(f"{where}: {entry.name!r} is not a valid peer name")
        if (entry.role == "manager") != (entry.units is not None):
            raise ConfigError(f"{where}: only a manager's key may have units")
        if (entry.role == GROUP) != (entry.public is None):
            raise ConfigError(f"{where}: only a group may lack a public key")
    except ConfigError as error:
        return BrokenEntry(line, str(error))
    return entry
