"""Settings of the HTTP server and its schedules."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from scaler.config import values as v
from scaler.config.addresses import MAX_PORT, check_server_address
from scaler.config.load import model_of
from scaler.config.monitors import WebServerConfig
from scaler.config.servers import SecurityConfig
from scaler.config.setting import Setting, SettingsModel
from scaler.errors import ConfigError
from scaler.extras import require
from scaler.registry import find, find_only, is_name

ID = re.compile("[A-Za-z0-9_-]{1,64}")
"""Pattern of session, call, and schedule names."""
SCHEDULES = "schedules-"
"""Name prefix of the schedules' sessions. Requests cannot use these sessions, because that would delay runs."""
TOKEN_FILE = "http-token"  # noqa: S105 (a file's name)
"""File with this user's token. The web page's token permits only reading."""
_FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
_CLUSTER = Setting(positional=True, default_text="this user's only running cluster", metavar="ADDRESS")


def _table(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a table as JSON: {error}") from None


_Table = Annotated[dict[str, Any], v.Check(_table, of_text=True)]
_LONE = v.Check(lambda text: (text,), of_text=True)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError):  # OSError: the name of a directory
        raise ValueError(
            f"{name!r} is not a known time zone: use a name such as Europe/Berlin (pip install tzdata)"
        ) from None


def _check_cron(text: str) -> None:
    require("cronsim", "[[schedule]]")
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 (optional)

    try:
        if len(text.split()) != 5:
            raise CronSimError("Wrong number of fields")
        CronSim(text, datetime.now())  # noqa: DTZ005 (any time)
    except CronSimError as error:
        fields = "minute, hour, day of month, month, and day of week, such as '0 3 * * *'"
        raise ValueError(f"cron {text!r}: {error}; write {fields}") from None


@dataclass(frozen=True, kw_only=True)
class Schedule(SettingsModel):
    """Schedule."""

    section = "schedule"

    name: Annotated[str, v.matching(ID.pattern, "must be up to 64 letters, digits, '-', and '_'")]
    """Name in logs and durable sessions."""
    cron: Annotated[str, v.taken_by(_check_cron)]
    """Times: minute, hour, day of month, month, and day of week."""
    call: Annotated[str, v.matching(_FUNCTION, "must be module:function")]
    """Function to call."""
    args: tuple[Any, ...] = ()
    """Its arguments."""
    kwargs: dict[str, Any] | None = None
    """Its keyword arguments."""
    timezone: Annotated[str, v.taken_by(_zone)] = "UTC"
    """Time zone of cron, such as Europe/Berlin."""
    missed: Literal["run", "skip"] = "run"
    """After downtime of the server or the scheduler: start the last missed run, or skip it."""


@dataclass(frozen=True, kw_only=True)
class HttpConfig(WebServerConfig, SecurityConfig):
    """HTTP server."""

    section = "http"

    scheduler_address: Annotated[str, _CLUSTER] = ""
    """Name of one of this user's running clusters, or the scheduler's address."""
    web_host: Annotated[v.Name, Setting(metavar="HOST")] = "127.0.0.1"
    """Address to listen on."""
    web_port: Annotated[int, v.Range(ge=0, le=MAX_PORT), Setting(metavar="PORT")] = 50002
    """Port of the HTTP server. 0: any free port."""
    allowed: Annotated[v.Names, Setting(default_text="none", metavar="NAME")] = ()
    """Functions that requests may call: module:function, or module:* for the public functions that the module
    defines."""
    allow_jobs: bool = False
    """Run scripts contained in requests. Anyone with a token can then run any code on the workers."""
    client_credentials: Annotated[v.Names, Setting(default_text="none", metavar="FILE")] = ()
    """Credential files of clients. Each client has its own token, which `scaler http token FILE` prints. The first
    client runs schedules. Without files, the token in web_token_file acts with this server's own credential."""
    max_body_bytes: Annotated[v.Bytes, Setting(metavar="BYTES")] = 16 * 1024 * 1024
    """Maximum size of a request."""
    max_calls_per_key: v.Count = 1000
    """Maximum number of unfinished calls and jobs per key."""
    schedule: Annotated[tuple[_Table, ...], _LONE, Setting(default_text="none", metavar="JSON")] = ()
    """[[schedule]] tables of the file. A flag or variable contains one table as JSON."""
    keep_seconds: v.Seconds = 3600.0
    """How long results are kept, except in durable sessions."""

    def __post_init__(self) -> None:
        if not self.scheduler_address or is_name(self.scheduler_address):
            found = find(self.scheduler_address) if self.scheduler_address else find_only()
            object.__setattr__(self, "scheduler_address", found.address)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        check_server_address(self.scheduler_address)
        for entry in self.allowed:
            if not re.fullmatch(_FUNCTION, entry.replace("*", "x")):
                raise ValueError(f"allowed: {entry!r} must be module:function, or module:*")
        names = [each.name for each in schedules_of(self)]
        if len(names) != len({*names}):
            raise ValueError(f"two schedules have the same name: {', '.join(names)}")


def schedules_of(config: HttpConfig) -> list[Schedule]:
    found = []
    for table in config.schedule:
        try:
            found.append(model_of(Schedule, table))
        except ConfigError as error:
            raise ConfigError(f"schedule {table.get('name', len(found) + 1)}: {error}") from None
    return found


def permission_of(config: HttpConfig, function: str) -> bool | None:
    """Return whether `allowed` lists this function without `*`; None if requests may not call it."""
    if function in config.allowed and "*" not in function:
        return True
    name = function.partition(":")[2]
    # `*` does not permit attributes of imported modules.
    is_public = re.fullmatch(_FUNCTION, function) and name.isidentifier() and not name.startswith("_")
    return False if is_public and any(fnmatchcase(function, entry) for entry in config.allowed) else None
