"""Settings and fault script of the stand-in, passed to other processes as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

ON_PATH = str(Path(__file__).parent / "on_path")
"""A directory for `sys.path` from which `import soamapi` loads the stand-in."""
SETTINGS_VARIABLE = "SOAMAPI_STAND_IN"

Event = Literal["connect", "create_session", "send", "kill", "invoke", "response"]
Action = Literal["refuse", "abort", "disconnect", "fail", "die", "unreadable", "late", "twice", "lose"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault at the events of one kind with these numbers, counted from 1.

    refuse: connect, create_session, send, or kill raises. abort: at a send or a response, the session ends with all
    its tasks. disconnect: at a send, the connection breaks with all its sessions. fail: the service throws text
    instead of answering. die: the service's process dies. unreadable: populate_task_output raises. late: the
    response is delayed by this many seconds. twice: the response arrives twice. lose: the response never arrives.
    """

    on: Event
    do: Action
    number: int = 1
    times: int = 1
    seconds: float = 0.0
    text: str = "scripted"


@dataclass(frozen=True, slots=True)
class StandIn:
    """Settings of the stand-in.

    slots: number of concurrent service processes. service: their command. users: with passwords. Empty: no
    authentication. applications: known names. Empty: any. task_retry_limit: retries of a task whose process died, as
    in an application profile. can_kill: sessions have `kill_task`.
    """

    slots: int = 2
    service: tuple[str, ...] = (sys.executable, "-m", "scaler.worker_manager.symphony.service")
    applications: tuple[str, ...] = ()
    users: dict[str, str] | None = None
    task_retry_limit: int = 3
    can_kill: bool = True
    faults: tuple[Fault, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the variables with which another process finds the stand-in, including this process's PYTHONPATH."""
        paths = [ON_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), SETTINGS_VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        document = json.loads(environment.get(SETTINGS_VARIABLE, "{}"))
        for name in ("service", "applications"):
            if name in document:
                document[name] = tuple(document[name])
        document["faults"] = tuple(Fault(**fault) for fault in document.get("faults", ()))
        return cls(**document)
