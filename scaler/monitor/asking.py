"""Questions to a scheduler and their decoded answers, independent of the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from scaler.errors import LimitError, ProtocolError, RefusedError, UnreachableError
from scaler.ids import task_id_of
from scaler.monitor.model import Model
from scaler.monitor.rows import FOUND, LOGS, MALFORMED, decode, decode_list, objects
from scaler.net.questions import Questions
from scaler.plugins import FoundTable
from scaler.protocol.data_rows import ObjectRow
from scaler.protocol.history_rows import ClusterHistory
from scaler.protocol.messages import (
    ClusterRead,
    Explain,
    Explained,
    FindHistory,
    FindObjects,
    FindTasks,
    HistoryFound,
    Inquiry,
    MonitorEvents,
    MonitorStatus,
    ObjectsFound,
    Profiled,
    ReadCluster,
    ReadLog,
    ReadProfile,
    ReadTable,
    Reply,
    TableRead,
    TaskLog,
    TasksFound,
)
from scaler.protocol.monitor_rows import TaskRow
from scaler.stack_profile import read_document

HISTORY_SECONDS = 30.0
"""Timeout of a history question. The scheduler reads a month of history from files in the background."""
_AnswerT = TypeVar("_AnswerT", bound=Reply)


class Asking:
    """Asks a scheduler, on the running loop. model: state of the cluster."""

    def __init__(self, address: str, questions: Questions, timeout_seconds: float, tables: str = "") -> None:
        """tables: from the scheduler's Welcome."""
        self.address = address
        self.tables = tables
        self.model = Model()
        self._questions = questions
        self._timeout_seconds = timeout_seconds

    has_reports = False
    """True if the scheduler sends reports, which update the model."""

    @property
    def connected(self) -> bool:
        return True

    @property
    def last_error(self) -> str:
        """Why the scheduler is not connected. Empty while connected."""
        return ""

    async def read(self) -> None:
        """Update the model, as far as the client's key may see. Raises UnreachableError on timeout or a bad answer."""
        found = await self._ask(ReadCluster(), ClusterRead)
        try:
            self.model.apply(MonitorStatus(found.status))
            self.model.apply(MonitorEvents(found.events))
        except ProtocolError as error:
            raise UnreachableError(f"{self.address} did not send the cluster's state: {error}"[:200]) from None

    async def explain(self, task_id: str) -> str:
        """Explain why a task waits or how it ended. Raises UsageError for a malformed id, and UnreachableError."""
        return (await self._ask(Explain(task_id_of(task_id)), Explained)).text

    async def log(self, task_id: str) -> TaskLog:
        """Return the output of a task. Raises as `explain` does."""
        return await self._ask(ReadLog(task_id_of(task_id)), TaskLog)

    async def find(self, search: str) -> list[TaskRow]:
        """Find tasks by id prefix or part of a name. Raises UnreachableError on timeout or for an unreadable answer."""
        found = await self._ask(FindTasks(search), TasksFound)
        at = self.model.status.at
        with self._decoding("list of tasks"):
            return [decode(TaskRow, {"reported_at": at, **each}) for each in objects(json.loads(found.json))]

    async def objects(self, most: int) -> list[ObjectRow]:
        """Return the largest objects with all their holders. Raises as `find` does."""
        found = await self._ask(FindObjects([], most), ObjectsFound)
        with self._decoding("list of objects"):
            return [ObjectRow._make([*told, ", ".join(hosts)]) for *told, hosts in json.loads(found.json)]

    async def history(self, since: float, until: float) -> ClusterHistory:
        """Return the history between two times (unix seconds). Raises as `find` does."""
        seconds = max(HISTORY_SECONDS, self._timeout_seconds)
        found = await self._ask(FindHistory(since, until), HistoryFound, seconds)
        with self._decoding("history"):
            return decode(ClusterHistory, json.loads(found.json))

    async def rows(self, name: str, search: str = "", most: int | None = None) -> list[Any]:
        """Return the newest rows of an extension's table. most: maximum number of rows, by default the table's own
        limit.

        Raises as `find` does, and RefusedError if the scheduler does not have the table.
        """
        table = FOUND[name] if name in FOUND else LOGS[name]
        most = most or (table.most if isinstance(table, FoundTable) else table.keep)
        with self._decoding(f"rows of {name}"):
            if name not in self.tables.split():
                text = f"the scheduler at {self.address} has no table {name!r}: its extension is not switched on there"
                raise RefusedError(f"{text}, or the scheduler is older")
            found = await self._ask(ReadTable(name, search, most), TableRead)
            return [*decode_list(table.kind, json.loads(found.json))]

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        """Return the profile of a task or function, or the list of functions if both are empty.

        Raises as `find` does, and UsageError for a malformed id.
        """
        task = task_id_of(task_id) if task_id else b""
        found = await self._ask(ReadProfile(task, function), Profiled)
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

    async def _ask(self, question: Inquiry, kind: type[_AnswerT], seconds: float | None = None) -> _AnswerT:
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
