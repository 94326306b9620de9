"""Commands as processes, and a scheduler in this process, with a test's settings."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from scaler.config.servers import SchedulerConfig, scheduler_model
from scaler.ids import new_peer_id
from scaler.monitor.messages import MonitorStatus
from scaler.monitor.rows import KEYS, objects
from scaler.net.access import LOCAL_ACCESS
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.protocol.messages import Details, Hello, Message, Refused, Role, Server, Welcome
from scaler.scheduler.server import SchedulerServer

WAIT_SECONDS = 15.0

MessageT = TypeVar("MessageT")


# -- commands


class Command:
    """A running command, whose output is read after its exit."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        directory: Path,
        python: str = sys.executable,
        before: Sequence[str] = (),
    ) -> None:
        readable, writable = os.pipe()
        self._out = (directory / f"{name}-{writable}-{os.urandom(4).hex()}.out").open("w+")
        self._err = (directory / f"{name}-{writable}-{os.urandom(4).hex()}.err").open("w+")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SCALER_")}
        self.process = subprocess.Popen(
            [*before, python, "-m", "scaler.cli", name, *arguments],
            env={**inherited, "SCALER_READY_FD": str(writable), **environment},
            pass_fds=[writable],
            stdout=self._out,
            stderr=self._err,
        )
        os.close(writable)
        self._ready = os.fdopen(readable)

    @property
    def pid(self) -> int:
        return self.process.pid

    def addresses(self) -> dict[str, str]:
        """Wait until the command is ready, and return its listening addresses by purpose."""
        assert select.select([self._ready], [], [], WAIT_SECONDS)[0], "the command did not become ready"
        line = self._ready.readline()
        assert line, f"the command ended before it was ready: {self.errors()}"
        found: dict[str, str] = json.loads(line)["addresses"]
        return found

    def output(self) -> str:
        self._out.seek(0)
        return self._out.read()

    def errors(self) -> str:
        self._err.seek(0)
        return self._err.read()

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        self._ready.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._out.close()
        self._err.close()


@contextmanager
def command(
    name: str, *arguments: str, directory: Path, python: str = sys.executable, **environment: str
) -> Iterator[Command]:
    """Yield a started command, then stop it and check for an orderly exit."""
    running = Command(name, arguments, environment, directory, python)
    try:
        yield running
        # A command that is already exiting no longer handles signals.
        assert running.stop() in (0, -signal.SIGTERM), running.errors()
    finally:
        running.close()


# -- a scheduler in this process, with scripted peers


class Peer:
    """A scripted peer. Workers and managers send nothing on their own, and other peers send heartbeats."""

    def __init__(self, address: str, role: Role, details: Details = None, hello: Hello | None = None) -> None:
        self.welcome: Welcome | None = None
        self.refused: Refused | None = None
        self.said: list[Message] = []
        self._changed = asyncio.Event()
        self.id = new_peer_id()
        hello = hello or own_hello(role, details)
        self.connector = SocketConnector(address, Server.SCHEDULER, LOCAL_ACCESS, hello, self._on_events, peer=self.id)

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Welcomed(welcome):
                    self.welcome = welcome
                case ConnectionRefused(refused):
                    self.refused = refused
                case Received(message=message):
                    self.said.append(message)
                case _:
                    pass
        self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until this peer's messages satisfy the condition, and return its result."""
        while not (found := condition()):
            self._changed.clear()
            await self._changed.wait()
        return found

    async def welcomed(self) -> Welcome:
        await self.until(lambda: self.welcome)
        assert self.welcome is not None
        return self.welcome

    def all(self, kind: type[MessageT]) -> list[MessageT]:
        return [message for message in self.said if isinstance(message, kind)]

    async def hear(self, kind: type[MessageT], count: int = 1) -> list[MessageT]:
        """Wait until this many messages of a type have arrived since the start, and return them."""
        await self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)


class Stage:
    """A scheduler on this event loop, with the test's peers."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.stop = asyncio.Event()
        self.server = SchedulerServer(config, self.stop)
        self._peers: list[Peer] = []

    @property
    def address(self) -> str:
        return self.server.addresses["scheduler"]

    async def peer(self, role: Role, details: Details = None) -> Peer:
        """Return a welcomed peer."""
        purpose = "monitor" if role is Role.MONITOR else "scheduler"
        peer = Peer(self.server.addresses[purpose], role, details)
        self._peers.append(peer)
        await peer.welcomed()
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.connector.close()
        self.server.close()


def on_a_scheduler(story: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
    """Run a scenario with a scheduler that has these settings, within WAIT_SECONDS."""

    async def main() -> None:
        stage = Stage(scheduler_model()(**{"bind_address": "tcp://127.0.0.1:0", **settings}))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await story(stage)
        finally:
            stage.close()

    asyncio.run(main())


def document(status: MonitorStatus) -> dict[str, Any]:
    """Return a monitor's document with table rows as objects."""
    found: dict[str, Any] = json.loads(status.json)
    return found | {name: objects(found[name]) for name in KEYS}


async def document_where(monitor: Peer, fits: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait until a monitor receives a matching message, and return it."""
    await monitor.until(lambda: any(fits(document(each)) for each in monitor.all(MonitorStatus)[-1:]))
    return document(monitor.all(MonitorStatus)[-1])
