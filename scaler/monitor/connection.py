"""A monitor's connection: feeds a model with the scheduler's messages, and asks questions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from scaler.errors import ProtocolError, RefusedError, UnreachableError
from scaler.ids import new_peer_id
from scaler.monitor.asking import Asking
from scaler.net.access import LOCAL_ACCESS, Access
from scaler.net.connection import ConnectionRefused, Connector, ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.questions import Questions
from scaler.net.versions import own_hello
from scaler.protocol.messages import MonitorEvents, MonitorStatus, RefusalReason, Refused, Reply, Role, Server

_log = logging.getLogger(__name__)
STORAGE_SECONDS = 1.0
"""The scheduler queries the object storage when a monitor joins. Maximum time to wait for the storage's figures."""
READ_SECONDS = 1.0
"""Pause between two questions about the state when connected with a client's key."""
WHICH_ADDRESS = "give the monitor address, which the scheduler prints at start (by default its port + 2)"


class MonitorConnection(Asking):
    """A reconnecting connection, on the running loop. With a client's key, polls what the key may see."""

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        access: Access = LOCAL_ACCESS,
        timeout_seconds: float = 5.0,
    ) -> None:
        """on_change: called after changes of the model or the connection. timeout_seconds: for `ready` and questions.

        Raises UsageError for a malformed address.
        """
        self._on_change = on_change
        self._answered = asyncio.Event()
        """Set by a refusal, or once the first state and the past have arrived."""
        self._first_at = math.inf
        self._storage_answered = asyncio.Event()
        """Set by the first state with newer figures of the object storage."""
        self._refused: Refused | None = None
        self._malformed = 0
        """Number of unreadable documents. Only the first is logged."""
        credential = access.credential
        is_client = credential is not None and credential.role == Role.CLIENT
        self._connector: Connector = SocketConnector(
            address,
            peer=new_peer_id(),
            hello=own_hello(Role.CLIENT if is_client else Role.MONITOR),
            on_events=self._on_events,
            keys=access.to(Server.SCHEDULER, address),
            compression=access.compression,
        )
        super().__init__(address, Questions(self._connector.send), timeout_seconds)
        self.has_reports = not is_client
        self._reading = asyncio.ensure_future(self._keep_reading()) if is_client else None

    @property
    def connected(self) -> bool:
        return self._connector.connected

    @property
    def last_error(self) -> str:
        """Why the scheduler is not connected. Empty while connected."""
        if self._refused is not None:
            hint = f"; {WHICH_ADDRESS}" if self._refused.reason is RefusalReason.ROLE else ""
            return f"{self.address} refused this monitor: {self._refused.text}{hint}"
        return "" if self.connected else f"no scheduler answers at {self.address} ({self._connector.last_error})"

    async def ready(self) -> None:
        """Wait for the first state and the past tasks. Raises UnreachableError on timeout, and RefusedError."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._answered.wait()
        except TimeoutError:
            error = self.last_error or f"{self.address} sends no state"
            raise UnreachableError(f"{error}; {WHICH_ADDRESS}") from None
        if self._refused is not None:
            raise RefusedError(self.last_error)

    async def storage_figures(self) -> None:
        """Wait up to STORAGE_SECONDS for object storage figures that are newer than the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORAGE_SECONDS):
                await self._storage_answered.wait()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._connector.close("the monitor ends")
        self._questions.close(UnreachableError("the monitor ends"))

    async def _keep_reading(self) -> None:
        while True:
            with contextlib.suppress(UnreachableError, RefusedError):
                await self.read()
                self._answered.set()
                self._storage_answered.set()
                self._on_change()
            await asyncio.sleep(READ_SECONDS)

    def _apply(self, document: MonitorStatus | MonitorEvents) -> None:
        try:
            self.model.apply(document)
        except ProtocolError as error:
            self._malformed += 1
            if self._malformed == 1:
                _log.warning("%s: dropped: %s", self.address, error)
        if isinstance(document, MonitorStatus):
            self._first_at = min(self._first_at, self.model.status.at)
            if self.model.status.storage.at > self._first_at:
                self._storage_answered.set()
        if self.model.has_past or (self._malformed and isinstance(document, MonitorEvents)):
            self._answered.set()

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Received(message=MonitorStatus() | MonitorEvents() as document):
                    self._apply(document)
                case Received(message=Reply() as answer):
                    self._questions.answered(answer)
                case Welcomed(welcome):
                    self.tables = welcome.tables
                case ConnectionRefused(refused):
                    self._refused = refused
                    self._answered.set()
        self._on_change()
