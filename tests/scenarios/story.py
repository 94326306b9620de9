"""The commands of the scheduler's stories: a core's inputs, and its outputs as text.

    client NAME                         nested NAME in=WORKER
    worker NAME slots=1 queue=1000 offers=gpu=1,linux
    submit CLIENT TASK... after=TASK,TASK needs=gpu=1 priority=0 retries=3
    done WORKER TASK... outcome=success seconds=0.01 attempt=N
    return WORKER TASK... started=no    suspend WORKER TASK...    resume WORKER TASK...
    cancel CLIENT TASK...               clear CLIENT              seen CLIENT NUMBER
    break NAME                          back NAME                 leave NAME
    wait SECONDS silent=NAME,NAME       show

An attempt is shown as task/attempt, an input in parentheses behind it. Every invariant is checked after every step.
"""

from __future__ import annotations

from collections.abc import Callable

from scaler.capabilities import parse_capabilities
from scaler.needs import Needs
from scaler.net.connection import Resumed
from scaler.protocol.messages import (
    AcknowledgeResults,
    Clear,
    Done,
    Drain,
    Finished,
    ForgetFunctions,
    ForgetObjects,
    ForgetOwner,
    HeartbeatEcho,
    Message,
    Outcome,
    Recall,
    ReleaseResults,
    Run,
    Suspended,
)
from scaler.scheduler.core import commands as core_commands
from scaler.scheduler.core.state import Assigned, Delayed, Ready, Recalled, Task, Waiting
from tests.scenarios.transcript import Command
from tests.unit.scheduler.driver import FUNCTION, Alternating, Cluster, delivered


class Story:
    """One core, with its peers and tasks by their names in the story."""

    def __init__(self) -> None:
        self._cluster = Alternating()
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._commands: dict[str, Callable[[Command], list[str] | None]] = {
            "client": self._client,
            "nested": self._nested,
            "worker": self._worker,
            "submit": self._submit,
            "done": self._done,
            "return": self._return,
            "suspend": self._suspend,
            "resume": self._suspend,
            "cancel": self._cancel,
            "clear": lambda command: self._say(command.words[0], Clear()),
            "seen": lambda command: self._say(command.words[0], AcknowledgeResults(int(command.words[1]))),
            "break": lambda command: self._cluster.break_connection(command.words[0]),
            "back": self._back,
            "leave": lambda command: self._cluster.leave(command.words[0], command.option("text")),
            "wait": self._wait,
            "show": self._show,
        }

    def run(self, command: Command) -> list[str]:
        """Execute a command, and return the core's output. Raises ValueError for an invalid command."""
        before = len(self._cluster.commands)
        if command.name not in self._commands:
            raise ValueError(f"{command.name!r} is no command of these stories")
        shown = self._commands[command.name](command)
        if command.options:
            raise ValueError(f"{command.name} knows no option {', '.join(command.options)}")
        if shown is not None:
            return shown
        return [line for said in self._cluster.commands[before:] for line in self._tell(said)] or ["nothing is said"]

    # -- commands

    def _say(self, name: str, message: Message) -> None:
        self._cluster.say(name, message)

    def _client(self, command: Command) -> None:
        self._cluster.client(command.words[0])

    def _nested(self, command: Command) -> None:
        self._cluster.nested(command.words[0], command.option("in"))

    def _worker(self, command: Command) -> None:
        self._cluster.worker(
            command.words[0],
            parse_capabilities(command.option("offers")),
            int(command.option("slots", "1")),
            int(command.option("queue", "1000")),
        )

    def _submit(self, command: Command) -> None:
        client, *names = command.words
        for name in names:
            if name not in self._ids:
                self._ids[name] = self._cluster.task_id(client)
                self._names[self._ids[name]] = name
        ids = [self._ids[name] for name in names]
        after = tuple(self._ids[name] for name in command.items("after"))
        self._cluster.submit(
            client,
            ids=ids,
            references=[after] * len(ids) if after else [],
            needs=Needs.of(parse_capabilities(command.option("needs"))).items,
            priority=int(command.option("priority", "0")),
            retries=int(command.option("retries", "3")),
            parent=self._ids.get(command.option("parent"), b""),
        )

    def _attempts(self, command: Command) -> tuple[str, list[bytes], list[int]]:
        worker, *names = command.words
        given = command.option("attempt")
        ids = [self._ids[name] for name in names]
        held = self._cluster.state.workers[Cluster.peer(worker)].tasks if not given else {}
        return worker, ids, [int(given) if given else held[identifier].attempt for identifier in ids]

    def _done(self, command: Command) -> None:
        worker, ids, attempts = self._attempts(command)
        outcome = Outcome[command.option("outcome", "success").upper()]
        text = command.option("text", "value" if outcome is Outcome.SUCCESS else outcome.name.lower())
        payloads = [f"{text} of {self._attempt(*row)}".encode() for row in zip(ids, attempts, strict=True)]
        durations = [int(float(command.option("seconds", "0.01")) * 1e6)] * len(ids)
        self._say(worker, Done(ids, attempts, [outcome] * len(ids), payloads, durations))

    def _return(self, command: Command) -> None:
        started = command.option("started", "no") == "yes"
        worker, *names = command.words
        self._cluster.give_back(worker, *(self._ids[name] for name in names), started=started)

    def _suspend(self, command: Command) -> None:
        worker, ids, attempts = self._attempts(command)
        self._say(worker, Suspended(ids, attempts, [command.name == "suspend"] * len(ids)))

    def _cancel(self, command: Command) -> None:
        client, *names = command.words
        self._cluster.cancel(client, *(self._ids[name] for name in names))

    def _back(self, command: Command) -> None:
        self._cluster.step(Resumed(Cluster.peer(command.words[0])))

    def _wait(self, command: Command) -> None:
        core = self._cluster.core
        silent = command.items("silent")
        peers = [client.id for client in core.state.clients.values() if client.broken_at is None]
        peers += [worker.id for worker in core.state.workers.values() if worker.broken_at is None]
        names = [peer.rstrip(b".").decode() for peer in peers]
        self._cluster.wait(float(command.words[0]), [name for name in names if name not in silent])

    # -- in words

    def _show(self, _command: Command) -> list[str]:
        core = self._cluster.core
        lines = []
        for client in core.state.clients.values():
            states = [f"{self._names[task.id]} {self._state(task)}" for task in client.tasks.values()]
            lines.append(f"{self._peer(client.id)}: {', '.join(states) or 'no tasks'}")
        for worker in core.state.workers.values():
            held = " ".join(self._attempt(task.id, task.attempt) for task in worker.tasks.values())
            lines.append(f"{self._peer(worker.id)}: {held or 'idle'}")
        return lines or ["nobody is here"]

    def _state(self, task: Task) -> str:
        match task.state:
            case Waiting(missing=missing):
                return f"waits for {missing}"
            case Ready():
                return "is ready"
            case Delayed(until=until):
                return f"is ready in {until - self._cluster.now:.2f} s"
            case Assigned(worker=worker):
                return f"is on {self._peer(worker.id)}"
            case Recalled(worker=worker, cancel=cancel):
                return f"is recalled from {self._peer(worker.id)}{' to be cancelled' if cancel else ''}"
            case _:
                raise AssertionError("a task that ended is in no table")

    @staticmethod
    def _peer(identifier: bytes) -> str:
        return identifier.rstrip(b".").decode()

    def _attempt(self, identifier: bytes, attempt: int) -> str:
        return f"{self._names[identifier]}/{attempt}"

    def _stored(self, identifier: bytes) -> str:
        """Name a stored result: the value an attempt may have left in the storage."""
        task = identifier[:8] + bytes(2) + identifier[10:]
        return f"the result of {self._attempt(task, int.from_bytes(identifier[8:10], 'big'))}"

    def _tell(self, command: core_commands.Command) -> list[str]:
        match command:
            case core_commands.Send():
                peer, message = delivered(command)
                text = self._message(message)
                return [f"{self._peer(peer)} <- {text}"] if text else []
            case core_commands.Expel(peer, reason):
                return [f"{self._peer(peer)} is expelled: {reason.text}"]
            case core_commands.SendToStorage(message):
                if isinstance(message, ForgetOwner):
                    return [f"storage <- forget all of {self._peer(message.owner)}"]
                assert isinstance(message, ForgetObjects), "stories have no stores of hosts"
                return [f"storage <- forget {', '.join(map(self._stored, message.ids))}"]
            case core_commands.Stop(text):
                return [f"stop: {text}"]
            case (
                core_commands.AskPolicy()
                | core_commands.HoldObjects()
                | core_commands.Publish()
                | core_commands.Perform()
            ):
                return []

    def _message(self, message: Message) -> str:
        match message:
            case ReleaseResults(numbers):
                return f"release results {', '.join(map(str, numbers))}"
            case Run(definitions, groups):
                attempts = []
                for group in groups:
                    for index, identifier in enumerate(group.ids):
                        inputs = group.inputs[index] if group.inputs else ()
                        shown = f"({', '.join(payload.decode() for payload in inputs)})" if inputs else ""
                        attempts.append(self._attempt(identifier, group.attempts[index]) + shown)
                return f"{'define function, ' if definitions else ''}run {' '.join(attempts)}"
            case Recall(ids, attempts, kill):
                rows = zip(ids, attempts, strict=True)
                return f"{'kill' if kill else 'recall'} {' '.join(self._attempt(*row) for row in rows)}"
            case Finished(number, ids, outcomes, payloads):
                ends = [
                    f"{self._names[identifier]} {Outcome(outcome).name.lower()} {payload.decode()!r}"
                    for identifier, outcome, payload in zip(ids, outcomes, payloads, strict=True)
                ]
                return f"finished {number}: {', '.join(ends)}"
            case ForgetFunctions(ids):
                return "undefine " + " ".join("function" if key == FUNCTION else key.hex() for key in ids)
            case Drain(text):
                return f"drain: {text}"
            case HeartbeatEcho():
                return ""
            case _:
                return repr(message)
