"""For any order of a client's actions, its scheduler can resolve all tasks that it receives.

The model is a scheduler that processes messages in order and retains a result until the client acknowledges it, as in
docs/design.md. The bug to find is a task that names a result that is no longer retained or never existed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler.client.session import TaskSession
from scaler.client.tasks import (
    ClientTask,
    ConnectionReady,
    DropTasks,
    FunctionReference,
    ObjectUpload,
    ReferencesReleased,
    SchedulerRestarted,
    SessionInput,
    TasksAdded,
    TaskSettled,
    TaskTemplate,
    UploadEnded,
    lost_values,
)
from scaler.errors import LimitError
from scaler.ids import IdFactory, is_task
from scaler.protocol import messages as m

PAYLOAD = bytes(m.SPLIT_BATCH_BYTES)
"""Payload so large that a message holds one task, and a step with little room leaves tasks for the next."""


class Scheduler:
    """Runs no tasks, and ends them on request."""

    def __init__(self, earlier: AbstractSet[bytes] = frozenset()) -> None:
        """earlier: tasks that earlier schedulers received and workers may still have."""
        self.earlier = earlier
        self.functions: set[bytes] = set()
        self.alive: dict[bytes, tuple[bytes, ...]] = {}
        self.retained: dict[bytes, int] = {}
        self.received: list[bytes] = []
        self.released: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.number = 0

    def take(self, message: m.Message, stored: set[bytes]) -> None:
        match message:
            case m.Submit(functions, groups, seen):
                self.functions.update(identifier for identifier, _ in functions)
                entangled = [task for group in groups for task in self._take_group(group)]
                for task in entangled:
                    for reference in self.alive[task]:
                        if is_task(reference):
                            assert reference in self.alive or reference in self.retained, "a result is not retained"
                        else:
                            assert reference in stored, "the object is not in the storage"
                            assert reference not in self.released, "the object was released"
                self.see(seen)
            case m.AcknowledgeResults(seen):
                self.see(seen)
            case m.Cancel(ids):
                assert set(ids) <= self.earlier | set(self.received), "the task is unknown"
                self.cancelled.update(ids)
            case m.Release(ids):
                self.released.update(ids)
                self.functions.difference_update(ids)
            case m.Pin():
                pass
            case _:
                raise AssertionError(f"a client does not send {message}")

    def _take_group(self, group: m.TaskGroup) -> list[bytes]:
        assert group.spec.function in self.functions, "the function was never announced"
        references = group.references or [()] * len(group.ids)
        for identifier, needed in zip(group.ids, references, strict=True):
            assert identifier not in self.received, "a task was submitted twice"
            self.received.append(identifier)
            self.alive[identifier] = needed
        return group.ids

    def see(self, number: int) -> None:
        assert number <= self.number
        self.retained = {identifier: when for identifier, when in self.retained.items() if when > number}

    def finish(self, identifiers: list[bytes]) -> m.Finished:
        self.number += 1
        for identifier in identifiers:
            del self.alive[identifier]
            self.retained[identifier] = self.number
        count = len(identifiers)
        return m.Finished(self.number, identifiers, [0] * count, [b""] * count, [0] * count)


class ClientMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ids = IdFactory(b"client--")
        self.session = TaskSession()
        self.now = 0.0
        self.releases: deque[bytes] = deque()
        self.scheduler = Scheduler()
        self.stored: set[bytes] = set()
        self.released_before: set[bytes] = set()
        """References that schedulers had released before their restart."""
        self.uploads: list[ObjectUpload] = []
        self.tasks: list[ClientTask] = []
        self.ended: set[bytes] = set()
        self.reported: list[m.Finished] = []
        self.inbox: list[SessionInput] = []
        """Inputs of the next step, which the client's threads add at any time."""
        self.templates = [self._template(name) for name in ("f", "g")]

    def _template(self, name: str) -> TaskTemplate:
        function = FunctionReference(name.encode().ljust(16), self.releases, b"code", None)
        return TaskTemplate(m.Spec(function.id), (function,), None)

    def _upload(self) -> ObjectUpload:
        identifier = self.ids.object()
        upload = ObjectUpload(identifier, self.releases, m.stored_reference(identifier, 1))
        self.uploads.append(upload)
        return upload

    def _step(self, *inputs: SessionInput) -> None:
        released = [self.releases.popleft() for _ in range(len(self.releases))]
        inbox, self.inbox = self.inbox, []
        for command in self.session.step((ReferencesReleased(released), *inbox, *inputs), self.now):
            if isinstance(command, DropTasks):
                for task in command.tasks:
                    assert task.task_id in self.ended or task.task_id not in self.scheduler.alive, "may still run"
                    self.ended.add(task.task_id)
            else:
                self.scheduler.take(command, self.stored)

    @rule(
        template=st.integers(0, 1),
        needs=st.lists(st.integers(0, 5), max_size=2),
        large=st.sampled_from([False, False, True]),
        count=st.integers(1, 3),
    )
    def submit(self, template: int, needs: list[int], large: bool, count: int) -> None:
        unfinished = [task for task in reversed(self.tasks) if task.task_id not in self.ended]
        references: list[ClientTask | ObjectUpload] = [unfinished[index] for index in needs if index < len(unfinished)]
        uploads: tuple[ObjectUpload, ...] = ()
        if large:
            upload = self._upload()
            uploads = (upload,)
            references.append(upload)
        tasks = [
            ClientTask(self.ids.task(), self.templates[template], PAYLOAD, tuple(references), uploads)
            for _ in range(count)
        ]
        self.inbox.append(TasksAdded(tasks))
        self.tasks += tasks

    @rule(
        room=st.sampled_from([None, 0, 1, 1, 1, m.SPLIT_BATCH_BYTES * 2, 1 << 40]),
        max_pending=st.sampled_from([-1, -1, 0, 1, 3]),
    )
    def step(self, room: int | None, max_pending: int = -1) -> None:
        """room: space for messages, or None without a connection."""
        if room is None:
            self._step()
            return
        before = len(self.scheduler.received)
        self._step(ConnectionReady(room, max_pending))
        if max_pending >= 0 and len(self.scheduler.received) > before:
            assert len(self.scheduler.alive) <= max_pending, "the scheduler has more tasks than it accepts"

    @rule()
    def acknowledge(self) -> None:
        """Let time pass without a submit, which triggers an acknowledgement."""
        self.now += 60.0
        self._step(ConnectionReady(0))

    @precondition(lambda self: self.uploads)
    @rule(index=st.integers(0, 3), fails=st.sampled_from([False, False, False, True]))
    def upload_ends(self, index: int, fails: bool) -> None:
        upload = self.uploads.pop(min(index, len(self.uploads) - 1))
        if not fails:
            self.stored.add(upload.id)
        self._step(UploadEnded(upload, LimitError("full") if fails else None))

    @precondition(lambda self: len(self.ended) < len(self.tasks))
    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        unfinished = [task for task in self.tasks if task.task_id not in self.ended]
        task = unfinished[index % len(unfinished)]
        self.inbox.append(TaskSettled(task))
        self.ended.add(task.task_id)

    @precondition(lambda self: self.scheduler.alive)
    @rule(count=st.integers(1, 4))
    def finish(self, count: int) -> None:
        """End some tasks without dependencies in the scheduler. The client receives the outcomes later."""
        alive = self.scheduler.alive
        free = [task for task, needed in alive.items() if not any(reference in alive for reference in needed)]
        self.reported.append(self.scheduler.finish(free[:count]))

    @precondition(lambda self: self.reported)
    @rule()
    def receive(self) -> None:
        finished = self.reported.pop(0)
        self.ended.update(identifier for identifier in finished.ids if identifier in self.session.pending)
        self._step(finished)

    @rule(is_due=st.sampled_from([True, False, False, False]))
    def restart(self, is_due: bool) -> None:
        """Replace the scheduler with one without state. Ended tasks have a value, and values have an upload."""
        if not is_due:
            return  # rare, because a restart ends a state that took many steps to reach
        self._step()
        self.released_before |= self.scheduler.released
        self.scheduler = Scheduler(self.scheduler.earlier | set(self.scheduler.received))
        self.reported.clear()
        self._step(SchedulerRestarted({lost: self._upload() for lost in lost_values(self.session.pending)}))

    @invariant()
    def pending_is_what_has_not_ended(self) -> None:
        if not self.inbox:
            assert set(self.session.pending) == {task.task_id for task in self.tasks} - self.ended

    def teardown(self) -> None:
        """Check that nothing is left on either side in the end."""
        while self.uploads:
            self.upload_ends(0, False)
        for _ in range(len(self.tasks) + 2):
            self.now += 60.0
            self.step(1 << 40, 1)
            if self.scheduler.alive:
                self.finish(1 << 20)
            while self.reported:
                self.receive()
        self.now += 60.0
        self.step(1 << 40)
        assert not self.session.pending
        assert not self.session.cancelling
        assert not self.scheduler.retained
        self.tasks.clear()
        self.templates.clear()
        self.now += 60.0
        self.step(1 << 40)
        assert self.stored <= self.scheduler.released | self.released_before
        assert not self.scheduler.functions


TestClientSession = ClientMachine.TestCase
TestClientSession.settings = settings(stateful_step_count=30)
