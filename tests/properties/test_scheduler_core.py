"""The scheduler core keeps its invariants and promises for any actions of its peers, in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from scaler.extensions.durability.ledger import Ledger, from_bytes, to_bytes
from scaler.ids import IdFactory, content_id
from scaler.monitor.cluster_rows import SchedulerRow, StorageRow
from scaler.monitor.reports.status import ServerStatus, status
from scaler.monitor.rows import objects
from scaler.needs import Offers
from scaler.net.connection import Resumed
from scaler.object_storage.messages import ObjectsHeld, UseBackend
from scaler.policy.load import load_policy
from scaler.protocol import messages as m
from scaler.scheduler.core.commands import Command, Input, Perform, Send, SendToStorage, StorageConnected, StorageSaid
from scaler.scheduler.core.state import Assigned, Recalled
from tests.extensions.durability.journaled import Journaled
from tests.properties.cluster_model import Model, ModelClient, ModelTask, ModelWorker, exception_of, value_of
from tests.unit.scheduler.driver import Cluster, delivered

NOTHING = ServerStatus(0.0, 1, SchedulerRow(), StorageRow(), {}, {})
CLIENTS = ("alice", "bob", "nest1", "nest2")
WORKERS = ("w1", "w2", "w3", "w4")
MANAGERS = ("m1", "m2")
STORES = ("s1", "s2", "s3")
CODE = {content_id(code): code for code in (b"\x80 one", b"\x80 two", b"\x80 three")}
FUNCTIONS = tuple(CODE)
CAPABILITIES: tuple[dict[str, float | None], ...] = (
    {"memory": 8.0},
    {"gpu": 1.0},
    {"gpu": 2.0, "memory": 6.0, "cpus": 6.0},
    {"gpu": None, "big": 4.0},
)
NEEDS: tuple[tuple[tuple[str, float], ...], ...] = (
    (),
    (),
    (),
    (("gpu", 1.0),),
    (("gpu", 0.5), ("memory", 3.0)),
    (("cpus", 2.0),),
    (("cpus", 1.5), ("memory", 5.0)),
    (("big", 2.0), ("gpu", 2.0)),
)
STRANGER = IdFactory(b"stranger")
UNKNOWN = (STRANGER.task(), STRANGER.object())

clients = st.sampled_from(CLIENTS)
workers = st.sampled_from(WORKERS)
picks = st.integers(0, 2**16)
rarely = st.sampled_from((False, False, True))
specs = st.builds(
    m.Spec,
    function=st.sampled_from(FUNCTIONS),
    needs=st.sampled_from(NEEDS),
    priority=st.sampled_from((0, 0, 1)),
    retries=st.sampled_from((0, 1, 3, 3)),
    retry_on=st.sampled_from((b"", b"types")),
    losses=st.sampled_from((0, 0, 1, 3)),
    retry_delays=st.sampled_from(((), (), (0.0,), (0.5, 2.0))),
    retry_jitter=st.sampled_from((0.0, 1.0)),
    failed=st.sampled_from((0, 0, 0, 1)),
    deliver=st.sampled_from((True, True, False)),
    parent=st.sampled_from((b"", b"", STRANGER.task())),
    profiling=st.booleans(),
    name=st.just("work"),
)
nonsense: st.SearchStrategy[m.Message] = st.sampled_from(
    [
        m.Acknowledge(),
        m.Clear(),
        m.Desired(3, [], ""),
        m.Done([UNKNOWN[0]], [1], [m.Outcome.SUCCESS], [m.stored_reference(UNKNOWN[1], 1)], [1]),
        m.Heartbeat(1.0),
        m.ObjectsRestored([UNKNOWN[1]], [UNKNOWN[0]], "never asked"),
        m.Pin([UNKNOWN[1]]),
        m.Release([UNKNOWN[1], FUNCTIONS[0]]),
        m.ManagerStatus(0.0, [m.UnitStatus("unit-w1", m.UnitState.PENDING, 1, 1.0)], ""),
        m.Output(UNKNOWN[0], False, b"text"),
        m.RelayClosed(b"stranger"),
        m.Returned([UNKNOWN[0]], [1], [False]),
        m.Run([], []),
        m.Recall([UNKNOWN[0]], [1], True),
        m.AcknowledgeResults(10**9),
        m.Submit([], [m.TaskGroup(m.Spec(bytes(16)), [UNKNOWN[0]], [b"\x80"])]),
        m.Started([UNKNOWN[0]]),
        m.Suspended([UNKNOWN[0]], [1], [True]),
        m.WorkerHeartbeat(1.0, 1.0, 1, 1, 0.1),
    ]
)


def pick(options: Sequence[bytes], picked: Sequence[int]) -> list[bytes]:
    return [options[number % len(options)] for number in picked] if options else []


def has_work(machine: SchedulerAndPeers) -> bool:
    """Return whether some worker has tasks."""
    return bool(machine.working())


class JudgedCluster(Cluster):
    """Calls the judge after every step."""

    parts = (*Cluster.parts, Journaled)
    extensions = ("explain", "resources", "scaling", "data_plane")

    def __init__(self, judge: Callable[[], None], limit: int) -> None:
        super().__init__(load_policy("simple", "scaling=vanilla"), max_number_of_tasks_waiting=limit)
        self._judge = judge
        self._ledger = Ledger()

    def step(self, *inputs: Input) -> list[Command]:
        commands = super().step(*inputs)
        self._judge()
        return commands

    def step_once(self, *inputs: Input) -> list[Command]:
        commands = super().step_once(*inputs)
        if commands and isinstance(commands[-1], Perform):
            for change in from_bytes(to_bytes(commands[-1].work)):
                self._ledger.apply(change)
        assert not any(isinstance(command, Perform) for command in commands[:-1])
        self._compare_with_journal()
        return commands

    def _compare_with_journal(self) -> None:
        """Check that the journal equals the core's client state, except for tasks."""
        clients = {name: client for name, client in self.state.clients.items() if client.via is None}
        found = {each.client: each for each in self._ledger.recovered()}
        assert found.keys() == clients.keys()
        for name, client in clients.items():
            recovered = found[name]
            tasks = {
                row[0]: (group.spec, *row[1:])
                for group in recovered.submit.groups
                for row in zip(group.ids, group.payloads, group.references, strict=True)
            }
            assert tasks == {
                task.id: (task.group.spec, task.payload, task.references) for task in client.tasks.values()
            }
            results = {
                task: (outcome, recovered.values.get(task, payload))
                for message in recovered.results
                for task, outcome, payload in zip(message.ids, message.outcomes, message.payloads, strict=True)
            }
            assert results == {task: (each.outcome, each.payload) for task, each in client.retained.items()}
            failed = {task: each.failed_input for task, each in client.retained.items() if each.outcome}
            assert recovered.failed_inputs == failed
            functions = {function for function, _ in recovered.submit.functions}
            assert functions >= {function for spec in client.groups for function in spec.registered}
            once = {task.id: task.state for task in client.tasks.values() if not task.group.spec.retries}
            placed = {task: state for task, state in once.items() if isinstance(state, Assigned | Recalled)}
            assert recovered.dispatched == {task: state.worker.id for task, state in placed.items()}


class SchedulerAndPeers(RuleBasedStateMachine):
    """Each peer has at most one session. The model drops a session when the core or the peer ends it."""

    @initialize(
        limit=st.sampled_from((-1, -1, 20)), slots=st.integers(1, 3), spread=st.sampled_from((True, True, False))
    )
    def start(self, limit: int, slots: int, spread: bool) -> None:
        self.cluster = JudgedCluster(self.judge, limit)
        self.model = Model()
        self.judged = 0
        self.objects: list[bytes] = []
        self.factories = {name: IdFactory(Cluster.peer(name)) for name in CLIENTS}
        for name in ("alice", "bob"):
            self.client_joins(name)
        self.worker_joins("w1", {}, slots, 5)
        self.worker_joins("w2", {}, 1, 5)
        for name, store in zip(("w1", "w2"), STORES, strict=False) if spread else ():
            self.worker_uses_another_store(name, store)

    def here(self) -> list[str]:
        return sorted(self.model.clients)

    def working(self) -> list[str]:
        return sorted(name for name, worker in self.model.workers.items() if worker.attempts)

    def at_work(self, who: int) -> tuple[str, ModelWorker]:
        name = self.working()[who % len(self.working())]
        return name, self.model.workers[name]

    def judge(self) -> None:
        """Drop sessions that the core has dropped, then check all messages since the last call."""
        core = self.cluster.core
        waiting = objects(json.loads(status(core.state, NOTHING))["waiting"])
        assert sum(row["tasks"] for row in waiting) == core.state.counts.waiting + core.state.ready.count
        assert sum(row["ready"] for row in waiting) == core.state.ready.count
        assert all(row["reason"] and row["tasks"] for row in waiting)
        for name in [name for name in self.model.clients if Cluster.peer(name) not in core.state.clients]:
            del self.model.clients[name]
        for name in [name for name in self.model.workers if Cluster.peer(name) not in core.state.workers]:
            del self.model.workers[name]
        for command in self.cluster.commands[self.judged :]:
            self.judged += 1
            if isinstance(command, Send):
                peer, message = delivered(command)
                self.model.judge(peer.rstrip(b".").decode("latin-1"), message)
            elif isinstance(command, SendToStorage) and isinstance(command.message, m.ForgetObjects):
                self.model.forgets(command.message.ids)

    # -- sessions

    @rule(name=st.sampled_from(("alice", "bob")), anew=rarely)
    def client_comes(self, name: str, anew: bool) -> None:
        if anew or name not in self.model.clients:
            self.client_joins(name)

    def client_joins(self, name: str) -> None:
        self.model.clients[name] = ModelClient()
        self.cluster.client(name)

    @rule(name=st.sampled_from(("nest1", "nest2")), via=workers)
    def nested_client_joins(self, name: str, via: str) -> None:
        if name not in self.model.clients and via in self.model.workers:
            self.model.clients[name] = ModelClient(via)
        self.cluster.nested(name, via)

    @rule(
        name=workers,
        offers=st.sampled_from(CAPABILITIES),
        slots=st.integers(1, 3),
        queue_size=st.sampled_from((0, 1, 50)),
        anew=rarely,
    )
    def worker_comes(self, name: str, offers: dict[str, float | None], slots: int, queue_size: int, anew: bool) -> None:
        if anew or name not in self.model.workers:
            self.worker_joins(name, offers, slots, queue_size)

    def worker_joins(self, name: str, offers: dict[str, float | None], slots: int, queue_size: int) -> None:
        self.leave_worker(name)
        self.model.workers[name] = ModelWorker(Offers.of(offers, slots), slots, slots * (1 + queue_size))
        self.cluster.worker(name, offers, slots, queue_size, manager_id="m1")

    @rule(sure=rarely)
    def the_object_storage_gets_a_backend(self, sure: bool) -> None:
        if sure:
            self.cluster.step(StorageConnected())
            self.cluster.step(StorageSaid(UseBackend("file:///backend", b"key")))

    @rule(name=workers, store=st.sampled_from(("", *STORES)))
    def worker_uses_another_store(self, name: str, store: str) -> None:
        if store and Cluster.peer(store) not in self.cluster.state.rooms.stores.records:
            self.cluster.store(store)
        self.cluster.say(name, m.UseStore(Cluster.peer(store) if store else b""))

    @rule(
        name=st.sampled_from(("alice", "bob")),
        spec=specs,
        count=st.integers(1, 12),
        stores=st.sets(st.sampled_from(STORES), min_size=1),
        size=st.sampled_from((10**6, 10**7, 10**7, 10**9)),
        in_backend=st.booleans(),
    )
    def submits_what_needs_an_object_of_some_stores(
        self, name: str, spec: m.Spec, count: int, stores: set[str], size: int, in_backend: bool
    ) -> None:
        if name not in self.model.clients:
            return
        needed = self.factories[name].object()
        for store in sorted(stores):
            self.cluster.say(store, ObjectsHeld([needed], [size], in_backend=in_backend))
        ids = [self.factories[name].task() for _ in range(count)]
        self.model.clients[name].tasks.update({task: ModelTask(spec, (needed,)) for task in ids})
        group = m.TaskGroup(spec, ids, [b"\x80 arguments"] * count, [(needed,)] * count)
        self.cluster.say(name, m.Submit([(spec.function, CODE[spec.function])], [group]))

    @rule(name=st.sampled_from(MANAGERS), manager_id=st.sampled_from(("m1", "m2")), status=st.booleans())
    def manager_joins(self, name: str, manager_id: str, status: bool) -> None:
        self.cluster.manager(name, manager_id=manager_id)
        if status:
            units = [m.UnitStatus(f"unit-{worker}", m.UnitState.RUNNING, 1, 1.0) for worker in WORKERS]
            self.cluster.say(name, m.ManagerStatus(self.cluster.now, units))

    def leave_worker(self, name: str) -> None:
        self.model.workers.pop(name, None)
        for nested in [key for key, client in self.model.clients.items() if client.via == name]:
            del self.model.clients[nested]

    @rule(name=st.sampled_from((*CLIENTS, *WORKERS, *MANAGERS)), sure=rarely)
    def leaves_sometimes(self, name: str, sure: bool) -> None:
        if sure:
            self.leaves(name)

    def leaves(self, name: str) -> None:
        self.model.clients.pop(name, None)
        self.leave_worker(name)
        self.cluster.leave(name)

    @rule(name=st.sampled_from((*CLIENTS, *WORKERS, *MANAGERS)))
    def breaks(self, name: str) -> None:
        if name in self.model.workers:
            self.model.workers[name].up = False
        self.cluster.break_connection(name)

    @rule(name=st.sampled_from((*CLIENTS, *WORKERS, *MANAGERS)))
    def returns(self, name: str) -> None:
        if name in self.model.workers:
            self.model.workers[name].up = True
        self.cluster.step(Resumed(Cluster.peer(name)))

    @rule(
        seconds=st.sampled_from((0.01, 0.3, 2.0, 4.0, 30.0)),
        silent=st.sets(st.sampled_from((*CLIENTS, *WORKERS, *MANAGERS)), max_size=2),
    )
    def time_passes(self, seconds: float, silent: set[str]) -> None:
        present = [*STORES, *self.model.clients, *(name for name, worker in self.model.workers.items() if worker.up)]
        until = self.cluster.now + seconds
        while self.cluster.now < until:
            self.cluster.wait(min(1.0, until - self.cluster.now), [name for name in present if name not in silent])

    @precondition(lambda self: bool(self.model.clients or self.model.workers))
    @rule(who=picks, sure=rarely)
    def one_falls_silent(self, who: int, sure: bool) -> None:
        if not sure:
            return
        present = sorted([*self.model.clients, *self.model.workers])
        silent = present[who % len(present)]
        for _ in range(20):
            alive = [*self.model.clients, *(name for name, worker in self.model.workers.items() if worker.up)]
            self.cluster.wait(4.0, [name for name in alive if name != silent])
        client = self.model.clients.get(silent)
        assert client is None or client.via is not None, "a silent client is given up"
        assert silent not in self.model.workers, "a silent worker is given up"

    # -- clients

    @precondition(lambda self: bool(self.model.clients))
    @rule(
        who=picks,
        spec=specs,
        count=st.integers(1, 6),
        rows=st.lists(st.lists(picks, max_size=3), max_size=6),
        seen=picks,
    )
    def submits(self, who: int, spec: m.Spec, count: int, rows: list[list[int]], seen: int) -> None:
        name = self.here()[who % len(self.here())]
        client = self.model.clients[name]
        ids = [self.factories[name].task() for _ in range(count)]
        foreign = [key for other in self.model.clients.values() if other is not client for key in other.tasks]
        nameable = [*client.tasks, *ids, *client.unresolved * 2, *self.objects, *UNKNOWN, *foreign[:2]]
        references = [tuple(pick(nameable, rows[index] if index < len(rows) else ())) for index in range(count)]
        for index, row in enumerate(references):
            # A client may submit anything except tasks that await themselves or each other.
            references[index] = tuple(key for key in row if key not in ids[index:])
        for identifier, row in zip(ids, references, strict=True):
            client.tasks[identifier] = ModelTask(spec, row)
        group = m.TaskGroup(spec, ids, [b"\x80 arguments"] * count, references if any(references) else [])
        self.cluster.say(name, m.Submit([(spec.function, CODE[spec.function])], [group], min(seen, client.number)))

    @rule(name=st.sampled_from(("alice", "bob")), spec=specs, count=st.integers(1, 30))
    def submits_many_that_depend_on_nothing(self, name: str, spec: m.Spec, count: int) -> None:
        if name in self.model.clients:
            self.submits(self.here().index(name), spec, count, [], 0)

    @rule(name=clients)
    def submits_again_what_has_not_ended(self, name: str) -> None:
        if name not in self.model.clients:
            return
        self.resubmit(name)

    @rule(name=st.sampled_from(("alice", "bob")))
    def comes_back_and_submits_again(self, name: str) -> None:
        """Open a new session after a loss, in which the client still waits for unfinished tasks."""
        earlier = self.model.clients.get(name, ModelClient())
        self.client_joins(name)
        self.model.clients[name].tasks = {
            key: ModelTask(earlier.tasks[key].spec, earlier.tasks[key].references) for key in earlier.unresolved
        }
        self.resubmit(name)

    def resubmit(self, name: str) -> None:
        client = self.model.clients[name]
        groups = [
            m.TaskGroup(client.tasks[key].spec, [key], [b"\x80 arguments"], [client.tasks[key].references])
            for key in client.unresolved
        ]
        self.cluster.say(name, m.Submit(list(CODE.items()), groups, 0))

    @rule(name=clients, picked=st.lists(picks, max_size=4))
    def cancels(self, name: str, picked: list[int]) -> None:
        client = self.model.clients.get(name)
        ids = pick(list(client.tasks) if client else [], picked)
        for identifier in ids:
            if client is not None and client.tasks[identifier].ended is None:
                client.tasks[identifier].cancelled = True
        self.cluster.say(name, m.Cancel([*ids, UNKNOWN[0]]))
        if client is not None:
            held = {key for worker in self.model.workers.values() for key in worker.recalled}
            assert all(client.tasks[key].ended is not None or key in held for key in ids), "cancelled, or on its way"

    @rule(name=clients, sure=rarely)
    def clears(self, name: str, sure: bool) -> None:
        if sure:
            self.expect_clear(name)
            self.cluster.say(name, m.Clear())

    def expect_clear(self, name: str) -> None:
        client = self.model.clients.get(name)
        if client is not None:
            client.held.clear()
            for identifier in client.unresolved:
                client.tasks[identifier].cancelled = True

    @rule(name=clients, number=picks)
    def sees(self, name: str, number: int) -> None:
        client = self.model.clients.get(name)
        self.cluster.say(name, m.AcknowledgeResults(number % (client.number + 2) if client is not None else number))

    @rule(name=clients, picked=st.lists(picks, max_size=3), hold=st.booleans())
    def holds_or_releases(self, name: str, picked: list[int], hold: bool) -> None:
        if hold:
            self.objects.append(self.factories[name].object())
        client = self.model.clients.get(name)
        results = [task.value[1:17] for task in client.tasks.values() if task.value] if client is not None else []
        ids = pick([*self.objects, *results, *FUNCTIONS, *UNKNOWN], picked)
        if client is not None and not hold:
            client.held.difference_update(ids)
        self.cluster.say(name, m.Pin(ids) if hold else m.Release(ids))

    # -- workers

    @precondition(has_work)
    @rule(
        who=picks,
        picked=st.lists(picks, min_size=1, max_size=4),
        outcome=st.sampled_from(m.Outcome),
        seconds=st.sampled_from((1e-4, 0.01, 1.0)),
    )
    def tasks_end(self, who: int, picked: list[int], outcome: m.Outcome, seconds: float) -> None:
        name, worker = self.at_work(who)
        self.end(name, worker, list(dict.fromkeys(pick(list(worker.attempts), picked))), outcome, seconds)

    @precondition(has_work)
    @rule(who=picks, count=st.integers(1, 30))
    def tasks_succeed(self, who: int, count: int) -> None:
        self.tasks_succeed_in_their_order(self.working()[who % len(self.working())], count)

    def tasks_succeed_in_their_order(self, name: str, count: int) -> None:
        worker = self.model.workers.get(name)
        if worker is not None and worker.attempts:
            self.end(name, worker, list(worker.attempts)[:count], m.Outcome.SUCCESS, 0.001)

    def end(self, name: str, worker: ModelWorker, ids: list[bytes], outcome: m.Outcome, seconds: float) -> None:
        attempts = [worker.attempts[identifier] for identifier in ids]
        match outcome:
            case m.Outcome.SUCCESS:
                payloads = [value_of(identifier, attempt) for identifier, attempt in zip(ids, attempts, strict=True)]
            case m.Outcome.EXCEPTION | m.Outcome.EXCEPTION_TO_RETRY:
                payloads = [
                    exception_of(identifier, attempt) for identifier, attempt in zip(ids, attempts, strict=True)
                ]
            case m.Outcome.INPUT_MISSING:
                payloads = [identifier[:8] + b"\xff\xff" + identifier[10:] + b"away" for identifier in ids]
            case _:
                payloads = [b"what happened"] * len(ids)
        owners = [worker.owners[identifier] for identifier in ids]
        for identifier, payload in zip(ids, payloads, strict=True):
            self.model.ends(worker, identifier, outcome, payload)
        durations = [int(seconds * 1e6)] * len(ids)
        self.cluster.say(name, m.Done(ids, attempts, [outcome] * len(ids), payloads, durations))
        if outcome in (m.Outcome.SUCCESS, m.Outcome.EXCEPTION):
            for identifier, owner in zip(ids, owners, strict=True):
                here = any(owner is client for client in self.model.clients.values())
                assert not here or owner.tasks[identifier].ended is outcome, "the first result wins"

    @precondition(lambda self: any(worker.recalled for worker in self.model.workers.values()))
    @rule(started=st.booleans())
    def all_recalls_are_answered(self, started: bool) -> None:
        for name in list(self.model.workers):
            self.recalls_are_answered(name, started)

    def recalls_are_answered(self, name: str, started: bool) -> None:
        worker = self.model.workers.get(name)
        if worker is None or not worker.recalled:
            return
        kept = [key for key, kill in worker.recalled.items() if started and not kill]
        given = [key for key in worker.recalled if key not in kept]
        ids = kept + given
        message = m.Returned(ids, [worker.attempts[key] for key in ids], [key in kept for key in ids])
        for key in ids:
            self.model.gives_back(worker, key, key in kept)
        self.cluster.say(name, message)

    @precondition(has_work)
    @rule(who=picks, picked=picks)
    def gives_back_unasked(self, who: int, picked: int) -> None:
        name, worker = self.at_work(who)
        (identifier,) = pick(list(worker.attempts), [picked])
        message = m.Returned([identifier], [worker.attempts[identifier]], [False])
        self.model.gives_back(worker, identifier, started=False)
        self.cluster.say(name, message)

    @precondition(has_work)
    @rule(who=picks, picked=picks, suspend=st.booleans())
    def suspends_or_goes_on(self, who: int, picked: int, suspend: bool) -> None:
        name, worker = self.at_work(who)
        (identifier,) = pick([*worker.suspended] if not suspend and worker.suspended else [*worker.attempts], [picked])
        if suspend:
            worker.suspended.add(identifier)
        elif len(worker.attempts) - len(worker.suspended) < worker.limit:
            worker.suspended.discard(identifier)
        else:
            return
        self.cluster.say(name, m.Suspended([identifier], [worker.attempts[identifier]], [suspend]))

    @precondition(lambda self: any(client.missing for client in self.model.clients.values()))
    @rule(who=picks, count=st.integers(1, 3), is_lost=rarely)
    def missing_objects_are_put_again(self, who: int, count: int, is_lost: bool) -> None:
        asked = [name for name, client in self.model.clients.items() if client.missing]
        self.put_again(asked[who % len(asked)], count, is_lost)

    def put_again(self, name: str, count: int, is_lost: bool) -> None:
        client = self.model.clients[name]
        ids = list(client.missing)[:count]
        for identifier in ids:
            del client.missing[identifier]
        self.cluster.say(name, m.ObjectsRestored([], ids, "gone") if is_lost else m.ObjectsRestored(ids, []))

    # -- invalid messages

    @rule(name=st.sampled_from((*CLIENTS, *WORKERS, *MANAGERS, "nobody")), message=nonsense)
    def sends_what_it_may_not(self, name: str, message: m.Message) -> None:
        if isinstance(message, m.Clear):
            self.expect_clear(name)
        if isinstance(message, m.Submit) and name in self.model.clients:
            return
        self.cluster.say(name, message)

    @precondition(has_work)
    @rule(name=workers, who=picks, picked=picks, wrong=st.integers(1, 3))
    def speaks_of_attempts_that_it_does_not_have(self, name: str, who: int, picked: int, wrong: int) -> None:
        _, theirs = self.at_work(who)
        mine = self.model.workers.get(name)
        (identifier,) = pick(list(theirs.attempts), [picked])
        attempt = theirs.attempts[identifier]
        if mine is not None and identifier in mine.attempts:
            attempt = mine.attempts[identifier] + wrong
        value = m.stored_reference(STRANGER.object(), 1)
        self.cluster.say(name, m.Suspended([identifier], [attempt], [True]))
        self.cluster.say(name, m.Returned([identifier], [attempt], [False]))
        self.cluster.say(name, m.Done([identifier], [attempt], [m.Outcome.SUCCESS], [value], [1]))

    # -- end

    def teardown(self) -> None:
        """Check that every task ends, given suitable workers and enough time."""
        if not hasattr(self, "cluster"):
            return
        everything: dict[str, float | None] = {"gpu": None, "big": None}
        for name in ("last1", "last2"):
            self.model.workers[name] = ModelWorker(Offers.of(everything, 50), 50, 50 * 51)
            self.cluster.worker(name, everything, slots=50, queue_size=50)
        for name in [name for name, worker in self.model.workers.items() if not worker.up]:
            self.returns(name)
        for _ in range(60):
            if not any(client.unresolved for client in self.model.clients.values()):
                break
            for name in list(self.model.workers):
                self.recalls_are_answered(name, False)
            for name in list(self.model.clients):
                self.put_again(name, 10**6, is_lost=False)
            for name in list(self.model.workers):
                self.tasks_succeed_in_their_order(name, 10**6)
            self.time_passes(1.0, set())
        left = [client.unresolved for client in self.model.clients.values() if client.unresolved]
        assert not left, f"tasks wait forever: {left}"
        for name in list(self.model.workers):
            self.tasks_succeed_in_their_order(name, 10**6)
        assert not self.cluster.state.departed, "all tasks of departed clients were returned"
        for name in list(self.model.clients):
            self.leaves(name)
        assert not self.cluster.state.objects.stored, "objects remain after all clients have left"
        assert not self.cluster.state.objects.functions, "functions remain after all clients have left"


@pytest.mark.timeout(180)
def test_core_keeps_its_promises_whatever_peers_do() -> None:
    run_state_machine_as_test(SchedulerAndPeers, settings=settings(stateful_step_count=50))
