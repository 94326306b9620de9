"""Client part of durable sessions: task keys and tags, and futures for earlier programs' tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture
from scaler.client.loop import ClientLoop
from scaler.client.options import checked_label
from scaler.client.task_calls import Call, TaskCalls, hiding_frames_of_methods
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import Stage, TasksAdopted, TaskTemplate
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.ids import ID_BYTES, keyed_task_id
from scaler.monitor.messages import ListSessionTasks, SessionTasks
from scaler.protocol.messages import Spec
from scaler.serialization import Serializer


@hiding_frames_of_methods()
class SessionCalls(TaskCalls):
    def futures(self, name: str | None = None, *, key: str | None = None, tag: str | None = None) -> list[ScalerFuture]:
        """Return the futures of this client's durable session, including futures of earlier programs.

        Args:
            name: only tasks with this name.
            key: only the task with this key.
            tag: only tasks with this tag.

        Returns: Futures in submission order. This client's serializer loads their results. Inner nodes of this
            program's graphs are included once they have ended.

        Raises:
            UsageError: The client has no session.
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        session: NamedSession = self._durable("futures")
        return session.find(name, key, tag)


class NamedSession:
    def __init__(self, name: str, loop: ClientLoop, serializer: Serializer | None) -> None:
        self.name = name
        self._loop = loop
        self._futures = loop.futures
        self._futures.session.has_labels = True
        self._serializer = serializer
        self._known: WeakValueDictionary[bytes, TaskFuture] = WeakValueDictionary()
        """Keyed or requested futures of this program, by task."""

    def submit(
        self, template: TaskTemplate, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None, tag: str | None
    ) -> TaskFuture:
        """Return the future of the task with this key; submit the task unless it has succeeded or is unfinished."""
        key = "" if key is None else checked_label("key", key)
        tag = "" if tag is None else checked_label("tag", tag)
        futures = self._futures
        task = keyed_task_id(futures.ids.owner, key) if key else futures.ids.task()
        while (known := self._unfailed(task, key)) is None:
            future = futures.prepare(template, args, kwargs, task)
            future.label = key.encode(), tag.encode()
            with futures.condition:
                futures.wait_for_room()
                # Another thread may have submitted this key in between, or a future among the arguments may have ended.
                if self._unfailed(task, key) is None and (future.template is None or futures.add((future,))):
                    self._known[task] = future
                    return future
        return known

    def _unfailed(self, task: bytes, key: str) -> TaskFuture | None:
        known = self._known.get(task)
        if known is None:
            return None
        if known.label[0] != key.encode():
            first = known.label[0].decode()
            raise UsageError(f"the keys {first!r} and {key!r} have the same digest: change one of them")
        return None if known.cancelled() or known.failed_first is not None else known

    def submit_each(self, template: TaskTemplate, calls: Sequence[Call], keys: Sequence[str]) -> list[TaskFuture]:
        if len(keys) != len(calls) or len({*keys}) != len(keys):
            wrong = f"{len(keys)} for {counted(len(calls), 'item')}" if len(keys) != len(calls) else "not all different"
            raise UsageError(f"keys are {wrong}: each item needs its own key")
        return [self.submit(template, *call, key, None) for call, key in zip(calls, keys, strict=True)]

    def find(self, name: str | None, key: str | None, tag: str | None) -> list[ScalerFuture]:
        """Return the futures of the session's tasks, in submission order."""
        self._futures.step()
        rows = [
            row
            for row in session_tasks(self._loop, self._futures.ids.owner)
            if name in (None, row.function) and key in (None, row.key) and tag in (None, row.tag)
        ]
        found: list[ScalerFuture] = []
        adopted: list[TaskFuture] = []
        with self._futures.condition:
            pending = self._futures.session.pending
            for row in rows:
                future = self._known.get(row.task) or pending.get(row.task)
                if isinstance(future, TaskFuture) and not future.delivers:
                    continue  # an unfinished inner node of a graph: its value is not sent to this program
                if not isinstance(future, TaskFuture):
                    template = TaskTemplate(Spec(bytes(ID_BYTES), name=row.function), (), self._serializer)
                    future = self._known[row.task] = TaskFuture(self._futures, row.task, template, b"")
                    future.stage, future.label = Stage.SENT, (row.key.encode(), row.tag.encode())
                    adopted.append(future)
                found.append(future)
            if adopted:
                self._futures.put(TasksAdopted([*adopted]))
        return found


class SessionTask(NamedTuple):
    """A task of a durable session, as reported by the scheduler. outcome: UNFINISHED, or an Outcome."""

    task: bytes
    outcome: int
    function: str
    key: str
    tag: str


def session_tasks(loop: ClientLoop, session: bytes) -> Iterator[SessionTask]:
    first, total = 0, 1
    while first < total:
        page = loop.ask(ListSessionTasks(session, first), SessionTasks)
        for task, outcome, *texts in zip(page.ids, page.outcomes, page.names, page.keys, page.tags, strict=True):
            yield SessionTask(task, outcome, *(text.decode("utf-8", "replace") for text in texts))
        if not page.ids:
            return
        first, total = first + len(page.ids), page.total
