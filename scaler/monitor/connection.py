"""Questions to a scheduler over any connection, and a monitor's own connection, which also feeds a model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from scaler.errors import LimitError, ProtocolError, RefusedError, UnreachableError
from scaler.ids import task_id_of
from scaler.monitor import messages as q
from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.data_rows import ObjectRow
from scaler.monitor.history_rows import ClusterHistory
from scaler.monitor.model import Model
from scaler.monitor.rows import FOUND, MALFORMED, NOTES, decode, decode_list
from scaler.net.access import LOCAL_ACCESS, Access
from scaler.net.connection import ConnectionRefused, Connector, ConnectorEvent, Received, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.questions import Questions
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from scaler.stack_profile import read_document

HISTORY_SECONDS = 30.0
"""Timeout of a history question. The scheduler reads a month of history from files in the background."""
_AnswerT = TypeVar("_AnswerT", bound=m.Reply)


class Asking:
    """Asks a scheduler, on the running loop. model: state of the cluster."""

    def __init__(self, address: str, questions: Questions, timeout_seconds: float, tables: str = "") -> None:
        """tables: from the scheduler's Welcome."""
        self.address = address
        self.tables = tables
        self.model = Model()
        self._questions = questions
        self._timeout_seconds = timeout_seconds

    @property
    def connected(self) -> bool:
        return True

    @property
    def last_error(self) -> str:
        """Why the scheduler is not connected. Empty while connected."""
        return ""

    async def read(self) -> None:
        """Update the model with the state that the client's key may see. Raises UnreachableError on timeout or a bad
        answer."""
        found = await self._ask(q.ReadCluster(), q.ClusterRead)
        try:
            self.model.apply(q.MonitorStatus(found.status))
            self.model.apply(q.MonitorEvents(found.events))
        except ProtocolError as error:
            raise UnreachableError(f"{self.address} did not send the cluster's state: {error}"[:200]) from None

    async def explain(self, task_id: str) -> str:
        """Explain why a task waits or how it ended. Raises UsageError for a malformed id, and UnreachableError."""
        return (await self._ask(q.Explain(task_id_of(task_id)), q.Explained)).text

    async def log(self, task_id: str) -> q.TaskLog:
        """Return the output of a task. Raises as `explain` does."""
        return await self._ask(q.ReadLog(task_id_of(task_id)), q.TaskLog)

    async def find(self, search: str) -> list[TaskRow]:
        """Find tasks by id prefix or part of a name. Raises UnreachableError on timeout or for an unreadable answer."""
        found = await self._ask(q.FindTasks(search), q.TasksFound)
        with self._decoding("list of tasks"):
            return [*decode_list(TaskRow, json.loads(found.json))]

    async def objects(self, most: int) -> list[ObjectRow]:
        """Return the largest objects with all their holders. Raises as `find` does."""
        found = await self._ask(q.FindObjects([], most), q.ObjectsFound)
        with self._decoding("list of objects"):
            return [ObjectRow._make([*told, ", ".join(hosts)]) for *told, hosts in json.loads(found.json)]

    async def history(self, since: float, until: float) -> ClusterHistory:
        """Return the history between two times (unix seconds). Raises as `find` does."""
        seconds = max(HISTORY_SECONDS, self._timeout_seconds)
        found = await self._ask(q.FindHistory(since, until), q.HistoryFound, seconds)
        with self._decoding("history"):
            return decode(ClusterHistory, json.loads(found.json))

    async def rows(self, name: str, search: str = "", most: int | None = None) -> list[Any]:
        """Return the newest rows of a table in `FOUND`. most: maximum number of rows, by default the table's own
        limit. Raises as `find` does, and RefusedError if the scheduler does not have the table."""
        table = FOUND[name]
        with self._decoding(f"rows of {name}"):
            if table not in NOTES and name not in self.tables.split():
                text = f"the scheduler at {self.address} has no table {name!r}: its extension is not enabled there"
                raise RefusedError(f"{text}, or the scheduler is older")
            found = await self._ask(m.ReadTable(name, search, most or table.most), m.TableRead)
            return [*decode_list(table.kind, json.loads(found.json))]

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        """Return the profile of a task or function, or the list of functions if both are empty. Raises as `find` does,
        and UsageError for a malformed id."""
        task = task_id_of(task_id) if task_id else b""
        found = await self._ask(q.ReadProfile(task, function), q.Profiled)
        with self._decoding("profile"):
            document: dict[str, Any] = json.loads(found.json)
            if document["of"]:
                read_document(document)
            return document

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except MALFORMED as error:
            raise UnreachableError(f"{self.address} sent no {what}: {error!r}"[:200]) from None

    async def _ask(self, question: m.Inquiry, kind: type[_AnswerT], seconds: float | None = None) -> _AnswerT:
        seconds = self._timeout_seconds if seconds is None else seconds
        try:
            with self._questions.asking(question) as future:
                async with asyncio.timeout(seconds):
                    answer = await asyncio.wrap_future(future)
                    assert isinstance(answer, kind)
                    return answer
        except TimeoutError:
            error = self.last_error or f"{self.address} did not answer within {seconds:g} s"
            raise UnreachableError(error) from None
        except LimitError as error:
            raise UnreachableError(str(error)) from None


_log = logging.getLogger(__name__)
READ_SECONDS = 1.0
"""Pause between two queries for the state when connected with a client's key."""
WHICH_ADDRESS = "use the monitor address, which the scheduler prints at startup (by default its port + 2)"


class MonitorConnection(Asking):
    """A reconnecting connection, on the running loop. With a client's key, polls the state that the key may see."""

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        access: Access = LOCAL_ACCESS,
        timeout_seconds: float = 5.0,
    ) -> None:
        """on_change: called after changes to the model or the connection. timeout_seconds: for `ready` and questions.
        Raises UsageError for a malformed address."""
        self._on_change = on_change
        self._answered = asyncio.Event()
        """Set by a refusal, or once the first state and the past have arrived."""
        self._refused: m.Refused | None = None
        self._malformed = 0
        """Number of unreadable documents. Only the first is logged."""
        credential = access.credential
        is_client = credential is not None and credential.role == m.Role.CLIENT
        hello = own_hello(m.Role.CLIENT if is_client else m.Role.MONITOR)
        self._connector: Connector = SocketConnector(address, m.Server.SCHEDULER, access, hello, self._on_events)
        super().__init__(address, Questions(self._connector.send), timeout_seconds)
        self._reading = asyncio.ensure_future(self._keep_reading()) if is_client else None

    @property
    def connected(self) -> bool:
        return self._connector.connected

    @property
    def last_error(self) -> str:
        """Why the scheduler is not connected. Empty while connected."""
        if self._refused is not None:
            hint = f"; {WHICH_ADDRESS}" if self._refused.reason is m.RefusalReason.ROLE else ""
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
                self._on_change()
            await asyncio.sleep(READ_SECONDS)

    def _apply(self, document: q.MonitorStatus | q.MonitorEvents) -> None:
        try:
            self.model.apply(document)
        except ProtocolError as error:
            self._malformed += 1
            if self._malformed == 1:
                _log.warning("%s: dropped: %s", self.address, error)
        if self.model.has_past or (self._malformed and isinstance(document, q.MonitorEvents)):
            self._answered.set()

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Received(message=q.MonitorStatus() | q.MonitorEvents() as document):
                    self._apply(document)
                case Received(message=m.Reply() as answer):
                    self._questions.answered(answer)
                case Welcomed(welcome):
                    self.tables = welcome.tables
                    self._questions.ask_again()
                case ConnectionRefused(refused):
                    self._refused = refused
                    self._answered.set()
        self._on_change()
