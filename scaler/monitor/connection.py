"""A monitor's connection: feeds a model with what the scheduler sends, and asks it about single tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

from scaler.errors import LimitError, ProtocolError, RefusedError, UnreachableError
from scaler.ids import new_peer_id, task_id_of
from scaler.monitor.model import Model
from scaler.monitor.rows import MALFORMED, decode, objects
from scaler.net.access import LOCAL_ACCESS, Access
from scaler.net.connection import ConnectionRefused, Connector, ConnectorEvent, Received
from scaler.net.connector import SocketConnector
from scaler.net.questions import Question, Questions
from scaler.net.versions import own_hello
from scaler.protocol.data_rows import ObjectRow
from scaler.protocol.history_rows import ClusterHistory
from scaler.protocol.log_rows import LogRow
from scaler.protocol.messages import (
    Explain,
    Explained,
    FindHistory,
    FindObjects,
    FindTasks,
    FindWorkerLogs,
    HistoryFound,
    MonitorEvents,
    MonitorStatus,
    ObjectsFound,
    Profiled,
    ReadLog,
    ReadProfile,
    RefusalReason,
    Refused,
    Role,
    Server,
    TaskLog,
    TasksFound,
    WorkerLogsFound,
)
from scaler.protocol.monitor_rows import TaskRow
from scaler.stack_profile import read_document

_log = logging.getLogger(__name__)
_AnswerT = TypeVar("_AnswerT", Explained, TaskLog, TasksFound, ObjectsFound, HistoryFound, WorkerLogsFound, Profiled)
HISTORY_SECONDS = 30.0
"""For an answer about a month, which the scheduler reads from files beside its work."""
STORAGE_SECONDS = 1.0
"""The scheduler asks the object storage when a monitor comes; one that does not answer is waited for this long."""
WHICH_ADDRESS = "give the monitor address that the scheduler shows when it starts, by default its own port + 2"


class MonitorConnection:
    """A connection to a scheduler's monitor address, on the running loop. It reconnects after a break."""

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        access: Access = LOCAL_ACCESS,
        timeout_seconds: float = 5.0,
    ) -> None:
        """on_change: called after changes of the model or the connection. timeout_seconds: of `ready` and questions.

        Raises UsageError for a malformed address.
        """
        self.address = address
        self.model = Model()
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._answered = asyncio.Event()
        """Set by the first state with the past, or a refusal."""
        self._first_at = math.inf
        """The time of the first state."""
        self._storage_answered = asyncio.Event()
        """Set by the first state with figures of the object storage that are newer."""
        self._refused: Refused | None = None
        self._malformed = 0
        """Documents that could not be read; the first is logged."""
        self._connector: Connector = SocketConnector(
            address,
            peer=new_peer_id(),
            hello=own_hello(Role.MONITOR),
            on_events=self._on_events,
            keys=access.to(Server.SCHEDULER, address),
            compression=access.compression,
        )
        self._questions = Questions(self._connector.send)

    @property
    def connected(self) -> bool:
        return self._connector.connected

    @property
    def last_error(self) -> str:
        """Why there is no connection; empty while there is one."""
        if self._refused is not None:
            hint = f"; {WHICH_ADDRESS}" if self._refused.reason is RefusalReason.ROLE else ""
            return f"{self.address} refused this monitor: {self._refused.text}{hint}"
        return "" if self.connected else f"no scheduler answers at {self.address} ({self._connector.last_error})"

    async def ready(self) -> None:
        """Wait for the first state and the past tasks. Raises UnreachableError after the timeout, and RefusedError."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._answered.wait()
        except TimeoutError:
            error = self.last_error or f"{self.address} sends no state"
            raise UnreachableError(f"{error}; {WHICH_ADDRESS}") from None
        if self._refused is not None:
            raise RefusedError(self.last_error)

    async def storage_figures(self) -> None:
        """Wait for figures of the object storage that it gave after this monitor came, or for STORAGE_SECONDS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORAGE_SECONDS):
                await self._storage_answered.wait()

    async def explain(self, task_id: str) -> str:
        """Return why a task waits, or how it ended, in a sentence.

        Raises UsageError for a malformed id, and UnreachableError when no answer comes in time.
        """
        return (await self._ask(Explain(task_id_of(task_id)), Explained)).text

    async def log(self, task_id: str) -> TaskLog:
        """Return what a task has printed. Raises as `explain` does."""
        return await self._ask(ReadLog(task_id_of(task_id)), TaskLog)

    async def find(self, search: str) -> list[TaskRow]:
        """Return live tasks, and the last that ended, by the beginning of an id or a part of a name.

        Raises UnreachableError when no answer comes in time, or none that can be read.
        """
        found = await self._ask(FindTasks(search), TasksFound)
        at = self.model.status.at
        try:
            return [decode(TaskRow, {"reported_at": at, **each}) for each in objects(json.loads(found.json))]
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no list of tasks: {error!r}"[:200]) from None

    async def objects(self, most: int) -> list[ObjectRow]:
        """Return the largest objects, with all their holders. Raises as `find` does."""
        found = await self._ask(FindObjects([], most), ObjectsFound)
        try:
            return [ObjectRow._make([*told, ", ".join(hosts)]) for *told, hosts in json.loads(found.json)]
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no list of objects: {error!r}"[:200]) from None

    async def history(self, since: float, until: float) -> ClusterHistory:
        """Return what is known of the time between these, in unix seconds. Raises as `find` does."""
        seconds = max(HISTORY_SECONDS, self._timeout_seconds)
        found = await self._ask(FindHistory(since, until), HistoryFound, seconds)
        try:
            return decode(ClusterHistory, json.loads(found.json))
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no history: {error!r}"[:200]) from None

    async def worker_logs(self, worker: str, most: int) -> list[LogRow]:
        """Return the newest records of workers' own logs, of one by name or id or of all. Raises as `find` does."""
        found = await self._ask(FindWorkerLogs(worker, most), WorkerLogsFound)
        try:
            return [LogRow._make(each) for each in json.loads(found.json)]
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no log of workers: {error!r}"[:200]) from None

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        """Return the document about the profile of a task or function; without both, the list of functions.

        Raises as `find` does, and UsageError for a malformed id.
        """
        task = task_id_of(task_id) if task_id else b""
        found = await self._ask(ReadProfile(task, function), Profiled)
        try:
            document: dict[str, Any] = json.loads(found.json)
            if document["of"]:
                read_document(document)
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no profile: {error!r}"[:200]) from None
        return document

    def close(self) -> None:
        self._connector.close("the monitor ends")
        self._questions.close(UnreachableError("the monitor ends"))

    async def _ask(self, question: Question, kind: type[_AnswerT], seconds: float | None = None) -> _AnswerT:
        """Return the answer. seconds: how long to wait for it, unless as for all questions."""
        seconds = self._timeout_seconds if seconds is None else seconds
        try:
            with self._questions.asking(question) as future:
                async with asyncio.timeout(seconds):
                    # Other questions may share the future: a timeout must not cancel it.
                    answer = await asyncio.shield(asyncio.wrap_future(future))
                    assert isinstance(answer, kind)
                    return answer
        except TimeoutError:
            error = self.last_error or f"{self.address} did not answer within {seconds:g} s"
            raise UnreachableError(error) from None
        except LimitError as error:
            raise UnreachableError(str(error)) from None

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
                case Received(message=Explained() | TaskLog() | TasksFound() | ObjectsFound() | Profiled() as answer):
                    self._questions.answered(answer)
                case Received(message=HistoryFound() | WorkerLogsFound() as answer):
                    self._questions.answered(answer)
                case ConnectionRefused(refused):
                    self._refused = refused
                    self._answered.set()
        self._on_change()
