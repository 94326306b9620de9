"""A model of the scheduler core from the peers' view, which checks every message that the core sends."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler.ids import is_task, result_id
from scaler.needs import Needs, Offers
from scaler.protocol import messages as m


def value_of(task: bytes, attempt: int) -> bytes:
    """Return a value unique to this attempt. Every third value is in the storage."""
    if (task[-1] + attempt) % 3 == 0:
        return m.stored_reference(result_id(task, attempt), 10**7)
    return b"\x80" + task + bytes([attempt])


def exception_of(task: bytes, attempt: int) -> bytes:
    if (task[-1] + attempt) % 3 == 1:
        return m.stored_reference(result_id(task, attempt), 10**5)
    return b"\x80 raised by " + task + bytes([attempt])


@dataclass
class ModelTask:
    spec: m.Spec
    references: tuple[bytes, ...]
    attempt: int = 0
    starts: int = 0
    """Number of times that the task was sent and may have started."""
    cancelled: bool = False
    value: bytes | None = None
    raised: set[bytes] = field(default_factory=set)
    raises: int = 0
    """Number of attempts that ended with an exception."""
    ended: m.Outcome | None = None


@dataclass
class ModelClient:
    """One session of a client."""

    via: str | None = None
    held: set[bytes] = field(default_factory=set)
    """Stored results that the client received and has not released."""
    tasks: dict[bytes, ModelTask] = field(default_factory=dict)
    number: int = 0
    missing: dict[bytes, None] = field(default_factory=dict)
    """Objects that the client was asked to restore and has not answered."""

    @property
    def unresolved(self) -> list[bytes]:
        return [key for key, task in self.tasks.items() if task.ended is None]

    def lineage(self, task: bytes) -> list[ModelTask]:
        """Return the task and all its dependencies."""
        found: dict[bytes, ModelTask] = {}
        left = [task]
        while left:
            key = left.pop()
            if key in self.tasks and key not in found:
                found[key] = self.tasks[key]
                left.extend(self.tasks[key].references)
        return list(found.values())


@dataclass
class ModelWorker:
    """One session of a worker, with its attempts in order of arrival. up: whether it is connected."""

    offers: Offers
    slots: int
    limit: int
    up: bool = True
    draining: bool = False
    attempts: dict[bytes, int] = field(default_factory=dict)
    owners: dict[bytes, ModelClient] = field(default_factory=dict)
    recalled: dict[bytes, bool] = field(default_factory=dict)
    """Recalled attempts without an answer, each with whether to kill it."""
    known: set[bytes] = field(default_factory=set)
    suspended: set[bytes] = field(default_factory=set)

    def forget(self, task: bytes) -> None:
        del self.attempts[task]
        del self.owners[task]
        self.recalled.pop(task, None)
        self.suspended.discard(task)


class Model:
    """Every open session, and the rules for its messages. `judge` raises AssertionError."""

    def __init__(self) -> None:
        self.clients: dict[str, ModelClient] = {}
        self.workers: dict[str, ModelWorker] = {}

    def judge(self, name: str, message: m.Message) -> None:
        match message:
            case m.Finished() if name in self.clients:
                self._finished(self.clients[name], message)
            case m.ObjectsMissing(ids) if name in self.clients:
                missing = self.clients[name].missing
                assert missing.keys().isdisjoint(ids), "a client is asked once for each object"
                missing.update(dict.fromkeys(ids))
            case m.Run() if name in self.workers:
                self._run(self.workers[name], message)
            case m.Recall() if name in self.workers:
                self._recall(self.workers[name], message)
            case m.ForgetFunctions(ids) if name in self.workers:
                assert self.workers[name].known.issuperset(ids), "a worker drops only what it received before"
                self.workers[name].known.difference_update(ids)
            case m.Drain() if name in self.workers:
                assert not self.workers[name].draining, "a worker receives Drain once"
                self.workers[name].draining = True
            case m.Finished() | m.ObjectsMissing() | m.Run() | m.Recall() | m.ForgetFunctions() | m.Drain():
                raise AssertionError(f"{name} has ended and receives {message}")
            case _:
                pass

    # -- messages to clients

    def _finished(self, client: ModelClient, message: m.Finished) -> None:
        assert message.number == client.number + 1, "Finished are numbered from 1 on"
        client.number += 1
        for identifier, code, payload in zip(message.ids, message.outcomes, message.payloads, strict=True):
            task = client.tasks.get(identifier)
            assert task is not None, "only submitted tasks end"
            assert task.ended is None, "a task ends once"
            task.ended = m.Outcome(code)
            if m.is_stored(payload):
                client.held.add(payload[1:17])
            lineage = client.lineage(identifier)
            match task.ended:
                case m.Outcome.SUCCESS:
                    assert task.value is not None, "a success was reported by the worker that had the task"
                    assert payload == (task.value if task.spec.deliver else b""), "a task gets its own value"
                case m.Outcome.EXCEPTION:
                    raised = [raised for other in lineage for raised in other.raised]
                    assert payload in raised, "an exception comes from the task or from a dependency"
                case m.Outcome.CANCELLED:
                    assert any(other.cancelled for other in lineage), "only cancelled tasks end as cancelled"
                case m.Outcome.EXCEPTION_TO_RETRY | m.Outcome.NOT_STARTED | m.Outcome.INPUT_MISSING:
                    raise AssertionError("this outcome is only for workers and the scheduler")
                case _:
                    assert payload, "an end without a value has a reason"

    def forgets(self, ids: list[bytes]) -> None:
        """Check the objects that the storage is told to forget."""
        for client in self.clients.values():
            assert client.held.isdisjoint(ids), "a client's result is kept until the client releases it"
            for task in client.tasks.values():
                if task.ended is None and task.attempt:
                    needed = [self._input(client, reference) for reference in task.references]
                    assert all(value[1:17] not in ids for value in needed if m.is_stored(value)), "inputs are kept"

    # -- messages to workers

    def _run(self, worker: ModelWorker, message: m.Run) -> None:
        assert worker.up, "a worker out of contact gets no tasks"
        assert not worker.draining, "a worker that drains gets no tasks"
        for identifier, _ in message.functions:
            assert identifier not in worker.known, "a function is announced once"
            worker.known.add(identifier)
        for group in message.groups:
            assert group.spec.function in worker.known, "a function is known before its first task"
            assert Needs(group.spec.needs).fits(worker.offers), "a worker gets only tasks that it can run"
            for index, identifier in enumerate(group.ids):
                inputs = group.inputs[index] if group.inputs else ()
                self._attempt(worker, identifier, group.attempts[index], inputs)

    def _attempt(self, worker: ModelWorker, identifier: bytes, attempt: int, inputs: tuple[bytes, ...]) -> None:
        owner = next((client for client in self.clients.values() if identifier in client.tasks), None)
        assert owner is not None, "only tasks of connected clients are sent"
        task = owner.tasks[identifier]
        assert task.ended is None, "a task that has ended never runs again"
        assert not task.cancelled, "a task that was cancelled is not sent"
        assert attempt > task.attempt, "attempt numbers increase"
        assert identifier not in worker.attempts, "a worker has at most one attempt of a task"
        elsewhere = [other.owners.get(identifier) for other in self.workers.values()]
        assert all(other is not owner for other in elsewhere), "a task is on one worker at a time"
        task.attempt = attempt
        task.starts += 1
        assert task.spec.retries or task.starts == 1, "retries=0: started at most once"
        assert not task.raises or task.spec.failed + task.raises <= task.spec.retries, "no more often than retries"
        assert inputs == tuple(self._input(owner, reference) for reference in task.references), "inputs are right"
        worker.attempts[identifier] = attempt
        worker.owners[identifier] = owner
        assert len(worker.attempts) - len(worker.suspended) <= worker.limit, "no more than the worker's queue holds"

    @staticmethod
    def _input(client: ModelClient, reference: bytes) -> bytes:
        if not is_task(reference):
            return m.stored_reference(reference, 0)
        value = client.tasks[reference].value
        assert value is not None, "a dependency has a value before the task is sent"
        return value

    def _recall(self, worker: ModelWorker, message: m.Recall) -> None:
        for identifier, attempt in zip(message.ids, message.attempts, strict=True):
            assert worker.attempts.get(identifier) == attempt, "only the worker's own attempts are recalled"
            if message.kill:
                owner = worker.owners[identifier]
                gone = all(client is not owner for client in self.clients.values())
                assert gone or owner.tasks[identifier].cancelled, "only cancelled tasks are killed"
            worker.recalled[identifier] = worker.recalled.get(identifier, False) or message.kill

    # -- messages from workers

    def ends(self, worker: ModelWorker, identifier: bytes, outcome: m.Outcome, payload: bytes) -> None:
        """Record that an attempt ended, as reported by its worker."""
        task = worker.owners[identifier].tasks[identifier]
        if outcome is m.Outcome.SUCCESS:
            task.value = payload
        if outcome in (m.Outcome.EXCEPTION, m.Outcome.EXCEPTION_TO_RETRY):
            task.raised.add(payload)
            task.raises += 1
        if outcome in (m.Outcome.NOT_STARTED, m.Outcome.INPUT_MISSING):
            task.starts -= 1
        worker.forget(identifier)

    def gives_back(self, worker: ModelWorker, identifier: bytes, started: bool) -> None:
        if started:
            worker.recalled.pop(identifier, None)
        else:
            worker.owners[identifier].tasks[identifier].starts -= 1
            worker.forget(identifier)
