"""Settings of every component: how it connects and authenticates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.compression import COMPRESSION_VARIABLE, Compression
from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Name
from scaler.security import CREDENTIALS_VARIABLE, INSECURE_VARIABLE


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig(SettingsModel):
    """Connections."""

    compression: Annotated[Compression, Setting(variable=COMPRESSION_VARIABLE)] = "auto"
    """Compress what goes to other hosts: `auto` where it saves more time than it takes, `on` whatever becomes smaller,
    also over a tunnel of this host, `off` nothing. Both ends of a connection must allow it."""


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(ConnectionConfig):
    """Security."""

    credentials: Annotated[
        Name | None,
        Setting(
            "-cr",
            default_text="none: processes of one user on one machine need none",
            metavar="PATH",
            variable=CREDENTIALS_VARIABLE,
        ),
    ] = None
    """The keys directory that `scaler keys init` made, for servers and what runs beside them; for others the file that
    `scaler keys add` wrote."""
    insecure_no_auth: Annotated[bool, Setting(variable=INSECURE_VARIABLE)] = False
    """Accept every peer and encrypt nothing. All components and clients of the cluster must set it."""

    def check(self) -> None:
        super().check()
        if self.credentials and self.insecure_no_auth:
            raise ValueError("credentials and insecure_no_auth contradict each other: give one of them")
