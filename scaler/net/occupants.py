"""Who listens at an address already, for the text of an error: a process of ours, this one itself, or somebody else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import psutil

_WILDCARDS = ("*", "0.0.0.0", "::")  # noqa: S104 (compared with, not bound)
_OUR_MODULES = ("scaler.cluster", "scaler.cli")


def occupant_of(host: str, port: int) -> str:
    """Return who listens on this TCP port, in words. Looks at every socket of the machine."""
    bare = host.strip("[]")
    pids = [
        connection.pid
        for connection in _connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and (connection.laddr.ip == bare or connection.laddr.ip in _WILDCARDS or not _is_literal(bare))
    ]
    return _in_words(pids)


def occupant_of_path(path: str) -> str:
    """Return the same of the socket at this path."""
    return _in_words([connection.pid for connection in _connections("unix") if connection.laddr == path])


def component_of(command: Sequence[str]) -> str | None:
    """Return which of our components a command line runs, None for any other program."""
    for module in _OUR_MODULES:
        if module in command[:-1]:
            return _plain(command[command.index(module) + 1])
    script = next((PurePath(word).name for word in command[:2] if PurePath(word).name.startswith("scaler_")), None)
    return None if script is None else _plain(script)


def _in_words(pids: Sequence[int | None]) -> str:
    pid = next((pid for pid in pids if pid is not None), None)
    if pid == os.getpid():
        return "this process itself"
    try:
        process = None if pid is None else psutil.Process(pid)
        if process is not None and (component := component_of(process.cmdline())):
            return f"scaler's {component} (pid {pid})"
        return "another program" if process is None else f"another program ({process.name()}, pid {pid})"
    except psutil.Error:  # it has ended meanwhile, or is not ours to look at
        return "another program"


def _connections(kind: str) -> list[Any]:
    try:
        return psutil.net_connections(kind)
    except psutil.Error:  # macOS tells only the administrator
        return []


def _is_literal(host: str) -> bool:
    return host not in _WILDCARDS and (":" in host or host.replace(".", "").isdigit())


def _plain(name: str) -> str:
    return name.removeprefix("scaler_").replace("-", " ").replace("_", " ")
