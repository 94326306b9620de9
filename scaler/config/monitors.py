"""Settings for monitors: web page and terminal monitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.addresses import MAX_PORT, check_server_address
from scaler.config.compatibility import OF_TIMEOUT_SECONDS, OF_WEB_HOST, OF_WEB_PORT
from scaler.config.servers import SecurityConfig
from scaler.config.setting import LoggingConfig, Setting
from scaler.config.values import Check, Name, Names, Range, Seconds
from scaler.registry import find, find_only, is_name


def _monitor_address(value: str) -> str:
    return find(value).monitor_address if is_name(value) else check_server_address(value)


_CLUSTER = Setting(positional=True, default_text="this user's only running cluster", metavar="ADDRESS")


@dataclass(frozen=True, kw_only=True)
class MonitorConfig(SecurityConfig):
    """Monitors."""

    monitor_address: Annotated[str, Check(_monitor_address), _CLUSTER] = ""
    """Name of one of this user's running clusters, or the scheduler's monitor address (by default its port + 2)."""

    def __post_init__(self) -> None:
        if not self.monitor_address:
            self.default("monitor_address", find_only().monitor_address)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class WebServerConfig(LoggingConfig):
    """Web server."""

    web_host: Annotated[Name, Setting(aliases=OF_WEB_HOST, metavar="HOST")] = "127.0.0.1"
    """Address to listen on. Requests from other machines need a token. gui_address (host:port) sets web_host and
    web_port together."""
    web_port: Annotated[int, Range(ge=0, le=MAX_PORT), Setting(aliases=OF_WEB_PORT, metavar="PORT")] = 50001
    """Port of the web page. If it is in use, the next free port is used. 0: any free port."""
    web_token_file: Annotated[str | None, Setting(default_text="a file of this user", metavar="FILE")] = None
    """File with the login token (at least 22 characters). Must be readable only by its owner."""
    web_certificate_file: Annotated[str | None, Setting(default_text="none: HTTP", metavar="FILE")] = None
    """File with the server's certificate chain (PEM), for HTTPS."""
    web_key_file: Annotated[str | None, Setting(metavar="FILE")] = None
    """File with the certificate's private key (PEM, without a password). Must be readable only by its owner."""
    allowed_hosts: Annotated[Names, Setting(default_text="none", metavar="NAME")] = ()
    """Additional host names that browsers may use, such as a proxy's. Requests for unknown hosts are rejected."""

    def check(self) -> None:
        super().check()
        if (self.web_certificate_file is None) != (self.web_key_file is None):
            raise ValueError("web_certificate_file requires web_key_file and vice versa: set both or neither")


@dataclass(frozen=True, kw_only=True)
class WebUiConfig(WebServerConfig, MonitorConfig):
    """Web server."""

    section = "webui"

    telemetry_endpoint: Annotated[str, Setting(default_text="none", metavar="URL")] = ""
    """OTLP/HTTP address of a metrics collector, such as http://localhost:4318."""


@dataclass(frozen=True, kw_only=True)
class TopConfig(MonitorConfig):
    """Terminal monitor."""

    section = "top"

    timeout_seconds: Annotated[Seconds, Setting("-t", aliases=OF_TIMEOUT_SECONDS, metavar="SECONDS")] = 5.0
    """Time limit for finding a scheduler at startup, and for queries about a task."""
