"""Settings of the monitors: the web server and the terminal monitor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from scaler.config.addresses import MAX_PORT, check_server_address
from scaler.config.security import SecurityConfig
from scaler.config.setting import Alias, LoggingConfig, Setting
from scaler.config.values import Check, Name, Names, Range, Seconds
from scaler.registry import find, find_only, is_name

MAX_LISTED_TASKS = 10_000
"""The monitors' model keeps no more."""

_GUI_ADDRESS = re.compile(r"(?:tcp://|http://)?(?P<host>\[[^\]]+\]|[^\s\[\]:/]+):(?P<port>[0-9]{1,5})/?")


def _host_of(value: object) -> object:
    return _gui_address(value)["host"].strip("[]")


def _port_of(value: object) -> object:
    return int(_gui_address(value)["port"])


def _gui_address(value: object) -> re.Match[str]:
    found = _GUI_ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be host:port, such as 127.0.0.1:50001")
    return found


def _monitor_address(value: str) -> str:
    return find(value).monitor_address if is_name(value) else check_server_address(value)


@dataclass(frozen=True, kw_only=True)
class MonitorConfig(SecurityConfig):
    """Monitors."""

    monitor_address: Annotated[
        str,
        Check(_monitor_address),
        Setting(positional=True, default_text="the only running cluster of this user", metavar="ADDRESS"),
    ] = ""
    """The name of a running cluster of this user, or the scheduler's monitor address: by default its port + 2."""

    def __post_init__(self) -> None:
        if not self.monitor_address:
            self.default("monitor_address", find_only().monitor_address)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class WebUiConfig(LoggingConfig, MonitorConfig):
    """Web server."""

    section = "webui"

    web_host: Annotated[Name, Setting(aliases=(Alias("gui_address", _host_of),), metavar="HOST")] = "127.0.0.1"
    """Where it listens. Every client that can connect there can read everything: there are no passwords.

    gui_address, host:port, gives web_host and web_port together.
    """
    web_port: Annotated[
        int,
        Range(ge=0, le=MAX_PORT),
        Setting(aliases=(Alias("port"), Alias("gui_address", _port_of)), metavar="PORT"),
    ] = 50001
    """The port of the page, or the next free one when it is in use; 0: any free one."""
    allowed_hosts: Annotated[Names, Setting(default_text="none", metavar="NAME")] = ()
    """Further names under which browsers reach it, such as that of a proxy; others are refused."""
    broadcast_interval_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 0.5
    """Minimum interval between updates to browsers."""
    task_log_max_size: Annotated[int, Range(ge=1, le=MAX_LISTED_TASKS), Setting(metavar="COUNT")] = 500
    """How many of the most recent tasks a page lists."""


@dataclass(frozen=True, kw_only=True)
class TopConfig(MonitorConfig):
    """Terminal monitor."""

    section = "top"

    timeout_seconds: Annotated[Seconds, Setting("-t", aliases=(Alias("timeout"),), metavar="SECONDS")] = 5.0
    """How long it waits for a scheduler when it starts, and for the answer to a question about a task."""
