"""A client's messages to its scheduler, and their times: the pure session."""

from __future__ import annotations

from collections import deque

from scaler.client.session import TaskSession
from scaler.client.tasks import (
    ClientCleared,
    ClientTask,
    ConnectionReady,
    DropTasks,
    FunctionReference,
    ObjectPinned,
    ObjectUpload,
    ReferencesReleased,
    SchedulerRestarted,
    SessionInput,
    Stage,
    TasksAdded,
    TaskSettled,
    TaskTemplate,
    UploadEnded,
    lost_values,
)
from scaler.errors import LimitError
from scaler.ids import IdFactory, result_id
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    AcknowledgeResults,
    Cancel,
    Clear,
    Finished,
    Message,
    Outcome,
    Pin,
    Spec,
    Submit,
    stored_reference,
)

PLENTY = 1 << 40


class Client:
    """A session, and the inputs that a client derives from events."""

    def __init__(self) -> None:
        self.ids = IdFactory(b"client--")
        self.session = TaskSession()
        self.releases: deque[bytes] = deque()
        self.number = 0
        self.now = 0.0
        self.dropped: list[DropTasks] = []

    def template(self, name: str = "f", upload: ObjectUpload | None = None) -> TaskTemplate:
        function = FunctionReference(name.encode().ljust(16), self.releases, b"code of " + name.encode(), upload)
        return TaskTemplate(Spec(function.id, name=name), (function,), None)

    def task(
        self,
        template: TaskTemplate,
        *references: ClientTask | ObjectUpload,
        uploads: tuple[ObjectUpload, ...] = (),
        size: int = 1,
    ) -> ClientTask:
        task = ClientTask(self.ids.task(), template, b"p" * size, references, uploads)
        self.step(TasksAdded([task]))
        return task

    def upload(self) -> ObjectUpload:
        identifier = self.ids.object()
        return ObjectUpload(identifier, self.releases, stored_reference(identifier, 1))

    def finish(self, *tasks: ClientTask, payload: bytes = b"") -> None:
        """The scheduler reports that these have ended, and their futures are resolved."""
        self.number += 1
        count = len(tasks)
        ids = [task.task_id for task in tasks]
        self.step(Finished(self.number, ids, [Outcome.SUCCESS] * count, [payload] * count, [0] * count))

    def step(self, *inputs: SessionInput) -> list[Message]:
        """Step, record dropped tasks, and return the messages."""
        released = [self.releases.popleft() for _ in range(len(self.releases))]
        messages: list[Message] = []
        for command in self.session.step((ReferencesReleased(released), *inputs), self.now):
            if isinstance(command, DropTasks):
                self.dropped.append(command)
            else:
                messages.append(command)
        return messages

    def send(self, free_bytes: int = PLENTY) -> list[Message]:
        return self.step(ConnectionReady(free_bytes))

    def submits(self) -> list[Submit]:
        return [message for message in self.send() if isinstance(message, Submit)]

    def acknowledged_later(self) -> list[Message]:
        """Return the messages after a while without a submit."""
        self.now += 60.0
        return self.send(0)

    def dropped_tasks(self) -> list[ClientTask]:
        return [task for command in self.dropped for task in command.tasks]


def sent(messages: list[Submit]) -> list[bytes]:
    return [identifier for message in messages for group in message.groups for identifier in group.ids]


def test_pending_tasks_are_sent_in_one_submit_grouped_by_template() -> None:
    client = Client()
    f, g = client.template("f"), client.template("g")
    tasks = [client.task(template) for template in (f, g, f, f, g)]
    (submit,) = client.submits()
    assert submit.functions == [(f.spec.function, b"code of f"), (g.spec.function, b"code of g")]
    assert [group.spec for group in submit.groups] == [f.spec, g.spec]
    assert submit.groups[0].ids == [tasks[index].task_id for index in (0, 2, 3)]
    assert submit.groups[0].references == []
    assert client.send() == []


def test_large_batches_are_split_within_limits_without_losing_a_task() -> None:
    client = Client()
    f = client.template()
    tasks = [client.task(f, size=30_000) for _ in range(100)]
    first = client.send(1)
    assert len(first) == 1
    assert client.session.unsent_bytes > 60 * 30_000
    assert client.send(0) == []
    submits = [message for message in first if isinstance(message, Submit)] + client.submits()
    assert len(submits) > 2
    assert sent(submits) == [task.task_id for task in tasks]
    assert client.session.unsent_bytes == 0


def test_results_are_acknowledged_once_earlier_additions_are_sent() -> None:
    client = Client()
    f = client.template()
    first = client.task(f)
    (submit,) = client.submits()
    assert submit.acknowledged == 0
    client.task(f, first, size=SPLIT_BATCH_BYTES)
    client.finish(first)
    client.task(f)
    before, after = client.submits()
    assert before.acknowledged == 0, "a task names a future that was resolved later"
    assert after.acknowledged == 1


def test_tasks_beyond_the_scheduler_limit_wait_and_are_sent_in_order() -> None:
    client = Client()
    f = client.template()
    tasks = [client.task(f) for _ in range(5)]

    def sent_now() -> list[ClientTask]:
        ids = sent([each for each in client.step(ConnectionReady(PLENTY, 2)) if isinstance(each, Submit)])
        return [task for task in tasks if task.task_id in ids]

    assert sent_now() == tasks[:2]
    assert sent_now() == []
    client.finish(tasks[0])
    client.step(TaskSettled(tasks[2]))
    assert sent_now() == [tasks[3]]
    client.step(TaskSettled(tasks[1]))
    assert sent_now() == [], "the scheduler has not confirmed the cancellation"
    client.finish(tasks[1])
    assert sent_now() == [tasks[4]]


def test_task_waits_for_its_upload_and_delays_the_acknowledgement() -> None:
    client = Client()
    f = client.template()
    first = client.task(f)
    client.submits()
    upload = client.upload()
    waiting = client.task(f, first, upload, uploads=(upload,))
    client.finish(first)
    assert client.send() == []
    assert client.send() == []
    assert client.acknowledged_later() == []
    client.step(UploadEnded(upload))
    (submit,) = client.submits()
    assert sent([submit]) == [waiting.task_id]
    assert submit.acknowledged == 0
    client.send()
    assert client.acknowledged_later() == [AcknowledgeResults(1)]


def test_unsent_task_explains_what_it_waits_for() -> None:
    client = Client()
    first, second = client.upload(), client.upload()
    plain = client.task(client.template())
    waiting = client.task(client.template(), uploads=(first, second))
    assert [client.session.waits_for_upload(task) for task in (plain, waiting)] == [False, True]
    assert client.session.why_unsent(plain) == ("it waits in the client to be sent, with 0 other tasks")
    assert client.session.why_unsent(waiting) == ("it waits in the client for the upload of 2 objects that it needs")
    client.step(UploadEnded(first))
    assert "for the upload of 1 object that" in client.session.why_unsent(waiting)
    client.step(UploadEnded(second))
    client.send()
    assert [client.session.why_unsent(task) for task in (plain, waiting)] == ["", ""]


def test_failed_upload_drops_its_waiting_and_later_dependents() -> None:
    client = Client()
    upload = client.upload()
    template = client.template()
    task = client.task(template, uploads=(upload,))
    other = client.task(template)
    error = LimitError("full")
    client.step(UploadEnded(upload, error))
    assert client.dropped == [DropTasks([task], error)]
    assert list(client.session.pending.values()) == [other]
    later = ClientTask(client.ids.task(), template, b"", (), (upload,))
    dependent = ClientTask(client.ids.task(), template, b"", (later,))
    client.step(TasksAdded([later, dependent]))
    assert client.dropped_tasks() == [task, later, dependent]
    assert client.dropped[-1].error is error
    assert list(client.session.pending.values()) == [other]


def test_dependents_of_a_task_cancelled_before_sending_are_removed_too() -> None:
    client = Client()
    f = client.template()
    task = client.task(f)
    dependent = client.task(f, task)
    last = client.task(f, dependent)
    other = client.task(f)
    client.step(TaskSettled(task))
    assert sent(client.submits()) == [other.task_id]
    assert client.dropped_tasks() == [task, dependent, last]
    assert client.session.unsent_bytes == 0
    assert list(client.session.pending.values()) == [other]


def test_cancel_follows_the_task_and_counts_until_answered() -> None:
    client = Client()
    f = client.template()
    task = client.task(f)
    client.send()
    client.step(TaskSettled(task))
    assert client.send() == [Cancel([task.task_id])]
    assert client.session.cancelling == {task.task_id}
    client.finish(task)
    assert not client.session.cancelling


def test_clear_precedes_later_submissions_and_spares_them() -> None:
    client = Client()
    f = client.template()
    sent_before = client.task(f)
    client.send()
    client.task(f)
    old, new = client.upload(), client.upload()
    client.step(ObjectPinned(old))
    client.step(ClientCleared())
    assert sent_before in client.dropped_tasks()
    task = client.task(f)
    client.step(ObjectPinned(new))
    pinned, cleared, *after = client.send()
    assert (pinned, cleared) == (Pin([old.id]), Clear())
    assert after[0] == Pin([new.id])
    assert sent([message for message in after if isinstance(message, Submit)]) == [task.task_id]
    assert list(client.session.pending) == [task.task_id]


def test_after_a_restart_pending_tasks_are_resent_with_their_functions() -> None:
    client = Client()
    f = client.template()
    ended, sent_before = client.task(f), client.task(f)
    client.submits()
    client.finish(ended)
    unsent = client.task(f)
    client.step(SchedulerRestarted({}))
    again, new = client.submits()
    assert again.functions == [(f.spec.function, b"code of f")]
    assert [submit.acknowledged for submit in (again, new)] == [0, 0]
    assert [submit.again for submit in (again, new)] == [1, 0]
    assert sent([again, new]) == [sent_before.task_id, unsent.task_id]
    client.step(SchedulerRestarted({}))
    (twice,) = client.submits()
    assert twice.again == 2
    assert sent([twice]) == [sent_before.task_id, unsent.task_id]


def test_cancellation_is_repeated_after_each_restart_until_it_is_confirmed() -> None:
    client = Client()
    f = client.template()
    task = client.task(f)
    client.send()
    client.step(TaskSettled(task))
    for _ in range(3):
        assert client.send() == [Cancel([task.task_id])]
        client.step(SchedulerRestarted({}))
    client.send()
    client.finish(task)
    client.step(SchedulerRestarted({}))
    assert client.send() == []


def test_after_a_restart_a_value_replaces_an_ended_dependency() -> None:
    client = Client()
    f = client.template()
    ended = client.task(f)
    dependent = client.task(f, ended)
    client.submits()
    client.finish(ended)
    upload = client.upload()
    assert lost_values(client.session.pending) == [(ended, None)]
    client.step(SchedulerRestarted({(ended, None): upload}))
    assert client.submits() == []
    client.step(UploadEnded(upload))
    (submit,) = client.submits()
    assert sent([submit]) == [dependent.task_id]
    assert submit.groups[0].references == [(upload.id,)]


def test_after_a_restart_a_surviving_value_is_named_and_not_recomputed() -> None:
    stored = result_id(bytes(16), 1)

    class Stored(ClientTask):
        _reference_id = stored

    client = Client()
    f = client.template()
    made = Stored(client.ids.task(), f, b"p")
    client.step(TasksAdded([made]))
    dependent = client.task(f, made)
    client.submits()
    made.stage = Stage.KEPT
    client.finish(made, payload=stored_reference(stored, 100_000))
    assert lost_values(client.session.pending) == []
    client.step(SchedulerRestarted({}))
    (submit,) = client.submits()
    assert sent([submit]) == [dependent.task_id]
    assert submit.groups[0].references == [(stored,)]
    assert made.template is f  # can still run again if its value is lost


def test_after_a_restart_undelivered_dependencies_rerun_first() -> None:
    client = Client()
    wanted = client.template()
    inner = TaskTemplate(Spec(wanted.spec.function, deliver=False), wanted.functions, None)
    first = client.task(inner)
    second = client.task(inner, first)
    last = client.task(wanted, second)
    client.submits()
    client.finish(first)
    client.finish(second)
    assert lost_values(client.session.pending) == []
    client.step(SchedulerRestarted({}))
    assert sent(client.submits()) == [first.task_id, second.task_id, last.task_id]
