"""What a client says to its scheduler, and when: the pure session."""

from __future__ import annotations

from collections import deque

from scaler.client.session import MAX_IDS_PER_MESSAGE, Session
from scaler.client.tasks import Definition, Kind, Task, Upload
from scaler.errors import LimitError
from scaler.ids import IdFactory
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    AcknowledgeResults,
    Cancel,
    Clear,
    Message,
    Pin,
    Release,
    Spec,
    Submit,
    stored_reference,
)
from scaler.serialization import Serializer

PLENTY = 1 << 40


class Client:
    """A session, and what a client does with it."""

    def __init__(self) -> None:
        self.ids = IdFactory(b"client--")
        self.session = Session()
        self.number = 0

    def kind(self, name: str = "f", upload: Upload | None = None) -> Kind:
        identifier = name.encode().ljust(16)
        definition = Definition(identifier, b"code of " + name.encode(), upload, self.session.releases)
        self.session.definitions[identifier] = definition
        return Kind(Spec(identifier, name=name), (definition,), None)

    def task(self, kind: Kind, *references: Task | Upload, uploads: tuple[Upload, ...] = (), size: int = 1) -> Task:
        task = Task(self.ids.task(), kind, b"p" * size, references, uploads)
        self.session.add(task)
        return task

    def upload(self) -> Upload:
        identifier = self.ids.object()
        return Upload(identifier, stored_reference(identifier, 1), self.session.releases)

    def finish(self, *tasks: Task) -> None:
        """The scheduler says that these have ended."""
        self.number += 1
        for task in tasks:
            self.session.pending.pop(task.task_id, None)
            if task.kind is not None and task.kind.spec.deliver:
                task.forget()
        self.session.resolve(self.number, [task.task_id for task in tasks])

    def drain(self) -> list[Message]:
        return self.session.drain(PLENTY)

    def submits(self) -> list[Submit]:
        return [message for message in self.drain() if isinstance(message, Submit)]


def sent(messages: list[Submit]) -> list[bytes]:
    return [identifier for message in messages for group in message.groups for identifier in group.ids]


def test_all_that_waits_travels_in_one_submit_with_a_group_per_kind() -> None:
    client = Client()
    f, g = client.kind("f"), client.kind("g")
    tasks = [client.task(kind) for kind in (f, g, f, f, g)]
    (submit,) = client.submits()
    assert submit.functions == [(f.spec.function, b"code of f"), (g.spec.function, b"code of g")]
    assert [group.spec for group in submit.groups] == [f.spec, g.spec]
    assert submit.groups[0].ids == [tasks[index].task_id for index in (0, 2, 3)]
    assert submit.groups[0].references == []
    assert client.drain() == []


def test_a_definition_is_said_once() -> None:
    client = Client()
    f = client.kind()
    client.task(f)
    client.submits()
    client.task(f)
    (submit,) = client.submits()
    assert submit.functions == []


def test_references_make_a_column_that_is_empty_where_there_are_none() -> None:
    client = Client()
    f = client.kind()
    first = client.task(f)
    client.task(f, first, first)
    client.task(f)
    (submit,) = client.submits()
    assert submit.groups[0].references == [(), (first.task_id, first.task_id), ()]


def test_large_batches_are_split_and_a_budget_is_kept_without_losing_a_task() -> None:
    client = Client()
    f = client.kind()
    tasks = [client.task(f, size=30_000) for _ in range(100)]
    first = client.session.drain(1)
    assert len(first) == 1
    assert client.session.unsent_bytes > 60 * 30_000
    assert client.session.drain(0) == []
    submits = [message for message in first if isinstance(message, Submit)] + client.submits()
    assert len(submits) > 2
    assert sent(submits) == [task.task_id for task in tasks]
    assert client.session.unsent_bytes == 0


def test_seen_is_said_when_all_that_was_added_before_has_been_sent() -> None:
    client = Client()
    f = client.kind()
    first = client.task(f)
    (submit,) = client.submits()
    assert submit.acknowledged == 0
    client.finish(first)
    client.task(f)
    (submit,) = client.submits()
    assert submit.acknowledged == 0, "what is in this batch may have been added before the future was resolved"
    client.task(f)
    (submit,) = client.submits()
    assert submit.acknowledged == 1


def test_seen_waits_until_a_drain_without_budget_is_complete() -> None:
    client = Client()
    f = client.kind()
    first = client.task(f)
    client.submits()
    for _ in range(100):
        client.task(f, first, size=30_000)
    client.finish(first)
    client.session.drain(1)
    assert client.session.say_seen() is None
    assert {submit.acknowledged for submit in client.submits()} == {0}
    assert client.session.say_seen() == AcknowledgeResults(1)
    assert client.session.say_seen() is None


def test_an_idle_client_says_what_it_has_seen() -> None:
    client = Client()
    f = client.kind()
    first = client.task(f)
    client.submits()
    client.finish(first)
    assert client.drain() == []
    assert client.session.say_seen() == AcknowledgeResults(1)


def test_a_task_waits_for_its_upload_and_holds_seen_back() -> None:
    client = Client()
    f = client.kind()
    first = client.task(f)
    client.submits()
    upload = client.upload()
    waiting = client.task(f, first, upload, uploads=(upload,))
    client.finish(first)
    assert client.drain() == []
    assert client.drain() == []
    assert client.session.say_seen() is None
    client.session.uploaded(upload)
    (submit,) = client.submits()
    assert sent([submit]) == [waiting.task_id]
    assert submit.acknowledged == 0
    client.drain()
    assert client.session.say_seen() == AcknowledgeResults(1)


def test_a_task_that_was_not_sent_says_what_it_waits_for() -> None:
    client = Client()
    first, second = client.upload(), client.upload()
    plain = client.task(client.kind())
    held = client.task(client.kind(), uploads=(first, second))
    assert [client.session.is_held(task) for task in (plain, held)] == [False, True]
    assert client.session.why_unsent(plain) == (
        "it is in its client, which has yet to send it; 0 other tasks wait there, too"
    )
    assert client.session.why_unsent(held) == (
        "it waits in its client until 2 objects that it needs are in the object storage"
    )
    client.session.uploaded(first)
    assert "until an object that it needs is" in client.session.why_unsent(held)
    client.session.uploaded(second)
    client.drain()
    assert [client.session.why_unsent(task) for task in (plain, held)] == ["", ""]


def test_tasks_of_a_function_that_is_being_uploaded_wait_for_it() -> None:
    client = Client()
    upload = client.upload()
    kind = client.kind("big", upload)
    task = client.task(kind)
    assert client.drain() == []
    client.session.uploaded(upload)
    assert sent(client.submits()) == [task.task_id]


def test_a_failed_upload_drops_what_waits_for_it_and_what_comes_later_with_all_that_names_it() -> None:
    client = Client()
    upload = client.upload()
    kind = client.kind()
    task = client.task(kind, uploads=(upload,))
    other = client.task(kind)
    assert client.session.drop_upload(upload, LimitError("full")) == [task]
    assert list(client.session.pending.values()) == [other]
    later = client.task(kind, uploads=(upload,))
    dependent = client.task(kind, later)
    [(dropped, error)] = [found for found in client.session.drop_refused() if found[0]]
    assert (dropped, str(error)) == ([later, dependent], "full")
    assert list(client.session.pending.values()) == [other]
    assert client.session.drop_refused() == []


def test_uploads_and_definitions_are_released_when_no_task_uses_them() -> None:
    client = Client()
    upload = client.upload()
    identifier = upload.id
    client.session.uploaded(upload)
    kind = client.kind()
    task = client.task(kind, upload, uploads=(upload,))
    function = kind.spec.function
    del upload, kind
    client.submits()
    client.finish(task)
    del task
    (release,) = client.drain()
    assert isinstance(release, Release)
    assert set(release.ids) == {function, identifier}


def test_a_definition_that_is_used_again_is_not_released() -> None:
    client = Client()
    kind = client.kind()
    task = client.task(kind)
    client.submits()
    del kind
    client.finish(task)
    del task
    again = client.kind()
    client.task(again)
    messages = client.drain()
    assert [type(message) for message in messages] == [Submit]


def test_a_task_cancelled_before_it_was_sent_is_never_sent() -> None:
    client = Client()
    f = client.kind()
    task = client.task(f)
    assert client.session.cancel(task)
    assert not client.session.cancel(task)
    assert client.submits() == []
    assert not client.session.cancelling


def test_what_names_a_task_that_was_cancelled_before_it_was_sent_is_taken_off_too() -> None:
    client = Client()
    f = client.kind()
    task = client.task(f)
    dependent = client.task(f, task)
    last = client.task(f, dependent)
    other = client.task(f)
    client.session.cancel(task)
    assert sent(client.submits()) == [other.task_id]
    assert client.session.orphans == [dependent, last]
    assert list(client.session.pending.values()) == [other]


def test_a_task_is_not_sent_before_one_that_it_names_and_that_waits_for_an_upload() -> None:
    client = Client()
    f = client.kind()
    upload = client.upload()
    waiting = client.task(f, uploads=(upload,))
    dependent = client.task(f, waiting)
    other = client.task(f)
    assert sent(client.submits()) == [other.task_id]
    client.session.uploaded(upload)
    assert sent(client.submits()) == [waiting.task_id, dependent.task_id]


def test_a_cancel_follows_the_task_and_counts_until_the_scheduler_has_answered() -> None:
    client = Client()
    f = client.kind()
    task = client.task(f)
    client.drain()
    client.session.cancel(task)
    assert client.drain() == [Cancel([task.task_id])]
    assert client.session.cancelling == {task.task_id}
    client.finish(task)
    assert not client.session.cancelling


def test_long_lists_of_ids_are_cut() -> None:
    client = Client()
    f = client.kind()
    tasks = [client.task(f) for _ in range(MAX_IDS_PER_MESSAGE + 1)]
    client.drain()
    for task in tasks:
        client.session.cancel(task)
    assert [len(message.ids) for message in client.drain() if isinstance(message, Cancel)] == [MAX_IDS_PER_MESSAGE, 1]


def test_objects_are_held_until_cleared_and_named_again_after_a_restart() -> None:
    client = Client()
    upload = client.upload()
    client.session.hold(upload)
    assert client.drain() == [Pin([upload.id])]
    client.session.restart(no_value)
    assert client.drain() == [Pin([upload.id])]


def test_a_clear_is_said_before_what_is_added_after_it_and_ends_nothing_of_that() -> None:
    client = Client()
    f = client.kind()
    sent_before = client.task(f)
    client.drain()
    client.task(f)
    old, new = client.upload(), client.upload()
    client.session.hold(old)
    assert sent_before in client.session.clear()
    task = client.task(f)
    client.session.hold(new)
    held, cleared, *after = client.drain()
    assert (held, cleared) == (Pin([old.id]), Clear())
    assert after[0] == Pin([new.id])
    assert sent([message for message in after if isinstance(message, Submit)]) == [task.task_id]
    assert list(client.session.pending) == [task.task_id]


def no_value(_task: Task, _serializer: Serializer | None) -> Upload | None:
    return None


def test_after_a_restart_all_that_is_pending_is_said_again_with_its_definitions() -> None:
    client = Client()
    f = client.kind()
    ended, sent_before = client.task(f), client.task(f)
    client.submits()
    client.finish(ended)
    unsent = client.task(f)
    client.session.restart(no_value)
    (submit,) = client.submits()
    assert submit.functions == [(f.spec.function, b"code of f")]
    assert submit.acknowledged == 0
    assert sent([submit]) == [sent_before.task_id, unsent.task_id]


def test_after_a_restart_what_was_sent_and_may_start_only_once_is_not_said_again() -> None:
    client = Client()
    f = client.kind()
    once = Kind(Spec(f.spec.function, retries=0), f.definitions, None)
    sent_before = client.task(once)
    client.submits()
    unsent = client.task(once)
    assert client.session.restart(no_value) == [sent_before]
    assert sent(client.submits()) == [unsent.task_id]


def test_after_a_restart_a_value_stands_in_for_a_dependency_that_has_ended() -> None:
    client = Client()
    f = client.kind()
    ended = client.task(f)
    dependent = client.task(f, ended)
    client.submits()
    client.finish(ended)
    uploads = deque([client.upload()])
    upload = uploads[0]
    client.session.restart(lambda task, _: uploads.popleft() if task is ended else None)
    assert client.submits() == []
    client.session.uploaded(upload)
    (submit,) = client.submits()
    assert sent([submit]) == [dependent.task_id]
    assert submit.groups[0].references == [(upload.id,)]


def test_after_a_restart_undelivered_dependencies_run_again_before_what_needs_them() -> None:
    client = Client()
    wanted = client.kind()
    inner = Kind(Spec(wanted.spec.function, deliver=False), wanted.definitions, None)
    first = client.task(inner)
    second = client.task(inner, first)
    last = client.task(wanted, second)
    client.submits()
    client.finish(first)
    client.finish(second)
    client.session.restart(no_value)
    assert sent(client.submits()) == [first.task_id, second.task_id, last.task_id]


def test_giving_up_takes_all_tasks_and_may_tell_the_scheduler() -> None:
    client = Client()
    f = client.kind()
    tasks = [client.task(f), client.task(f)]
    client.submits()
    assert client.session.take_all(cancel=True) == tasks
    assert not client.session.pending
    assert client.drain() == [Cancel([task.task_id for task in tasks])]


def test_what_is_resolved_during_a_long_drain_is_not_seen_before_what_was_added_meanwhile_is_sent() -> None:
    client = Client()
    f = client.kind()
    early = client.task(f)
    client.submits()
    client.task(f, size=SPLIT_BATCH_BYTES)
    client.task(f, size=SPLIT_BATCH_BYTES)
    client.session.drain(1)
    client.task(f, early, size=SPLIT_BATCH_BYTES)
    client.finish(early)
    client.session.drain(1)
    assert client.session.say_seen() is None
    assert sent(client.submits())
    assert client.session.say_seen() == AcknowledgeResults(1)
