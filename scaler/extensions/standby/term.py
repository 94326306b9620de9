"""The file in the state directory that records which of two schedulers serves, and the query to the other scheduler."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scaler.config.servers import SchedulerConfig
from scaler.errors import UnreachableError
from scaler.net.access import Access
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.paths import local_path
from scaler.protocol.messages import Hello, RefusalReason, Role, Server
from scaler.security.private_files import read_private, write_private


class Term(NamedTuple):
    """epoch: highest known epoch. serves: whether this scheduler serves in this epoch. partner: address of the other
    scheduler, if that may have the next epoch. has_copy: whether the journal was complete once. cluster: unique id of
    the cluster, the same on both, or empty if this scheduler never had a standby."""

    epoch: int = 1
    serves: bool = True
    partner: str = ""
    has_copy: bool = False
    cluster: str = ""

    def is_of(self, other: bytes) -> bool:
        """Return whether another scheduler with this id belongs to the cluster. Earlier versions have no id."""
        return other in (b"", self.cluster.encode()) or bool(self.partner and not self.cluster)


def _file(config: SchedulerConfig) -> Path:
    return local_path(config.state_directory) / "standby.json"


def own_id(config: SchedulerConfig) -> str:
    """Return the state directory's id, which, unlike its address, identifies a scheduler. Raises UsageError."""
    file = _file(config).with_name("standby.id")
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, os.urandom(8).hex())
    return read_private(file)


def read_term(config: SchedulerConfig) -> Term | None:
    file = _file(config)
    return Term(**json.loads(read_private(file))) if file.exists() else None


def write_term(config: SchedulerConfig, term: Term) -> None:
    """Raises UsageError."""
    _file(config).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(_file(config), json.dumps(term._asdict()), replace=True)


def connected(address: str, access: Access, hello: Hello) -> tuple[SocketConnector, asyncio.Queue[ConnectorEvent]]:
    """Return a connector to a scheduler, and its events."""
    events: asyncio.Queue[ConnectorEvent] = asyncio.Queue()

    def take(arrived: list[ConnectorEvent]) -> None:
        for event in arrived:
            events.put_nowait(event)

    return SocketConnector(address, Server.SCHEDULER, access, hello, take), events


async def greeted(address: str, access: Access, term: Term, seconds: float) -> int:
    """Send this epoch to the other scheduler, which stops if its epoch is lower. Returns its epoch, or 0 if it does not
    serve. Raises UnreachableError if it does not answer or is of another cluster."""
    hello = replace(own_hello(Role.SCHEDULER), epoch=term.epoch, owner_token=term.cluster.encode())
    connector, events = connected(address, access, hello)
    try:
        async with asyncio.timeout(seconds):
            match await events.get():
                case Welcomed(welcome) if term.is_of(welcome.owner_token):
                    return welcome.epoch
                case ConnectionRefused(refused) if refused.reason is RefusalReason.STANDBY:
                    return 0
                case ConnectionRefused(refused):
                    raise UnreachableError(f"{address} refused this scheduler: {refused.text}")
                case _:
                    raise UnreachableError(f"{address} is the scheduler of another cluster")
    except TimeoutError:
        raise UnreachableError(f"{address} does not answer ({connector.last_error})") from None
    finally:
        connector.close()
