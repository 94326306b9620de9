"""What the client of a durable session still has to tell the scheduler about its tasks. Pure.

Laws: the keys and tags of tasks are sent before the tasks themselves; after a restart of the scheduler they are sent
again, as are the questions for results of tasks that this client cannot send again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from scaler.client.tasks import ClientTask
from scaler.protocol.messages import LabelTasks, Message, Redeliver

MAX_ROWS = 4096
"""Tasks of one message."""


class TasksAdopted(NamedTuple):
    """Futures were made of tasks that the scheduler has and this client cannot send again."""

    tasks: list[ClientTask]


class TasksLabelled(NamedTuple):
    """Tasks that are added next have keys and tags, in columns."""

    ids: list[bytes]
    keys: list[bytes]
    tags: list[bytes]


class Labels:
    """Keys and tags of the tasks of a durable session, and adopted tasks."""

    def __init__(self) -> None:
        self._labels: dict[bytes, tuple[bytes, bytes]] = {}
        self._unsent: list[bytes] = []
        self._run_failed = True
        """The user submits the tasks; False: they are sent again to a scheduler that has forgotten them."""
        self.has_unsent = False
        self._undelivered: list[bytes] = []
        """Adopted tasks whose results the scheduler was not asked for yet."""

    def take(self, found: TasksLabelled | TasksAdopted) -> dict[bytes, ClientTask]:
        """Take in labels, or adopted tasks, which are returned by their ids: they are unfinished from now on."""
        self.has_unsent = True
        if isinstance(found, TasksLabelled):
            self._labels.update(zip(found.ids, zip(found.keys, found.tags, strict=True), strict=True))
            self._unsent += found.ids
            return {}
        adopted = {task.task_id: task for task in found.tasks}
        self._undelivered += adopted
        return adopted

    def restart(self, unfinished: Collection[bytes], adopted: list[bytes]) -> None:
        """Arrange that everything about unfinished tasks is sent again."""
        self._keep(unfinished)
        self._unsent, self._run_failed = list(self._labels), False
        self._undelivered = adopted
        self.has_unsent = bool(self._unsent or adopted)

    def messages(self, unfinished: Collection[bytes]) -> Iterator[Message]:
        """Yield what is to be sent before the tasks."""
        for start in range(0, len(self._unsent), MAX_ROWS):
            ids = self._unsent[start : start + MAX_ROWS]
            keys, tags = ([self._labels[task][column] for task in ids] for column in (0, 1))
            yield LabelTasks(ids, keys, tags, self._run_failed)
        if self._unsent:
            self._unsent, self._run_failed = [], True
            if len(self._labels) > MAX_ROWS + 2 * len(unfinished):
                self._keep(unfinished)
        for start in range(0, len(self._undelivered), MAX_ROWS):
            yield Redeliver(self._undelivered[start : start + MAX_ROWS])
        self._undelivered, self.has_unsent = [], False

    def _keep(self, unfinished: Collection[bytes]) -> None:
        self._labels = {task: label for task, label in self._labels.items() if task in unfinished}
