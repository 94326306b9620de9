"""The rows of the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, NamedTuple

from scaler.monitor.columns import Column


class AuditRow(NamedTuple):
    """An audit record. key: name of the peer's key. times: number of counted events, 0 for a single event."""

    at: Annotated[float, Column("When", "time")] = 0.0
    kind: Annotated[str, Column("Did")] = ""
    key: Annotated[str, Column("Key")] = ""
    role: Annotated[str, Column("Role", rank=2)] = ""
    peer: Annotated[str, Column("Peer", rank=3)] = ""
    host: Annotated[str, Column("From", rank=3)] = ""
    name: Annotated[str, Column("Client", rank=2, help="Name of the client")] = ""
    times: Annotated[int, Column("Number", "count", zero_is_none=True)] = 0
    text: Annotated[str, Column("What")] = ""

    def document(self) -> dict[str, object]:
        time = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return {"time": time.replace("+00:00", "Z"), **dict(zip(self._fields[1:], self[1:], strict=True))}

    @property
    def line(self) -> str:
        peer = " ".join(text for text in (self.key or "-", self.role, self.host) if text)
        what = " ".join(text for text in (f"{self.times} x" if self.times else "", self.text) if text)
        return f"{self.document()['time']} {self.kind:12} {peer}{': ' if what else ''}{what}"
