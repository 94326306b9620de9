"""The unfinished tasks of a client, and the messages about them. Pure: `commands = session.step(inputs, now)`.

Invariants: a task is in `pending` from its TasksAdded until it ends, is cancelled, or the client gives up. A pending
task keeps its template, payload, and references, so that it can be resent to a scheduler that lost its state.

*Acknowledged results.* The scheduler retains a result while this client may still reference its task. A task references
the futures that were unresolved when it was added. `resolved` is the number of the last Finished whose futures are
resolved; later tasks embed their values. Once all tasks added at `resolved == n` have been sent, the session may
acknowledge n. Tasks that wait for an upload delay the acknowledgement; tasks without references do not.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import assert_never

from scaler.client import tasks as t
from scaler.errors import ScalerError
from scaler.grammar import counted
from scaler.ids import ID_BYTES, is_task
from scaler.protocol import messages as m

MAX_IDS_PER_MESSAGE = 32 * 1024
"""Maximum ids per message, which keeps control messages below 1 MiB."""
ACKNOWLEDGE_SECONDS = 1.0
"""Minimum seconds between acknowledgements."""
_SUCCESS = m.Outcome.SUCCESS
_UNSENT = (t.Stage.UNSENT, t.Stage.AGAIN)

_Gate = tuple[int, set[t.ObjectUpload]]
"""Value of `resolved` when the waiting task was added, and the uploads that the task waits for."""


class TaskSession:
    """The tasks of one client. The module docstring states the invariants."""

    def __init__(self) -> None:
        self.pending: dict[bytes, t.ClientTask] = {}
        self.cancelling: set[bytes] = set()
        """Cancelled here but not confirmed by the scheduler, which still counts them as pending."""
        self._recancelled: set[bytes] = set()
        """Cancelled before a scheduler restart and not confirmed since. Cancelled again after the next restart."""
        self.resolved = 0
        self.unsent_bytes = 0
        self._unsent_count = 0
        """Number of unsent pending tasks, including tasks that wait for an upload."""
        self._epoch = 1
        self._objects: dict[bytes, t.ObjectUpload] = {}
        self._failed_uploads: list[t.ObjectUpload] = []
        self._unsent: deque[t.ClientTask] = deque()
        """Tasks ready to send, each with the value of `resolved` when it was added (to `_gated` if it had to wait)."""
        self._naming: deque[t.ClientTask] = deque()
        """Members of `_unsent` with references; may begin with tasks that were already sent."""
        self._gated: dict[t.ClientTask, _Gate] = {}
        self._dropped: dict[bytes, ScalerError | None] = {}
        """Tasks that ended unsent, with their errors: tasks that reference them are dropped with the same error."""
        self._cancels: list[bytes] = []
        self._released: list[bytes] = []
        self._unpinned: list[bytes] = []
        self._unasked: list[bytes] = []
        """Adopted tasks whose results have not been requested."""
        self.has_labels = False
        self._clearing: list[m.Message] = []
        """Unsent messages up to and including a Clear. They precede everything added later."""
        self._acknowledged = 0
        self._acknowledge_at = 0.0

    def step(self, inputs: Iterable[t.SessionInput], now: float) -> list[t.SessionCommand]:
        commands: list[t.SessionCommand] = []
        ready: t.ConnectionReady | None = None
        for each in inputs:
            match each:
                case t.TasksAdded(tasks):
                    self._unsent_count += len(tasks)
                    for task in tasks:
                        self._add(task)
                case t.ConnectionReady():
                    ready = each
                case m.Finished():
                    self._finish(each)
                case t.TasksAdopted(tasks):
                    adopted = {task.task_id: task for task in tasks}
                    self.pending |= adopted
                    self._unasked += adopted
                case t.TaskSettled(task):
                    self._settle(task, commands)
                case t.UploadEnded(upload, error):
                    self._upload_ended(upload, error, commands)
                case t.ReferencesReleased(ids):
                    self._released += ids
                case t.ObjectPinned(upload):
                    self._objects[upload.id] = upload
                    self._unpinned.append(upload.id)
                case t.ClientCleared():
                    self._clear(commands)
                case t.ClientGaveUp(error, cancel):
                    commands.append(t.DropTasks(self._take_all(cancel), error))
                case t.SchedulerRestarted(stand_ins):
                    self._restart(stand_ins)
                case _:
                    assert_never(each)
        while self._failed_uploads:  # after all additions, because later tasks may reference waiting tasks
            self._drop_waiting(self._failed_uploads.pop(), commands)
        if ready is not None:
            self._send(commands, ready, now)
        return commands

    # -- adding and dropping tasks

    def _add(self, task: t.ClientTask) -> None:
        template = task.template
        assert template is not None, "a task that has ended is not added"
        self.pending[task.task_id] = task
        for reference in task.references:
            if isinstance(reference, t.ClientTask):
                reference.is_used = True
        if (task.uploads or template.uploads or (self._gated and task.references)) and self._gate(task, template):
            return
        self.unsent_bytes += len(task.payload) + m.ROW_BYTES
        task.resolved = self.resolved
        self._unsent.append(task)
        if task.references:
            self._naming.append(task)

    def _gate(self, task: t.ClientTask, template: t.TaskTemplate) -> bool:
        missing = {upload for upload in (*task.uploads, *template.uploads) if not upload.is_stored}
        for reference in task.references:  # a task must not overtake tasks that it references
            if isinstance(reference, t.ClientTask) and reference in self._gated:
                missing |= self._gated[reference][1]
        if missing:
            self._gated[task] = (self.resolved, missing)
            for upload in missing:
                upload.waiting.append(task)
                if upload.error is not None:
                    self._failed_uploads.append(upload)
        return bool(missing)

    def _upload_ended(
        self, upload: t.ObjectUpload, error: ScalerError | None, commands: list[t.SessionCommand]
    ) -> None:
        upload.error = error
        upload.is_stored = error is None
        if error is not None:
            self._drop_waiting(upload, commands)
        for task in upload.waiting:
            gate = self._gated.get(task)
            if gate is not None:
                gate[1].discard(upload)
                if not gate[1]:
                    self.unsent_bytes += len(task.payload) + m.ROW_BYTES
                    task.resolved = self.resolved
                    self._unsent.append(task)
                    if task.references:
                        self._naming.append(task)
        upload.waiting.clear()

    def _clear(self, commands: list[t.SessionCommand]) -> None:
        # Pin each object before the Clear: the scheduler releases only pinned objects.
        self._clearing += [*_in_slices(m.Pin, self._unpinned), m.Clear()]
        for upload in self._objects.values():
            upload.is_invalid = True
        self._objects.clear()
        commands.append(t.DropTasks(self._take_all(), None))

    def _drop_waiting(self, upload: t.ObjectUpload, commands: list[t.SessionCommand]) -> None:
        commands.append(self._drop([task for task in upload.waiting if task.template is not None], upload.error))
        upload.waiting.clear()

    def _drop(self, tasks: list[t.ClientTask], error: ScalerError | None) -> t.DropTasks:
        for task in tasks:
            if self.pending.pop(task.task_id, None) is not None:
                self._unsent_count -= 1
            self._gated.pop(task, None)
            self._dropped[task.task_id] = error
            _forget(task)
        return t.DropTasks(tasks, error)

    def ask_again(self, message: m.Finished) -> None:
        """Request values of adopted tasks that ended undelivered, such as inner nodes of graphs. Drops their rows."""
        for index, (identifier, outcome) in enumerate(zip(message.ids, message.outcomes, strict=True)):
            if outcome == _SUCCESS and not message.payloads[index]:
                task = self.pending.get(identifier)
                if task is not None and task.is_adopted:
                    self._unasked.append(identifier)
                    message.ids[index] = b""

    def _finish(self, message: m.Finished) -> None:
        pending = self.pending
        for identifier, outcome, payload in zip(message.ids, message.outcomes, message.payloads, strict=True):
            task = pending.get(identifier)
            if task is None:
                continue
            if len(payload) == m.STORED_REFERENCE_BYTES and m.is_stored(payload):
                # Keep the whole task, which runs again if its value cannot be fetched.
                if task.stage is t.Stage.KEPT:
                    del pending[identifier]
                else:
                    task.stage = t.Stage.FETCHING
                continue
            del pending[identifier]
            template = task.template
            if template is not None and (template.spec.deliver or outcome != _SUCCESS):
                task.template, task.payload, task.references, task.uploads = None, b"", (), ()
        self.resolved = message.number or self.resolved
        if self.cancelling:
            self.cancelling.difference_update(message.ids)
        if self._recancelled:
            self._recancelled.difference_update(message.ids)

    def _settle(self, task: t.ClientTask, commands: list[t.SessionCommand]) -> None:
        if self.pending.pop(task.task_id, None) is None:
            return
        if task.stage is t.Stage.SENT:
            self.cancelling.add(task.task_id)
            self._cancels.append(task.task_id)
        elif task.stage in _UNSENT:
            self._unsent_count -= 1
            self._dropped[task.task_id] = None
            if task.stage is t.Stage.AGAIN:  # a worker may have it
                self._cancels.append(task.task_id)
            gate = self._gated.pop(task, None)
            if gate is None or not gate[1]:
                self.unsent_bytes -= len(task.payload) + m.ROW_BYTES
        _forget(task)
        commands.append(t.DropTasks([task], None))

    def _take_all(self, cancel: bool = False) -> list[t.ClientTask]:
        tasks = list(self.pending.values())
        self.pending.clear()
        sent = [task.task_id for task in tasks if task.stage is t.Stage.SENT]
        self.cancelling.update(sent)
        if cancel:
            self._cancels += [task.task_id for task in tasks if task.stage in (t.Stage.SENT, t.Stage.AGAIN)]
        self._gated.clear()
        for task in tasks:
            _forget(task)
        self.unsent_bytes = self._unsent_count = 0
        return tasks

    # -- queries about a task

    def why_unsent(self, task: t.ClientTask) -> str:
        """Return why a task has not been sent to the scheduler; empty if it was sent."""
        if task.stage not in _UNSENT or task.task_id not in self.pending:
            return ""
        if self.waits_for_upload(task):
            missing = sum(not upload.is_stored for upload in self._gated[task][1])
            return f"it waits in the client for the upload of {counted(missing, 'object')} that it needs"
        return f"it waits in the client to be sent, with {counted(len(self._unsent) - 1, 'other task')}"

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent or self._gated)

    def waits_for_upload(self, task: t.ClientTask) -> bool:
        gate = self._gated.get(task)
        return gate is not None and not all(upload.is_stored for upload in gate[1])

    # -- sending

    def _send(self, commands: list[t.SessionCommand], ready: t.ConnectionReady, now: float) -> None:
        commands += self._clearing
        self._clearing.clear()
        if self._unpinned:
            commands += _in_slices(m.Pin, self._unpinned)
        if self._unasked:
            commands += _in_slices(m.Redeliver, self._unasked)
        free_bytes, room = ready.free_bytes, sys.maxsize
        if ready.max_pending >= 0:
            room = ready.max_pending - (len(self.pending) - self._unsent_count) - len(self.cancelling)
        unsent, gated = self._unsent, self._gated
        while unsent and free_bytes > 0 and room > 0:
            acknowledged = self._acknowledgeable() if self._naming or gated else self.resolved
            is_again = unsent[0].stage is t.Stage.AGAIN
            submit, size, count = self._take_batch(room, is_again, commands)
            if submit.groups:
                self._acknowledged = max(self._acknowledged, acknowledged)
                self._acknowledge_at = now + ACKNOWLEDGE_SECONDS
                submit.acknowledged, submit.again = acknowledged, self._epoch - 1 if is_again else 0
                commands.append(submit)
            free_bytes -= size
            room -= count
            self._unsent_count -= count
        if not unsent:
            self._naming.clear()
            if not gated:
                self._dropped.clear()
        if now >= self._acknowledge_at:
            number = self._acknowledgeable() if self._naming or gated else self.resolved
            if number > self._acknowledged:
                commands.append(m.AcknowledgeResults(number))
                self._acknowledged = number
                self._acknowledge_at = now + ACKNOWLEDGE_SECONDS
        if self._cancels:
            commands += _in_slices(m.Cancel, self._cancels)
        if self._released:
            commands += _in_slices(m.Release, self._released)

    def _acknowledgeable(self) -> int:
        naming = self._naming
        while naming and (naming[0].template is None or naming[0].stage not in _UNSENT):
            naming.popleft()
        number = naming[0].resolved if naming else self.resolved
        return min(number, *(resolved for resolved, _ in self._gated.values())) if self._gated else number

    def _take_batch(self, room: int, is_again: bool, commands: list[t.SessionCommand]) -> tuple[m.Submit, int, int]:
        """Move the next tasks, all new or all resent, into one Submit. Returns it with its bytes and task count."""
        groups: dict[t.TaskTemplate, m.TaskGroup] = {}
        submit = m.Submit([], [], 0)
        unsent, gated, has_labels = self._unsent, self._gated, self.has_labels
        sent, again = t.Stage.SENT, t.Stage.AGAIN
        size, left = 0, room
        while unsent and size < m.SPLIT_BATCH_BYTES and left > 0:
            task = unsent[0]
            template = task.template
            if (task.stage is again) is not is_again and template is not None:
                break
            unsent.popleft()
            if template is None or (self._dropped and self._is_orphan(task, commands)):
                continue  # cancelled before it was sent
            task.stage = sent
            left -= 1
            group = groups.get(template)
            if group is None:
                group = groups[template] = m.TaskGroup(template.spec, [], [], [])
                submit.groups.append(group)
                size += m.GROUP_BYTES
                for function in template.functions:
                    if function.announced_in != self._epoch:
                        function.announced_in = self._epoch
                        submit.functions.append((function.id, function.payload))
                        size += m.GROUP_BYTES + len(function.payload)
            payload = task.payload
            group.ids.append(task.task_id)
            group.payloads.append(payload)
            task_size = len(payload) + m.ROW_BYTES
            self.unsent_bytes -= task_size
            size += task_size
            if task.references or group.references or has_labels or template.has_chunks:
                size += _add_columns(group, task, template, has_labels=has_labels)
            if gated:
                gated.pop(task, None)
        return submit, size, room - left

    def _is_orphan(self, task: t.ClientTask, commands: list[t.SessionCommand]) -> bool:
        """Drop a task if it references a task that was dropped unsent. Returns whether it was dropped."""
        for reference in task.references:
            if isinstance(reference, t.ClientTask) and reference._reference_id in self._dropped:
                self.unsent_bytes -= len(task.payload) + m.ROW_BYTES
                commands.append(self._drop([task], self._dropped[reference.task_id]))
                return True
        return False

    # -- after the scheduler has lost its state

    def _restart(self, stand_ins: t.StandIns) -> None:
        """Queue everything to be resent, oldest first. The scheduler determines which tasks may have run."""
        self._unsent.clear()
        self._naming.clear()
        self._recancelled |= {*self._cancels, *self.cancelling}
        self._cancels = [*self._recancelled]
        self.cancelling.clear()
        self._acknowledged = self.resolved = self.unsent_bytes = 0
        self._unpinned = list(self._objects)
        self._clearing.clear()
        self._epoch += 1
        for _, missing in self._gated.values():
            for upload in missing:
                upload.waiting.clear()
        self._gated.clear()
        fetching = [task for task in self.pending.values() if task.stage is t.Stage.FETCHING or task.is_adopted]
        self._unasked = [task.task_id for task in fetching if task.stage is not t.Stage.FETCHING]
        tasks = list(t.sendable(self.pending))
        self._unsent_count = len(tasks)
        self.pending = {task.task_id: task for task in (*fetching, *tasks)}
        for task in tasks:
            if task.stage is t.Stage.SENT:
                task.stage = t.Stage.AGAIN
            for reference in task.references:
                if (
                    isinstance(reference, t.ClientTask)
                    and reference._reference_id not in self.pending
                    and is_task(reference._reference_id)
                ):
                    assert task.template is not None, "the task is about to be sent"
                    found = stand_ins.get((reference, task.template.serializer))
                    if found is None:
                        self._dropped[reference.task_id] = None
                    else:
                        task.references = tuple(found if other is reference else other for other in task.references)
                        task.uploads = (*task.uploads, found)
            self._add(task)


def _in_slices(kind: type[m.Pin | m.Cancel | m.Release | m.Redeliver], ids: list[bytes]) -> Iterator[m.Message]:
    while ids:
        yield kind(ids[:MAX_IDS_PER_MESSAGE])
        del ids[:MAX_IDS_PER_MESSAGE]


def _forget(task: t.ClientTask) -> None:
    task.template = None
    task.payload = b""
    task.references = ()
    task.uploads = ()


def _add_columns(group: m.TaskGroup, task: t.ClientTask, template: t.TaskTemplate, *, has_labels: bool) -> int:
    """Add rare fields, whose columns begin with the first task that uses them. Return their size in bytes."""
    if template.has_chunks:
        group.calls.append(task.calls)
    references = tuple([reference._reference_id for reference in task.references])
    label = getattr(task, "label", ()) if has_labels else ()
    for column, value in ((group.references, references), (group.labels, label)):
        if value or column:
            column.extend([()] * (len(group.ids) - 1 - len(column)))
            column.append(value)
    return ID_BYTES * len(references) + sum(map(len, label))
