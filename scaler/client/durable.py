"""Durable sessions on the side of the client: keys and tags of tasks, and futures of tasks of earlier programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from scaler.client.cached import Call
from scaler.client.future import ScalerFuture
from scaler.client.labels import TasksAdopted, TasksLabelled
from scaler.client.loop import ClientLoop
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import Stage, TaskTemplate
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.ids import ID_BYTES, keyed_task_id
from scaler.protocol.messages import ListSessionTasks, SessionTasks, Spec
from scaler.serialization import Serializer

MAX_LABEL_CHARACTERS = 200
"""Of the name of a session, and of the key and the tag of a task."""


def checked_label(what: str, text: object) -> str:
    """Return a name, key or tag. Raises UsageError that says what to change."""
    if not isinstance(text, str) or not text or len(text) > MAX_LABEL_CHARACTERS or not text.isprintable():
        limits = f"text of 1 to {MAX_LABEL_CHARACTERS} printable characters"
        raise UsageError(f"{what} is {text!r}, and must be {limits}")
    return text


class NamedSession:
    """The tasks of a durable session, of this program and of others."""

    def __init__(self, name: str, loop: ClientLoop, serializer: Serializer | None) -> None:
        self.name = name
        self._loop = loop
        self._futures = loop.futures
        self._serializer = serializer
        self._known: WeakValueDictionary[bytes, TaskFuture] = WeakValueDictionary()
        """Futures of this program that have a key or were asked for, by task."""

    def submit(
        self,
        template: TaskTemplate,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: str | None,
        tag: str | None,
    ) -> TaskFuture:
        """Return the future of the task with this key, which is submitted unless it has succeeded or is unfinished."""
        key = "" if key is None else checked_label("key", key)
        tag = "" if tag is None else checked_label("tag", tag)
        owner = self._futures.ids.owner
        task = keyed_task_id(owner, key) if key else self._futures.ids.task()
        known = self._known.get(task)
        if known is not None and not _has_failed(known):
            return known
        if key or tag:
            self._futures.put(TasksLabelled([task], [key.encode()], [tag.encode()]))
        future = self._futures.submit(template, args, kwargs, task)
        if key:
            self._known[task] = future
        return future

    def submit_each(self, template: TaskTemplate, calls: Sequence[Call], keys: Sequence[str]) -> list[TaskFuture]:
        """Return the futures of one task for each call, with the key beside it. Raises UsageError."""
        if len(keys) != len(calls) or len({*keys}) != len(keys):
            wrong = f"{len(keys)} for {counted(len(calls), 'item')}" if len(keys) != len(calls) else "not all different"
            raise UsageError(f"keys are {wrong}: give each item a key of its own")
        return [self.submit(template, *call, key, None) for call, key in zip(calls, keys, strict=True)]

    def find(self, name: str | None, key: str | None, tag: str | None) -> list[ScalerFuture]:
        """Return the futures of the session's tasks, in the order of their submission."""
        self._futures.step()
        rows = [
            (task, function)
            for task, _, function, its_key, its_tag in session_tasks(self._loop, self._futures.ids.owner)
            if name in (None, function) and key in (None, its_key) and tag in (None, its_tag)
        ]
        found: list[ScalerFuture] = []
        adopted: list[TaskFuture] = []
        with self._futures.condition:
            pending = self._futures.session.pending
            for task, function in rows:
                future = self._known.get(task) or pending.get(task)
                if not isinstance(future, TaskFuture):
                    template = TaskTemplate(Spec(bytes(ID_BYTES), name=function), (), self._serializer)
                    future = self._known[task] = TaskFuture(self._futures, task, template, b"")
                    future.stage = Stage.SENT
                    adopted.append(future)
                found.append(future)
        if adopted:
            self._futures.put(TasksAdopted([*adopted]))
        return found


def session_tasks(loop: ClientLoop, session: bytes) -> Iterator[tuple[bytes, int, str, str, str]]:
    """Yield id, outcome, function's name, key and tag of all tasks of a session, as the scheduler has them."""
    first, total = 0, 1
    while first < total:
        page = loop.ask(ListSessionTasks(session, first), SessionTasks)
        for task, outcome, *texts in zip(page.ids, page.outcomes, page.names, page.keys, page.tags, strict=True):
            name, key, tag = (text.decode("utf-8", "replace") for text in texts)
            yield task, outcome, name, key, tag
        if not page.ids:
            return
        first, total = first + len(page.ids), page.total


def _has_failed(future: TaskFuture) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
