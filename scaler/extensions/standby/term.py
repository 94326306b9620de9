"""A file in the state directory that records which of two schedulers serves."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scaler.config.servers import SchedulerConfig
from scaler.net.access import Access
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.paths import local_path
from scaler.protocol.messages import Role, Server
from scaler.security.private_files import read_private, write_private


class Term(NamedTuple):
    """epoch: the highest known one. serves: whether this scheduler serves in it. partner: address of the other one, or
    empty. has_copy: the journal was complete once."""

    epoch: int = 1
    serves: bool = True
    partner: str = ""
    has_copy: bool = False


def _file(config: SchedulerConfig) -> Path:
    return local_path(config.state_directory) / "standby.json"


def own_id(config: SchedulerConfig) -> str:
    """Return the id of a state directory, as addresses change. Raises UsageError."""
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


async def greeted(address: str, access: Access, epoch: int, seconds: float) -> int:
    """Send the epoch to another scheduler, which stops if its own is lower. Returns the other epoch, or 0 if the other
    scheduler does not serve. Raises TimeoutError if nothing answers."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(events: list[ConnectorEvent]) -> None:
        for event in events:
            if isinstance(event, Welcomed | ConnectionRefused) and not answer.done():
                answer.set_result(event.welcome.epoch if isinstance(event, Welcomed) else 0)

    hello = replace(own_hello(Role.SCHEDULER), epoch=epoch)
    connector = SocketConnector(address, Server.SCHEDULER, access, hello, take)
    try:
        async with asyncio.timeout(seconds):
            return await answer
    finally:
        connector.close()
