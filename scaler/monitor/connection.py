"""A monitor's connection: feeds a model with what the scheduler tells, and asks it about single tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol, TypeVar

from scaler.errors import RefusedError, UnreachableError, UsageError
from scaler.ids import new_peer_id
from scaler.monitor.model import Model
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.protocol.messages import (
    Explain,
    Explained,
    Message,
    MonitorEvents,
    MonitorStatus,
    ReadLog,
    RefusalReason,
    Refused,
    Role,
    TaskLog,
)

WHICH_ADDRESS = "give the monitor address that the scheduler shows when it starts, by default its own port + 2"
MAX_QUESTIONS = 1000
"""Questions that wait for their answers; beyond it, asking raises."""

A = TypeVar("A", Explained, TaskLog)


class ModelSource(Protocol):
    """What views need of a `MonitorConnection`."""

    @property
    def model(self) -> Model: ...
    @property
    def address(self) -> str: ...
    @property
    def connected(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    async def explain(self, task_id: str) -> str: ...
    async def log(self, task_id: str) -> TaskLog: ...


class MonitorConnection:
    """One scheduler's monitor port, from the running loop. Connects again by itself after a break.

    on_change is called after each turn that changed the model or the connection.
    """

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        timeout_seconds: float = 5.0,
        model: Model | None = None,
    ) -> None:
        """timeout_seconds: how long `ready` and questions wait. Raises UsageError for a malformed address."""
        self.address = address
        self.model = model or Model()
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._told = asyncio.Event()
        self._refused: Refused | None = None
        self._questions: dict[tuple[type[Message], bytes], asyncio.Future[Message]] = {}
        self._connector: Connector = SocketConnector(
            address, peer=new_peer_id(), hello=own_hello(Role.MONITOR), on_events=self._turn
        )

    @property
    def connected(self) -> bool:
        return self._connector.connected

    @property
    def trouble(self) -> str:
        """Why there is no connection; empty while there is one."""
        if self._refused is not None:
            hint = f"; {WHICH_ADDRESS}" if self._refused.reason is RefusalReason.ROLE else ""
            return f"{self.address} refused this monitor: {self._refused.text}{hint}"
        return "" if self.connected else f"no scheduler answers at {self.address} ({self._connector.last_error})"

    async def ready(self) -> None:
        """Wait for the first state. Raises UnreachableError after the timeout, and RefusedError."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._told.wait()
        except TimeoutError:
            if not self.connected:
                raise UnreachableError(f"{self.trouble}; {WHICH_ADDRESS}") from None
            raise UnreachableError(f"{self.address} says nothing about its state; {WHICH_ADDRESS}") from None
        if self._refused is not None:
            raise RefusedError(self.trouble)

    async def explain(self, task_id: str) -> str:
        """Return why a task waits or what became of it, in a sentence.

        Raises UsageError for what is no id, and UnreachableError when no answer comes in time.
        """
        identifier = task_id_of(task_id)
        return (await self._ask(Explain(identifier), Explained, identifier)).text

    async def log(self, task_id: str) -> TaskLog:
        """Return what a task has printed. Raises as `explain` does."""
        identifier = task_id_of(task_id)
        return await self._ask(ReadLog(identifier), TaskLog, identifier)

    def close(self) -> None:
        self._connector.close("the monitor ends")
        for question in self._questions.values():
            question.cancel()

    async def _ask(self, message: Explain | ReadLog, kind: type[A], identifier: bytes) -> A:
        key = (kind, identifier)
        answer = self._questions.get(key)
        if answer is None:
            if len(self._questions) >= MAX_QUESTIONS:
                raise UnreachableError(f"{self.address} has not answered {MAX_QUESTIONS} questions")
            answer = self._questions[key] = asyncio.get_running_loop().create_future()
            self._connector.send(message)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await asyncio.shield(answer)
        except TimeoutError:
            self._questions.pop(key, None)
            why = self.trouble or f"{self.address} did not answer within {self._timeout_seconds:g} s"
            raise UnreachableError(why) from None
        assert isinstance(found, kind)
        return found

    def _turn(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Received(message=MonitorStatus(text)):
                    self.model.apply_status(json.loads(text))
                    self._told.set()
                case Received(message=MonitorEvents(text)):
                    self.model.apply_events(json.loads(text))
                case Received(message=Explained() | TaskLog() as answer):
                    question = self._questions.pop((type(answer), answer.task), None)
                    if question is not None and not question.done():
                        question.set_result(answer)
                case ConnectionRefused(refused):
                    self._refused = refused
                    self._told.set()
                case Welcomed() | Resumed() | Broken() | Received():
                    pass
        self._on_change()


def task_id_of(text: str) -> bytes:
    """Return a task's id from its 32 hexadecimal digits. Raises UsageError."""
    try:
        identifier = bytes.fromhex(text.strip())
    except ValueError:
        identifier = b""
    if len(identifier) != 16:
        raise UsageError(f"{text!r} is no task id: give the 32 hexadecimal digits that future.task_id shows")
    return identifier
