"""A cluster of one core and scripted peers: tests send events and check the core's answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from scaler.config.servers import SchedulerConfig
from scaler.extensions.interface import SchedulerPart
from scaler.ids import IdFactory, content_id
from scaler.net.connection import LOCAL, Broken, Closed, Identity, Opened, Received, Resumed, TryAgain
from scaler.policy.load import GuardedPolicy
from scaler.policy.view import Allocation, ClusterView, ScalingPolicy, Wanted
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Cancel,
    ClientDetails,
    Done,
    Finished,
    Heartbeat,
    Hello,
    ManagerDetails,
    Message,
    Outcome,
    Recall,
    Refused,
    Returned,
    Role,
    Run,
    Spec,
    StoreDetails,
    Submit,
    TaskGroup,
    WorkerDetails,
)
from scaler.scheduler.core.changes import Action, Change, TasksEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import (
    AskPolicy,
    Command,
    Input,
    PolicyAnswered,
    Publish,
    Relayed,
    Send,
    SendToStorage,
)
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Now, Rooms
from scaler.scheduler.rooms import make_scaling
from scaler.testing.invariants import check
from scaler.testing.simulation.stepping import built_in

if TYPE_CHECKING:  # tests/rooms deletes the extension
    from scaler.extensions.data_plane.stores import HostStores

CODE = b"\x80 function"
FUNCTION = content_id(CODE)
VALUE = b"\x80 value"


def host_stores(state: ClusterState) -> HostStores:
    return cast("HostStores", state.rooms.stores)


class NoScaling:
    def __init__(self, allocation: Allocation | None = None) -> None:
        self.allocation = allocation or Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {}


def delivered(command: Send) -> tuple[bytes, Message]:
    """Return a message and its recipient: a client inside a task receives its messages through a worker."""
    return command.nested or command.peer, command.message


class Remembering(SchedulerPart):
    """Records all tasks that ended."""

    changes = (TasksEnded,)

    def __init__(self) -> None:
        self._batches: list[TasksEnded] = []

    def on_changes(self, changes: Sequence[TasksEnded], _now: Now) -> tuple[()]:
        self._batches += changes
        return ()

    def remembered(self) -> Remembering:
        return self

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        found = [(ended, index) for ended, index in self.latest(sys.maxsize) if ended.ids[index] == task]
        return found[-1] if found else None

    def latest(self, limit: int) -> list[tuple[TasksEnded, int]]:
        return [(ended, index) for ended in self._batches for index in range(len(ended))][-limit:]


CHECK_EVERY = 4
"""Number of steps. Simulations and properties also check the invariants."""


class Cluster(SchedulerPart):
    """Feeds the core, and checks every invariant after some steps. Peers have short names."""

    _steps = 0
    check_every = CHECK_EVERY

    changes: ClassVar[tuple[type, ...]] = (Action,)
    """Participates in the core like an extension."""
    parts: Sequence[Callable[[], Any]] = (Remembering,)
    """Creates parts of extensions, in addition to `extensions`."""
    extensions: Sequence[str] = ("explain", "resources", "scaling", "data_plane", "durability", "sharing", "near")

    def __init__(self, policy: ScalingPolicy | None = None, **settings: Any) -> None:
        self.now = 100.0
        policy = policy or NoScaling()
        config = SchedulerConfig(bind_address="tcp://127.0.0.1:0", **settings)
        self.facts: list[Change] = []
        self.rooms = Rooms([self, *built_in(*self.extensions), *(make() for make in self.parts)])
        self.scaling = make_scaling(policy.allocation)
        self.core = SchedulerCore(config, self.now, self.scaling, rooms=self.rooms)
        self.state = self.core.state
        self.policy: GuardedPolicy | None = GuardedPolicy(policy)
        """None for a policy that does not answer."""
        self.said: list[tuple[str, Message]] = []
        self.commands: list[Command] = []
        self._factories: dict[str, IdFactory] = {}

    def on_changes(self, changes: Sequence[Any], _now: Now) -> tuple[()]:
        self.facts += changes
        return ()

    @staticmethod
    def peer(name: str) -> bytes:
        return name.encode().ljust(8, b".")

    def step(self, *inputs: Input) -> list[Command]:
        """Step the core, and once more with the policy's answer if asked. Returns the commands of both."""
        commands = self.step_once(*inputs)
        for command in list(commands):
            match command:
                case Send():
                    peer, message = delivered(command)
                    self.said.append((peer.rstrip(b".").decode(), message))
                case SendToStorage(message):
                    self.said.append(("storage", message))
                case Publish(facts):
                    self.facts += facts
                case AskPolicy(view) if self.policy is not None:
                    commands += self.step(PolicyAnswered(*self.policy.plan(view)))
                case _:
                    pass
        return commands

    def step_once(self, *inputs: Input) -> list[Command]:
        commands = self.core.step(list(inputs), self.now)
        self._steps += 1
        if self._steps % self.check_every == 0:
            check(self.state)
        self.commands.extend(commands)
        return commands

    def take_facts(self) -> list[Change]:
        """Return all facts since the last call."""
        facts, self.facts = self.facts, []
        return facts

    def wait(self, seconds: float, alive: Iterable[str] = ()) -> None:
        """Let time pass in ticks; the named peers stay in touch."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            self.step(*(Resumed(self.peer(name)) for name in alive))

    # -- peers

    def client(
        self,
        name: str = "client",
        title: str | None = None,
        *,
        identity: Identity = LOCAL,
        role: Role = Role.CLIENT,
        session: str = "",
    ) -> str:
        """A client joins, or returns with a new session. title: display name, by default its name.

        session: the name of its durable session.
        """
        self._factories.setdefault(name, IdFactory(self.peer(name)))
        self.step(Opened(self.peer(name), self._hello(role, ClientDetails(title or name, session)), identity))
        return name

    def refusal(
        self,
        name: str,
        identity: Identity = LOCAL,
        details: ManagerDetails | None = None,
        session: str = "",
        own: bool = False,
    ) -> str:
        """Why a client or a manager is refused; empty if admitted. own: it already has the session."""
        refused = self._admission(name, identity, details or ClientDetails(name, session), own)
        assert not isinstance(refused, TryAgain)
        return refused.text if refused is not None else ""

    def tries_again(
        self, name: str, identity: Identity = LOCAL, session: str = "", details: ManagerDetails | None = None
    ) -> str:
        """Why the admission of a client or a manager is undecided; empty if decided."""
        answer = self._admission(name, identity, details or ClientDetails(name, session), False)
        return answer.text if isinstance(answer, TryAgain) else ""

    def _admission(
        self, name: str, identity: Identity, details: ManagerDetails | ClientDetails, own: bool
    ) -> Refused | TryAgain | None:
        hello = self._hello(Role.MANAGER if isinstance(details, ManagerDetails) else Role.CLIENT, details)
        return self.core.refusal(self.peer(name), replace(hello, resume=own), identity, self.now)

    def worker(
        self,
        name: str,
        capabilities: dict[str, float | None] | None = None,
        slots: int = 1,
        queue_size: int = 1000,
        manager_id: str = "manager",
        memory_bytes: float = 0,
        memory_pool: str = "",
        death_timeout_seconds: float = 0.0,
    ) -> str:
        offers = capabilities or {}
        rest = int(memory_bytes), memory_pool, death_timeout_seconds
        details = WorkerDetails(manager_id, f"unit-{name}", slots, queue_size, offers, *rest)
        self.step(Opened(self.peer(name), self._hello(Role.WORKER, details)))
        return name

    def nested(self, name: str, via: str, task: bytes = b"") -> str:
        """A client inside a task sends its first message, through this worker."""
        self._factories.setdefault(name, IdFactory(self.peer(name)))
        self.relay(name, via, Heartbeat(self.now), task)
        return name

    def relay(self, name: str, via: str, message: Message, task: bytes = b"") -> None:
        self.step(Relayed(self.peer(via), self.peer(name), task, message))

    def workers(self, names: Iterable[str], manager_id: str = "manager") -> None:
        """Many workers with one slot, in one batch."""
        self.step(
            *(
                Opened(
                    self.peer(name), self._hello(Role.WORKER, WorkerDetails(manager_id, f"unit-{name}", 1, 1000, {}))
                )
                for name in names
            )
        )

    def manager(
        self,
        name: str,
        max_concurrency: int = 8,
        *,
        manager_id: str | None = None,
        unit_slots: int = 1,
        capabilities: dict[str, float | None] | None = None,
        fixed: bool = False,
        unit_memory_bytes: float = 0,
        backlog: int = 0,
        unit_price: float = 0.0,
        unit_minimum_seconds: float = 0.0,
        usual_dispatch_seconds: float = 0.0,
        charges_tasks: bool = False,
        **warm: int,
    ) -> str:
        """Let a manager join. warm: settings of its warm capacity."""
        details = ManagerDetails(
            manager_id or name,
            "test",
            capabilities=capabilities or {},
            max_slots=max_concurrency,
            unit_slots=unit_slots,
            fixed=fixed,
            unit_memory_bytes=int(unit_memory_bytes),
            backlog=backlog,
            unit_price=unit_price,
            unit_minimum_seconds=unit_minimum_seconds,
            usual_dispatch_seconds=usual_dispatch_seconds,
            charges_tasks=charges_tasks,
            **warm,
        )
        self.step(Opened(self.peer(name), self._hello(Role.MANAGER, details)))
        return name

    def store(self, name: str, *, is_back: bool = False) -> str:
        """The store of a host joins. is_back: an earlier scheduler knew it."""
        hello = self._hello(Role.STORE, StoreDetails(f"tcp://{name}:1", f"key of {name}", -1))
        self.step(Opened(self.peer(name), replace(hello, resume=is_back, hostname=f"host-of-{name}")))
        return name

    @staticmethod
    def _hello(role: Role, details: ClientDetails | WorkerDetails | ManagerDetails | StoreDetails) -> Hello:
        return Hello(role, False, PROTOCOL_VERSION, "", "", "", "host", 1, details)

    def say(self, name: str, message: Message) -> list[Command]:
        return self.step(Received(self.peer(name), message))

    def break_connection(self, name: str) -> None:
        self.step(Broken(self.peer(name)))

    def leave(self, name: str, text: str = "") -> None:
        self.step(Closed(self.peer(name), text))

    # -- tasks

    def task_id(self, client: str) -> bytes:
        return self._factories[client].task()

    def object_id(self, client: str) -> bytes:
        return self._factories[client].object()

    def submit(
        self,
        client: str,
        count: int = 1,
        *,
        references: Sequence[tuple[bytes, ...]] = (),
        seen: int = 0,
        ids: list[bytes] | None = None,
        labels: Sequence[tuple[bytes, ...]] = (),
        again: int = 0,
        calls: Sequence[int] = (),
        **options: object,
    ) -> list[bytes]:
        """Submit tasks of one group; options are fields of Spec. Returns their ids. calls: of each chunk."""
        spec = Spec(**{"function": FUNCTION, "name": "function", **options})  # type: ignore[arg-type]
        ids = ids or [self.task_id(client) for _ in range(count)]
        group = TaskGroup(spec, ids, [b"\x80 arguments"] * len(ids), list(references), list(labels), list(calls))
        self.say(client, Submit([(FUNCTION, CODE)], [group], seen, again))
        return ids

    def cancel(self, client: str, *ids: bytes) -> None:
        self.say(client, Cancel(list(ids)))

    def finish(
        self,
        worker: str,
        *ids: bytes,
        outcome: Outcome = Outcome.SUCCESS,
        payload: bytes = VALUE,
        seconds: float = 0.01,
        attempt: int | None = None,
        calls: tuple[int, int] = (0, 0),
    ) -> None:
        """The worker reports that these ended, in their current attempt unless another is given.

        calls: how many calls ended in each of these chunks, and how many of those failed.
        """
        tasks = self.state.workers[self.peer(worker)].tasks
        attempts = [attempt if attempt is not None else tasks[task].attempt for task in ids]
        count = len(ids)
        done = Done(list(ids), attempts, [outcome] * count, [payload] * count, [int(seconds * 1e6)] * count)
        if calls[0]:
            done.calls, done.failed_calls = [calls[0]] * count, [calls[1]] * count
        self.say(worker, done)

    def give_back(self, worker: str, *ids: bytes, started: bool = False) -> None:
        tasks = self.state.workers[self.peer(worker)].tasks
        self.say(worker, Returned(list(ids), [tasks[task].attempt for task in ids], [started] * len(ids)))

    # -- sent messages

    def on(self, worker: str) -> list[bytes]:
        """Tasks that the core believes this worker has, in dispatch order."""
        return list(self.state.workers[self.peer(worker)].tasks)

    def outcomes(self, client: str) -> dict[bytes, tuple[Outcome, bytes]]:
        """All outcomes reported to a client; fails if one was reported twice."""
        found: dict[bytes, tuple[Outcome, bytes]] = {}
        for name, message in self.said:
            if name == client and isinstance(message, Finished):
                for task, outcome, payload in zip(message.ids, message.outcomes, message.payloads, strict=True):
                    assert task not in found, "an outcome was sent twice"
                    found[task] = (Outcome(outcome), payload)
        return found

    def outcome(self, client: str, task: bytes) -> Outcome | None:
        told = self.outcomes(client).get(task)
        return told[0] if told else None

    def runs(self, worker: str) -> list[tuple[bytes, int, tuple[bytes, ...]]]:
        """Every attempt sent to a worker: task, attempt, inputs."""
        return [
            (task, group.attempts[index], group.inputs[index] if group.inputs else ())
            for name, message in self.said
            if name == worker and isinstance(message, Run)
            for group in message.groups
            for index, task in enumerate(group.ids)
        ]

    def recalls(self, worker: str, *, kill: bool) -> list[bytes]:
        return [
            task
            for name, message in self.said
            if name == worker and isinstance(message, Recall) and message.kill is kill
            for task in message.ids
        ]


class Alternating(Cluster):
    """Clients alternate task by task, because the extension `sharing` is missing."""

    extensions = tuple(each for each in Cluster.extensions if each != "sharing")
