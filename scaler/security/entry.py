"""Pure: what a keys directory says about one key of a peer. Nothing of it is secret."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from scaler.security.credential import PEER_ROLES
from scaler.security.documents import Document, lines, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    """One key of a peer. units: the public key of a manager's units, empty for others."""

    name: str
    role: str
    cluster: str
    public: str
    units: str = ""
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
        return lines(
            {
                "name": self.name,
                "role": self.role,
                "cluster": self.cluster,
                "public": self.public,
                "units": self.units or None,
                "added": self.added,
                "expires": self.expires,
                "revoked": self.revoked,
            }
        )

    @classmethod
    def from_text(cls, text: str, where: str) -> PeerEntry:
        """Return the entry of a text that `to_text` wrote. where: names it in errors. Raises ConfigError."""
        document = Document.parse(text, where)
        document.only([each.name for each in fields(cls)])
        role = document.choice("role", PEER_ROLES)
        return cls(
            name=document.name(),
            role=role,
            cluster=document.name("cluster"),
            public=document.key("public"),
            units=document.key("units") if role == "manager" else "",
            added=document.required_time("added"),
            expires=document.time("expires"),
            revoked=document.time("revoked"),
        )
