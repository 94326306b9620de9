"""Pure: what a keys directory says about one key of a peer. Nothing of it is secret."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from scaler.errors import ConfigError
from scaler.security.documents import lines, parse, shown

_KINDS = {
    "name": "name",
    "role": "role",
    "cluster": "name",
    "public": "key",
    "units": "key?",
    "added": "time",
    "expires": "time?",
    "revoked": "time?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    """One key of a peer. units: the public key of a manager's units, None for others."""

    name: str
    role: str
    cluster: str
    public: str
    units: str | None = None
    added: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def problem(self, now: datetime) -> str:
        """Return why the key is not admitted, such as `was revoked on ...`; empty when it is."""
        if self.revoked:
            return f"was revoked on {shown(self.revoked)}"
        if self.expires and self.expires <= now:
            return f"expired on {shown(self.expires)}"
        return ""

    def to_text(self) -> str:
        """Return the text of an entry file."""
        return lines(asdict(self))

    @classmethod
    def from_text(cls, text: str, where: str) -> PeerEntry:
        """Return the entry of a text that `to_text` wrote. where: names it in errors. Raises ConfigError."""
        entry = cls(**parse(text, where, _KINDS))
        if (entry.role == "manager") != (entry.units is not None):
            raise ConfigError(f"{where}: a manager's key, and no other, has units")
        return entry
