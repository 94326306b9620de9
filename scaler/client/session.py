"""What a client knows of its tasks: pure, no thread, no clock, no socket.

Tasks come in through `add`, messages go out through `drain`, and the loop takes them off `pending` at their end. Laws:
a task is in `pending` from `add` until exactly one of: it ended, it was cancelled, the client gave up. A task in
`pending` can be sent again to a scheduler that has forgotten everything: it keeps its kind, payload and references.

*Acknowledged results.* The scheduler retains the result of a task while this client may still name that task in
`references`. A task names futures that were unresolved when it was added. `resolved` is the number of the last Finished
whose futures are resolved; tasks added after that embed their values. So once everything has been sent that was added
when `resolved` was n, the session may acknowledge n. Tasks that wait for an upload count as added, and delay it.

Threads: everything is called under the client's lock; only `releases` is appended to from anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakValueDictionary

from scaler.client.tasks import Definition, Kind, Task, Upload
from scaler.errors import ScalerError
from scaler.ids import ID_BYTES, is_task
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    AcknowledgeResults,
    Cancel,
    Clear,
    Message,
    Pin,
    Release,
    Submit,
    TaskGroup,
)
from scaler.serialization import Serializer

MAX_IDS_PER_MESSAGE = 32 * 1024
"""Control messages have at most 1 MiB."""
_ROW_BYTES = 64
"""Rough size of a task's own columns, added to its payload when batches are split and limits are counted."""

_Gate = tuple[int, set[Upload]]
"""Of a task that cannot be sent yet: `resolved` when it was added, and the uploads that it waits for."""
StandIn = Callable[[Task, Serializer | None], Upload | None]


class Session:
    """The tasks of one client. See the module for the laws."""

    __slots__ = (
        "_cancels",
        "_checkpoint",
        "_clearing",
        "_dropped",
        "_gated",
        "_said",
        "_seen",
        "_sent",
        "_sent_bytes",
        "_unheld",
        "_unsent",
        "added_bytes",
        "cancelling",
        "definitions",
        "objects",
        "orphans",
        "pending",
        "refused",
        "releases",
        "resolved",
    )

    def __init__(self) -> None:
        self.pending: dict[bytes, Task] = {}
        self.cancelling: set[bytes] = set()
        """Cancelled here, and the scheduler has not said so yet: these still count as pending there."""
        self.definitions: WeakValueDictionary[bytes, Definition] = WeakValueDictionary()
        self.objects: dict[bytes, Upload] = {}
        """Objects that the user sent, until `clear`."""
        self.orphans: list[Task] = []
        """Tasks that `drain` took off, because they need one that was cancelled before it was sent."""
        self.refused: list[Upload] = []
        """Uploads that had failed before a task that was added needed them: `drop_refused` takes those off."""
        self.releases: deque[bytes] = deque()
        self.resolved = 0
        self.added_bytes = 0
        self._sent_bytes = 0
        self._unsent: deque[Task] = deque()
        self._sent = 0
        self._gated: dict[Task, _Gate] = {}
        self._dropped: set[bytes] = set()
        """Tasks that were cancelled before they were sent: those that name them cannot be sent either."""
        self._cancels: deque[bytes] = deque()
        self._unheld: list[bytes] = []
        self._clearing: list[Message] = []
        """What ends with a Clear that was not said yet: it goes out ahead of all that was added after it."""
        self._checkpoint: tuple[int, int] | None = None
        self._seen = 0
        self._said = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the tasks that wait to be sent."""
        return self.added_bytes - self._sent_bytes

    @property
    def unsent(self) -> int:
        """Number of tasks that can be sent and were not yet."""
        return len(self._unsent)

    # -- tasks come and go

    def add(self, task: Task) -> None:
        """Take in a task. Its references must be unresolved futures or objects at this moment.

        One whose upload has failed is taken in too, and is in `refused`: tasks that are added after it may name it.
        """
        self.pending[task.task_id] = task
        kind = task.kind
        assert kind is not None, "a task that has ended is not added"
        if (task.uploads or kind.uploads or (self._gated and task.references)) and self._gate(task, kind):
            return
        self.added_bytes += len(task.payload) + _ROW_BYTES
        self._unsent.append(task)

    def _gate(self, task: Task, kind: Kind) -> bool:
        missing = {upload for upload in (*task.uploads, *kind.uploads) if not upload.ready}
        for reference in task.references:  # it cannot be sent before what it names
            if isinstance(reference, Task) and reference in self._gated:
                missing |= self._gated[reference][1]
        if missing:
            self._gated[task] = (self.resolved, missing)
            for upload in missing:
                upload.waiting.append(task)
                if upload.error is not None:
                    self.refused.append(upload)
        return bool(missing)

    def uploaded(self, upload: Upload) -> None:
        """An upload is in the storage: send what waited for it alone."""
        upload.ready = True
        for task in upload.waiting:
            gate = self._gated.get(task)
            if gate is not None:
                gate[1].discard(upload)
                if not gate[1]:
                    self.added_bytes += len(task.payload) + _ROW_BYTES
                    self._unsent.append(task)
        upload.waiting.clear()

    def drop_upload(self, upload: Upload, error: ScalerError) -> list[Task]:
        """An upload failed: return the tasks that needed it; they are no longer pending."""
        upload.error = error
        dropped = []
        for task in upload.waiting:
            if task.kind is not None:
                self._gated.pop(task, None)
                del self.pending[task.task_id]
                task.forget()
                dropped.append(task)
        upload.waiting.clear()
        return dropped

    def drop_refused(self) -> list[tuple[list[Task], ScalerError]]:
        """Take off what was added although its upload had failed: return those tasks, with their error."""
        refused, self.refused = self.refused, []
        return [
            (self.drop_upload(upload, upload.error), upload.error) for upload in refused if upload.error is not None
        ]

    def cancel(self, task: Task) -> bool:
        """Take a task off. Returns False when it has ended before."""
        if task.task_id not in self.pending:
            return False
        if task.is_sent:
            self.cancelling.add(task.task_id)
            self._cancels.append(task.task_id)
        else:
            self._dropped.add(task.task_id)
        task.forget()
        del self.pending[task.task_id]  # last of what matters: a Ctrl-C before it leaves a task that can be cancelled
        self._gated.pop(task, None)
        return True

    def why_unsent(self, task: Task) -> str:
        """Return why the scheduler does not know of a task yet; empty when it does, or did."""
        if task.is_sent or task.task_id not in self.pending:
            return ""
        if self.is_held(task):
            missing = sum(not upload.ready for upload in self._gated[task][1])
            many = "an object that it needs is" if missing == 1 else f"{missing:,} objects that it needs are"
            return f"it waits in its client until {many} in the object storage"
        return f"it is in its client, which has yet to send it; {len(self._unsent) - 1:,} other tasks wait there, too"

    def is_held(self, task: Task) -> bool:
        """Tell whether a task cannot be sent yet, because it needs what is not in the storage yet."""
        gate = self._gated.get(task)
        return gate is not None and not all(upload.ready for upload in gate[1])

    def hold(self, upload: Upload) -> None:
        """Keep an object that the user sent until `clear`, whether tasks use it or not."""
        self.objects[upload.id] = upload
        self._unheld.append(upload.id)

    def clear(self) -> list[Task]:
        """Take off all tasks and let go of all objects; what is added from now on is not meant."""
        # An object is held before it is cleared: the scheduler lets go only of what it knows to be held.
        self._clearing += [*map(Pin, _slices(self._unheld)), Clear()]
        self._unheld = []
        self.objects.clear()
        return self.take_all()

    def resolve(self, number: int, ended: Iterable[bytes]) -> None:
        """The futures of Finished `number` are resolved; these ids are what it said of tasks unknown here."""
        self.resolved = number
        self.cancelling.difference_update(ended)

    def take_all(self, cancel: bool = False) -> list[Task]:
        """Take off all tasks, as when the client gives up. cancel: say so to the scheduler, one by one."""
        tasks = list(self.pending.values())
        self.pending.clear()
        sent = [task.task_id for task in tasks if task.is_sent]
        self.cancelling.update(sent)
        if cancel:
            self._cancels.extend(sent)
        self._gated.clear()
        for task in tasks:
            task.forget()
        return tasks

    # -- messages go out

    def drain(self, budget_bytes: int) -> list[Message]:
        """Return what is to be said now: tasks up to about `budget_bytes`, then cancels and releases."""
        messages, self._clearing = self._clearing, []
        if self._unheld:
            messages.extend(map(Pin, _slices(self._unheld)))
            self._unheld = []
        if self._unsent:
            if self._checkpoint is None:
                resolved = self.resolved
                self._checkpoint = (resolved, self._sent + len(self._unsent))
            self._drain_tasks(messages, budget_bytes)
        elif self._seen < self.resolved:
            self._seen = self.resolved
        if self._checkpoint is not None and self._sent >= self._checkpoint[1]:
            self._seen = self._checkpoint[0]
            self._checkpoint = None
        if self._cancels:
            messages.extend(map(Cancel, _slices(_take(self._cancels))))
        if self.releases:
            definitions = self.definitions
            ids = [identifier for identifier in _take(self.releases) if identifier not in definitions]
            messages.extend(map(Release, _slices(ids)))
        return messages

    def say_seen(self) -> AcknowledgeResults | None:
        """Return what was not said in a Submit yet, for a client that submits nothing."""
        seen = self._sayable()
        if seen <= self._said:
            return None
        self._said = seen
        return AcknowledgeResults(seen)

    def _sayable(self) -> int:
        return min(self._seen, *(resolved for resolved, _ in self._gated.values())) if self._gated else self._seen

    def _drain_tasks(self, messages: list[Message], budget_bytes: int) -> None:
        unsent = self._unsent
        gated = self._gated
        while unsent and budget_bytes > 0:
            size = 0
            seen = self._sayable()
            definitions: list[tuple[bytes, bytes]] = []
            groups: dict[Kind, TaskGroup] = {}
            while unsent and size < SPLIT_BATCH_BYTES:
                task = unsent.popleft()
                self._sent += 1
                kind = task.kind
                if kind is None:  # cancelled before it was sent
                    continue
                if self._dropped and self._is_orphan(task):
                    continue
                task.is_sent = True
                group = groups.get(kind)
                if group is None:
                    group = groups[kind] = TaskGroup(kind.spec, [], [], [])
                    for definition in kind.definitions:
                        if not definition.said:
                            definition.said = True
                            definitions.append((definition.id, definition.payload))
                            size += len(definition.payload)
                payload = task.payload
                group.ids.append(task.task_id)
                group.payloads.append(payload)
                size += len(payload) + _ROW_BYTES
                if task.references or group.references:
                    group.references.extend([()] * (len(group.ids) - 1 - len(group.references)))
                    named = tuple([reference.reference_id for reference in task.references])
                    group.references.append(named)
                    size += ID_BYTES * len(named)
                if gated:
                    gated.pop(task, None)
            for group in groups.values():
                if group.references:
                    group.references.extend([()] * (len(group.ids) - len(group.references)))
            self._said = max(self._said, seen)
            if groups:
                messages.append(Submit(definitions, list(groups.values()), seen))
            self._sent_bytes += size
            budget_bytes -= size
        if not unsent:
            self._sent_bytes = self.added_bytes
            if not gated:
                self._dropped.clear()

    def _is_orphan(self, task: Task) -> bool:
        """Take a task off if it names one that was never sent and never will be."""
        dropped = self._dropped
        if not any(isinstance(reference, Task) and reference.task_id in dropped for reference in task.references):
            return False
        self.pending.pop(task.task_id, None)
        self._gated.pop(task, None)
        dropped.add(task.task_id)
        task.forget()
        self.orphans.append(task)
        return True

    def restart(self, stand_in: StandIn) -> list[Task]:
        """The scheduler has forgotten everything: arrange that all is said again, oldest first.

        stand_in(task, serializer) returns an upload of the value of a task that has ended, or None when it has none.
        Returns the tasks that are no longer pending: they were sent, may have started, and may do so only once.
        """
        in_doubt = [task for task in self.pending.values() if task.is_sent and _may_start_once(task)]
        for task in in_doubt:
            del self.pending[task.task_id]
            self._dropped.add(task.task_id)
            task.forget()
        self._unsent.clear()
        self._cancels.clear()
        self.cancelling.clear()
        self._checkpoint = None
        self._sent = self._seen = self._said = self.resolved = 0
        self.added_bytes = self._sent_bytes = 0
        self._unheld = list(self.objects)
        self._clearing = []
        for definition in self.definitions.values():
            definition.said = False
        for _, missing in self._gated.values():
            for upload in missing:
                upload.waiting.clear()
        self._gated.clear()
        tasks = list(self._sendable())
        self.pending = {task.task_id: task for task in tasks}
        for task in tasks:
            task.is_sent = False
            for reference in task.references:
                if isinstance(reference, Task) and reference.reference_id not in self.pending:
                    self._replace(task, reference, stand_in)
            self.add(task)
        return in_doubt

    def _sendable(self) -> Iterator[Task]:
        """Yield all pending tasks, each after the undelivered ones that it needs."""
        yielded: set[bytes] = set()
        for last in self.pending.values():
            stack = [last]
            while stack:
                task = stack[-1]
                needed = [
                    reference
                    for reference in task.references
                    if isinstance(reference, Task) and reference.kind is not None and reference.task_id not in yielded
                ]
                if needed:
                    stack.extend(needed)
                    continue
                stack.pop()
                if task.task_id not in yielded:
                    yielded.add(task.task_id)
                    yield task

    def _replace(self, task: Task, reference: Task, stand_in: StandIn) -> None:
        if is_task(reference.reference_id):
            upload = stand_in(reference, task.kind.serializer if task.kind is not None else None)
            if upload is None:
                self._dropped.add(reference.task_id)
            else:
                task.references = tuple(upload if other is reference else other for other in task.references)
                task.uploads = (*task.uploads, upload)


def _slices(ids: list[bytes]) -> Iterator[list[bytes]]:
    return (ids[start : start + MAX_IDS_PER_MESSAGE] for start in range(0, len(ids), MAX_IDS_PER_MESSAGE))


def _take(queue: deque[bytes]) -> list[bytes]:
    """Empty a queue to whose end other threads may be appending."""
    return [queue.popleft() for _ in range(len(queue))]


def _may_start_once(task: Task) -> bool:
    return task.kind is not None and task.kind.spec.retries == 0
