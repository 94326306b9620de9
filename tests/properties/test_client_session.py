"""Whatever a client does, in whatever order: its scheduler can always resolve what it is told.

The model is a scheduler that takes messages in order and keeps a result until the client says that it has seen it, as
docs/design.md has it. A task that names a result which is no longer kept, or was never said, is the failure to find.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler.client.session import Session
from scaler.client.tasks import Definition, Kind, Task, Upload
from scaler.errors import LimitError
from scaler.ids import IdFactory, is_task
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    AcknowledgeResults,
    Cancel,
    Finished,
    Message,
    Pin,
    Release,
    Spec,
    Submit,
    TaskGroup,
    stored_reference,
)
from scaler.serialization import Serializer

PAYLOAD = bytes(SPLIT_BATCH_BYTES)
"""So large that a message has one task, and a drain with a small budget leaves the others for the next."""


class Scheduler:
    """Runs nothing; ends tasks when it is told to."""

    def __init__(self) -> None:
        self.definitions: set[bytes] = set()
        self.alive: dict[bytes, tuple[bytes, ...]] = {}
        self.kept: dict[bytes, int] = {}
        self.received: list[bytes] = []
        self.released: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.number = 0

    def take(self, message: Message, stored: set[bytes]) -> None:
        match message:
            case Submit(definitions, groups, seen):
                self.definitions.update(identifier for identifier, _ in definitions)
                entangled = [task for group in groups for task in self._take_group(group)]
                for task in entangled:
                    for reference in self.alive[task]:
                        if is_task(reference):
                            assert reference in self.alive or reference in self.kept, "it names what is not kept"
                        else:
                            assert reference in stored, "it names what is not in the storage"
                            assert reference not in self.released, "it names what was released"
                self.see(seen)
            case AcknowledgeResults(seen):
                self.see(seen)
            case Cancel(ids):
                assert set(ids) <= set(self.received), "it cancels what it never submitted"
                self.cancelled.update(ids)
            case Release(ids):
                self.released.update(ids)
                self.definitions.difference_update(ids)
            case Pin():
                pass
            case _:
                raise AssertionError(f"a client does not say {message}")

    def _take_group(self, group: TaskGroup) -> list[bytes]:
        assert group.spec.function in self.definitions, "its function was never said"
        references = group.references or [()] * len(group.ids)
        for identifier, needed in zip(group.ids, references, strict=True):
            assert identifier not in self.received, "it was submitted twice"
            self.received.append(identifier)
            self.alive[identifier] = needed
        return group.ids

    def see(self, number: int) -> None:
        assert number <= self.number
        self.kept = {identifier: when for identifier, when in self.kept.items() if when > number}

    def finish(self, identifiers: list[bytes]) -> Finished:
        self.number += 1
        for identifier in identifiers:
            del self.alive[identifier]
            self.kept[identifier] = self.number
        count = len(identifiers)
        return Finished(self.number, identifiers, [0] * count, [b""] * count, [0] * count)


class ClientMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ids = IdFactory(b"client--")
        self.session = Session()
        self.scheduler = Scheduler()
        self.stored: set[bytes] = set()
        self.released_before: set[bytes] = set()
        """What schedulers were told before their restart."""
        self.uploads: list[Upload] = []
        self.tasks: list[Task] = []
        self.ended: set[bytes] = set()
        self.reported: list[Finished] = []
        self.kinds = [self._kind(name) for name in ("f", "g")]

    def _kind(self, name: str, upload: Upload | None = None) -> Kind:
        identifier = name.encode().ljust(16)
        definition = Definition(identifier, b"code", upload, self.session.releases)
        self.session.definitions[identifier] = definition
        return Kind(Spec(identifier), (definition,), None)

    def _upload(self) -> Upload:
        identifier = self.ids.object()
        upload = Upload(identifier, stored_reference(identifier, 1), self.session.releases)
        self.uploads.append(upload)
        return upload

    @rule(kind=st.integers(0, 1), needs=st.lists(st.integers(0, 5), max_size=2), large=st.booleans())
    def submit(self, kind: int, needs: list[int], large: bool) -> None:
        recent = [task for task in reversed(self.tasks) if task.task_id in self.session.pending]
        references: list[Task | Upload] = [recent[index] for index in needs if index < len(recent)]
        uploads: tuple[Upload, ...] = ()
        if large:
            upload = self._upload()
            uploads = (upload,)
            references.append(upload)
        task = Task(self.ids.task(), self.kinds[kind], PAYLOAD, tuple(references), uploads)
        self.session.add(task)
        self.tasks.append(task)

    @rule(budget=st.sampled_from([0, 1, 1, 1, SPLIT_BATCH_BYTES * 2, 1 << 40]))
    def drain(self, budget: int) -> None:
        for message in self.session.drain(budget):
            self.scheduler.take(message, self.stored)
        for orphan in self.session.orphans:
            assert orphan.task_id not in self.scheduler.received
        self.ended.update(task.task_id for task in self.session.orphans)
        self.session.orphans.clear()

    @rule()
    def say_seen(self) -> None:
        message = self.session.say_seen()
        if message is not None:
            self.scheduler.take(message, self.stored)

    @precondition(lambda self: self.uploads)
    @rule(index=st.integers(0, 3), fails=st.sampled_from([False, False, False, True]))
    def upload_ends(self, index: int, fails: bool) -> None:
        upload = self.uploads.pop(min(index, len(self.uploads) - 1))
        if fails:
            self.ended.update(task.task_id for task in self.session.drop_upload(upload, LimitError("full")))
        else:
            self.stored.add(upload.id)
            self.session.uploaded(upload)

    @precondition(lambda self: self.session.pending)
    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        task = list(self.session.pending.values())[index % len(self.session.pending)]
        assert self.session.cancel(task)
        self.ended.add(task.task_id)

    @precondition(lambda self: self.scheduler.alive)
    @rule(count=st.integers(1, 4))
    def finish(self, count: int) -> None:
        """The scheduler ends some tasks that wait for nothing; the client hears of it later."""
        alive = self.scheduler.alive
        free = [task for task, needed in alive.items() if not any(reference in alive for reference in needed)]
        self.reported.append(self.scheduler.finish(free[:count]))

    @precondition(lambda self: self.reported)
    @rule()
    def hear(self) -> None:
        finished = self.reported.pop(0)
        for identifier in finished.ids:
            task = self.session.pending.pop(identifier, None)
            if task is not None:
                assert identifier not in self.ended, "it ended twice"
                self.ended.add(identifier)
                task.forget()
        self.session.resolve(finished.number, finished.ids)

    @rule()
    def restart(self) -> None:
        """A new scheduler that knows nothing. What has ended has a value, and the value has an upload."""
        self.released_before |= self.scheduler.released
        self.scheduler = Scheduler()
        self.reported.clear()
        self.session.restart(self._stand_in)

    def _stand_in(self, _task: Task, _serializer: Serializer | None) -> Upload:
        return self._upload()

    @invariant()
    def pending_is_what_has_not_ended(self) -> None:
        assert set(self.session.pending) == {task.task_id for task in self.tasks} - self.ended

    def teardown(self) -> None:
        """When everything is over, nothing is left on either side."""
        while self.uploads:
            self.upload_ends(0, False)
        for _ in range(len(self.tasks) + 2):
            self.drain(1 << 40)
            if self.scheduler.alive:
                self.finish(1 << 20)
            while self.reported:
                self.hear()
        self.drain(1 << 40)
        assert not self.session.pending
        assert not self.session.cancelling
        self.say_seen()
        assert not self.scheduler.kept
        self.tasks.clear()
        self.kinds.clear()
        self.drain(1 << 40)
        assert self.stored <= self.scheduler.released | self.released_before
        assert not self.scheduler.definitions


TestClientSession = ClientMachine.TestCase
TestClientSession.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
