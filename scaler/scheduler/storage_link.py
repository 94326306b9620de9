"""The scheduler's connection to the object storage."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace

from scaler.config.addresses import local_address
from scaler.net.connection import ConnectionRefused, ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.server_access import ServerAccess
from scaler.net.versions import own_hello
from scaler.object_storage.messages import StatStorage, StorageStatus
from scaler.protocol.messages import Message, Refused, Role, Server
from scaler.scheduler.core.commands import Input, StorageConnected, StorageSaid


class StorageLink:
    """Passes messages about objects to the core."""

    def __init__(
        self,
        address: str,
        public_address: str,
        access: ServerAccess,
        step: Callable[[Sequence[Input]], None],
        loop: AbstractEventLoop,
        epoch: int = 0,
    ) -> None:
        """public_address: address of the storage for other hosts. epoch: the scheduler's epoch."""
        self.address = address
        self.public_address = public_address
        self.on_figures: Callable[[StorageStatus, float], None] = lambda _figures, _seconds: None
        """Called with new figures and the round trip of the request in seconds."""
        self.on_refused: Callable[[Refused], None] = lambda _refused: None
        self._step = step
        self._loop = loop
        self._is_asked, self._asked_at = False, 0.0
        hello, address = replace(own_hello(Role.SCHEDULER), epoch=epoch), local_address(address)
        self._connector = SocketConnector(address, Server.OBJECT_STORAGE, access.to_storage, hello, self._on_events)

    def send(self, message: Message) -> None:
        self._connector.send(message)

    def ask(self) -> None:
        """Request figures, unless a reply is pending."""
        if self._connector.connected and not self._is_asked:
            self._is_asked, self._asked_at = True, self._loop.time()
            self._connector.send(StatStorage(0))

    def close(self) -> None:
        self._connector.close("the scheduler ends")

    def _on_events(self, arrived: Sequence[ConnectorEvent]) -> None:
        inputs: list[Input] = []
        for event in arrived:
            match event:
                case Received(_, StorageStatus() as figures):
                    self._is_asked = False
                    self.on_figures(figures, self._loop.time() - self._asked_at)
                case ConnectionRefused(refused):
                    self.on_refused(refused)
                case Received(_, message):
                    inputs.append(StorageSaid(message))
                case Welcomed():
                    self._is_asked = False
                    self.ask()
                    inputs.append(StorageConnected())
        if inputs:
            self._step(inputs)
