"""Pure: what a keys directory says about one key of a peer, as a line of JSON. Nothing of it is secret."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import NamedTuple

from scaler.errors import ConfigError
from scaler.security.documents import RESERVED_NAMES, Key, Name, Role, Time, check, is_name, shown, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    """One key of a peer. units: the public key of a manager's units, None for others."""

    name: Name
    role: Role
    public: Key
    units: Key | None = None
    added: Time
    expires: Time | None = None
    revoked: Time | None = None

    def problem(self, now: datetime) -> str:
        """Return why the key is not admitted, such as `was revoked on ...`; empty when it is."""
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
    """A line that is no entry."""

    line: str
    error: str


def entry_of(line: str, where: str) -> PeerEntry | BrokenEntry:
    """Return the entry of a line that `PeerEntry.line` gave. where: names it in the error of a broken one."""
    try:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        entry = PeerEntry(**check(values, where, PeerEntry.__annotations__))
        if not is_name(entry.name) or entry.name in RESERVED_NAMES:
            raise ConfigError(f"{where}: {entry.name!r} is no name of a peer")
        if (entry.role == "manager") != (entry.units is not None):
            raise ConfigError(f"{where}: a manager's key, and no other, has units")
    except ConfigError as error:
        return BrokenEntry(line, str(error))
    return entry
