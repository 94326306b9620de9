"""Connection and authentication settings of every component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import COMPRESSION_VARIABLE, Compression, Name
from scaler.security import CREDENTIALS_VARIABLE, INSECURE_VARIABLE

_NEED_NONE = "none; processes of one user on one machine need none"
_CREDENTIALS = Setting("-cr", default_text=_NEED_NONE, metavar="PATH", variable=CREDENTIALS_VARIABLE)


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig(SettingsModel):
    """Connections."""

    compression: Annotated[Compression, Setting(variable=COMPRESSION_VARIABLE)] = "auto"
    """Compress traffic between hosts. auto: only when compression saves time; on: always when the data shrinks, also
    through a tunnel on this host; off: never. Both ends of a connection must allow compression."""


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(ConnectionConfig):
    """Security."""

    credentials: Annotated[Name | None, _CREDENTIALS] = None
    """Keys directory from `scaler keys init` for servers and local components; elsewhere, a file from `scaler keys
    add`."""
    insecure_no_auth: Annotated[bool, Setting(variable=INSECURE_VARIABLE)] = False
    """Accept every peer and disable encryption. All components and clients of the cluster must set this."""

    def check(self) -> None:
        super().check()
        if self.credentials and self.insecure_no_auth:
            raise ValueError("credentials and insecure_no_auth exclude each other: give one of them")
