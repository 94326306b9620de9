"""A member of a gang, inside its task."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scaler.client.connect import processor
from scaler.errors import UsageError
from scaler.net.address import own_host
from scaler.plugins import part_of
from scaler.protocol.messages import GangFormed, JoinGang

MAX_WAIT_SECONDS = 1e6
_running: list[Gang] = []


@dataclass(frozen=True, slots=True)
class Gang:
    """The gang of the running task.

    Attributes:
        rank: number of this member, from 0.
        size: number of members.
        hosts: address of each member's host, by rank.
        port: a port that was free on the host of rank 0 when the gang started, for a rendezvous.
    """

    rank: int
    hosts: tuple[str, ...]
    port: int

    @property
    def size(self) -> int:
        return len(self.hosts)


def current_gang() -> Gang:
    """Return the gang of the running task.

    Raises:
        UsageError: This code does not run inside a member of a gang.
    """
    if not _running:
        raise UsageError(
            "current_gang() works inside the function of client.gang(fn, n), and this code is not inside one"
        )
    return _running[-1]


class Member:
    """A function that waits until all members are ready."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        _running.append(_join())
        try:
            return self._function(*args)
        finally:
            _running.clear()


def _join() -> Gang:
    context: Any = processor()
    if context is None:
        raise UsageError("gangs need workers: jobs of a service and clients with processes=False cannot run members")
    loop = part_of("nested", "loop", "a gang")(None, None, MAX_WAIT_SECONDS)
    with socket.socket() as probe:  # keeps the port until the gang starts
        probe.bind(("", 0))
        host = own_host(context.config.scheduler_address)
        formed = loop.ask(JoinGang(context.task_id, host, probe.getsockname()[1]), GangFormed, MAX_WAIT_SECONDS)
    return Gang(formed.rank, tuple(formed.hosts), formed.port)
