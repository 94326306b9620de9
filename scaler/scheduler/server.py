"""The scheduler's loop: receives events, steps the core once, performs its commands, and flushes once."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, assert_never

from scaler.component import Component, run_component
from scaler.config.addresses import local_address, shared_address
from scaler.config.servers import SchedulerConfig
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.ids import new_peer_id
from scaler.logs import RateLimitedLog, about
from scaler.net.address import beside, own_address
from scaler.net.connection import Connector, ConnectorEvent, ListenerEvent, Received, TryAgain, Welcomed
from scaler.net.connector import SocketConnector
from scaler.net.identity import Identity
from scaler.net.listener import SocketListener
from scaler.net.server_access import ServerAccess
from scaler.net.versions import check_versions, own_hello
from scaler.object_storage.server import EmbeddedStorage
from scaler.object_storage.spill import SpillSpace
from scaler.paths import local_path
from scaler.plugins import extensions
from scaler.policy.guard import GuardedPolicy
from scaler.policy.load import load_policy
from scaler.policy.view import ClusterView
from scaler.processes import Load, LoadMeter, absolute, give_memory_back
from scaler.protocol.messages import (
    CLIENTS,
    Hello,
    Inquiry,
    RefusalReason,
    Refused,
    Role,
    Server,
    StatStorage,
    StorageReply,
    StorageStatus,
    Welcome,
)
from scaler.protocol.monitor_rows import SchedulerRow, StorageRow
from scaler.recorder import Recorder
from scaler.scheduler.answers import Answers, Asker, may_wait
from scaler.scheduler.core.changes import (
    AdmissionRefused,
    Change,
    Incident,
    KeysRead,
    Noted,
    ObjectLinked,
    Observed,
    ProcessMeasured,
    ScalingDecided,
    Told,
)
from scaler.scheduler.core.commands import (
    AddRows,
    AliasObjects,
    AskPolicy,
    ClockRead,
    Command,
    Expel,
    Input,
    JournalChanged,
    Perform,
    PolicyAnswered,
    Publish,
    Send,
    SendToStorage,
    ShellObserved,
    Stop,
    StorageConnected,
    StorageSaid,
    WriteJournal,
)
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.data.stores import HostStores
from scaler.scheduler.events import Events
from scaler.scheduler.files import FileWriter
from scaler.scheduler.guard import switched_off
from scaler.scheduler.monitors import Monitors
from scaler.scheduler.recorder import size_of
from scaler.scheduler.rooms import Surroundings, make_rooms, part, table_names
from scaler.scheduler.scaling.elastic import Elastic
from scaler.scheduler.status import ServerStatus
from scaler.scheduler.task_times_file import TaskTimesFile
from scaler.texts import escaped

if TYPE_CHECKING:
    from scaler.scheduler.durable import DurableSteps

HEARTBEAT_SECONDS = 2.0
HEARTBEATS_IN_A_LEASE = 4
"""Minimum heartbeats per lease. Applies to workers and managers as well, which have a report interval of their own."""

MEASURE_SECONDS = 1.0
LOOK_SECONDS = 5.0
CLOCK_TOLERANCE_SECONDS = 1e-3
YOUNG_OBJECTS = 10_000
"""New objects per collection of the youngest generation, which takes about 2 ms."""
YOUNG_COLLECTIONS = 10
"""Young collections per collection of the middle generation, which takes about 20 ms."""
NEVER = 1_000_000_000
FULL_COLLECTION_SECONDS = 30.0
"""Seconds between full collections, while these are cheap."""
MAX_LIVING_TASKS = 50_000
"""Live tasks above which a full collection would take longer than a step may."""

_INCIDENT_LOGS = {
    "joined": (logging.INFO, "%s joined%s"),
    "left": (logging.INFO, "%s left: %s"),
    "lost": (logging.WARNING, "%s was lost: %s"),
    "degraded": (logging.WARNING, "%s is degraded: %s"),
    "retried": (logging.INFO, "%s runs again: %s"),
    "quarantined": (logging.WARNING, "%s gets no more tasks: %s"),
    "packages": (logging.WARNING, "%s has other versions of packages than a client: %s"),
    "policy": (logging.ERROR, "%.0s%s"),
    "spend_limit": (logging.WARNING, "%s: %s"),
    "extension": (logging.ERROR, "%s is switched off: %s"),
}
COUNTS_REFERENCES = platform.python_implementation() != "PyPy"
"""PyPy collects incrementally instead."""
_log = logging.getLogger(__name__)


def configure_collector() -> None:
    """Configure garbage collection so that no step waits long for it. Call once, after all imports.

    Reference counts free tasks, groups, and messages. Cycles remain only from departed peers and errors, a few
    kilobytes each. By default, Python would visit all live tasks each time their number grows by a quarter: with a
    million queued tasks, the loop would stop for most of a second.
    """
    if not COUNTS_REFERENCES:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)


def collect_when_small(living_tasks: int) -> None:
    """Collect all garbage, unless live tasks would make that slow.

    Also returns memory to the system: freed payloads are fragmented, and the C library would keep their memory forever.
    """
    if COUNTS_REFERENCES and living_tasks <= MAX_LIVING_TASKS:
        gc.collect()
        give_memory_back()


class SchedulerServer:
    """A scheduler on the running loop: core, listeners, and connection to the object storage."""

    _task_times: TaskTimesFile | None = None

    def __init__(self, config: SchedulerConfig, stop: asyncio.Event) -> None:
        self._config = config
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._incarnation = time.time_ns()
        policy = load_policy(config.policy_engine_type, config.policy_content)
        self._policy = GuardedPolicy(policy)
        self._is_policy_quick = type(policy).__module__.startswith("scaler.policy.")
        self._durable = self._open_journal(config)
        self._rooms = rooms = make_rooms(config, [] if self._durable is None else [self._durable.subscriber])
        self._scaling = Elastic(policy.allocation)
        self._core = SchedulerCore(config, self._loop.time(), self._scaling, HostStores(), os.urandom(32), rooms)
        self._recorder = Recorder(config, size_of)
        self._access = ServerAccess(config, Server.SCHEDULER, [config.bind_address, config.monitor_address])
        self._files = FileWriter()
        self._performers: dict[str, Any] = {}
        self._unix_at_zero = 0.0
        self._seen_keys: dict[str, tuple[str, str, str]] = {}
        self._storage: EmbeddedStorage | None = None
        self.storage_address = config.object_storage_address or self._embed_storage()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handles lack it once the time has passed
        self._is_closed = False
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._began_at = self._loop.time()
        self._longest_step_seconds = self._longest_lag_seconds = self._measured_lag_seconds = 0.0
        self._measured_at = -math.inf
        self._meter, self._own_meter = LoadMeter(), LoadMeter()
        self._dropped = RateLimitedLog(_log, logging.WARNING, self._loop)
        storage_address = config.advertised_object_storage_address or self.storage_address
        self._advertised_storage = shared_address(storage_address)
        self._storage_row = StorageRow(own_address(storage_address))
        self._storage_asked, self._storage_asked_at = False, 0.0
        self._listener = SocketListener(
            [config.bind_address],
            server_kind=Server.SCHEDULER,
            admit=self._admit,
            on_events=self._on_events,
            io_threads=config.io_threads,
            has_local_listener=True,
            keys=self._access.keys,
            compression=self._access.compression,
        )
        self._listener.on_refused = lambda report: self._observe(
            [AdmissionRefused(report.text, report.key, report.origin)]
        )
        self._answers = Answers(
            self._core.state,
            Events(),
            self._server_status,
            lambda client, question: self._step([Received(client, question)]),
            self._loop,
            rooms,
        )
        self._answers.ask_storage = self._ask_storage
        self._answers.performers, self._answers.performer_failed = self._performers, self._performer_failed
        self._monitors = Monitors(
            self._answers,
            self._step,
            partial(
                SocketListener,
                [config.monitor_address],
                server_kind=Server.SCHEDULER,
                io_threads=config.io_threads,
                keys=self._access.keys,
                compression=self._access.compression,
            ),
            self._welcome(Role.MONITOR, ""),
            config.status_report_interval_seconds,
            self._observe,
            [log for each in extensions(config.extensions) for log in each.logs],
            self._loop,
        )
        self._to_storage: Connector = SocketConnector(
            local_address(self.storage_address),
            peer=new_peer_id(),
            hello=own_hello(Role.SCHEDULER),
            on_events=self._on_storage_events,
            keys=self._access.to_storage.to(Server.OBJECT_STORAGE, self.storage_address),
            compression=self._access.compression,
        )
        addresses = [*self._listener.addresses, self._monitors.address]
        self._access.publish(addresses)
        self._access.warn(addresses, self._loop.call_later)
        self._follow_clock()
        self._make_performers()
        self._observe([Noted("started")])
        if self._durable is not None:
            self._recover(self._durable)
        self._look()

    def _recover(self, durable: DurableSteps) -> None:
        directory = journal_directory(self._config)
        self._task_times = TaskTimesFile(directory.parent, self._files)
        self._scaling.demand.task_times.restore(self._task_times.read())
        self._step(durable.recover())

    def _open_journal(self, config: SchedulerConfig) -> DurableSteps | None:
        if not config.state_directory:
            return None
        from scaler.scheduler.durable import DurableSteps  # noqa: PLC0415 (of those that keep a journal)

        path = journal_directory(config)
        return DurableSteps(path, self._perform_all, lambda *change: self._step([JournalChanged(*change)]))

    def _make_performers(self) -> None:
        config = self._config
        directory = local_path(config.state_directory) if config.state_directory else None
        for each in extensions(config.extensions):
            if each.performer:
                around = Surroundings(self._loop, self._files, partial(self._told, each.name), directory)
                performer = part(each.performer)(config, around)
                if performer is not None:
                    self._performers[each.name] = performer

    def _embed_storage(self) -> str:
        config, bind_address = self._config, self._config.bind_address
        try:
            self._storage = EmbeddedStorage(
                beside(bind_address, 1, ".storage"),
                spill=SpillSpace.of(config),
                security=config,
                io_threads=config.io_threads,
                state_directory=config.state_directory,
            )
        except UsageError as error:
            raise UsageError(f"the object storage beside {bind_address}: {error}") from error
        return self._storage.address

    @property
    def living_tasks(self) -> int:
        return self._core.state.living_tasks

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "scheduler": self._listener.addresses[0],
            "object_storage": self.storage_address,
            "monitor": self._monitors.address,
        }

    def close(self) -> None:
        self._is_closed = True
        self._look()
        self._look_timer.cancel()
        self._observe([Noted("ended")])
        for performer in self._performers.values():
            performer.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._durable is not None:
            self._durable.close()
        self._listener.close()
        self._monitors.close()
        self._dropped.flush()
        self._files.close()
        self._to_storage.close("the scheduler ends")
        if self._storage is not None:
            self._storage.close()
        self._access.close()

    # -- admission

    def _admit(self, peer: bytes, hello: Hello, identity: Identity) -> Welcome | Refused | TryAgain:
        answer = self._admitted(peer, hello, identity)
        if isinstance(answer, Refused):  # the listener logs the refusal
            self._monitors.add([Incident("refused", f"{hello.role} {hello.hostname}|{hello.pid}", answer.text, {})])
        return answer

    def _admitted(self, peer: bytes, hello: Hello, identity: Identity) -> Welcome | Refused | TryAgain:
        refused: Refused | TryAgain | None = check_versions(hello)
        if refused is not None:
            return refused
        if hello.role is Role.MONITOR:
            text = f"monitors do not belong on the scheduler's address, but on {own_address(self._monitors.address)}"
            return Refused(RefusalReason.ROLE, text)
        refused = self._core.refusal(peer, hello, identity, self._loop.time())
        if refused is not None:
            return refused
        welcome = self._welcome(hello.role, self._advertised_storage)
        is_client = hello.role in CLIENTS
        return replace(welcome, owner_token=self._access.owner_token(peer)) if is_client else welcome

    def _welcome(self, role: Role, storage_address: str) -> Welcome:
        is_service = role in (Role.WORKER, Role.MANAGER, Role.STORE)
        lease = self._config.worker_timeout_seconds if is_service else self._config.client_timeout_seconds
        heartbeat = lease / HEARTBEATS_IN_A_LEASE
        return Welcome(
            resumed=False,
            incarnation=self._incarnation,
            lease_seconds=lease,
            heartbeat_seconds=heartbeat if is_service else min(HEARTBEAT_SECONDS, heartbeat),
            object_storage_address=storage_address,
            max_pending_tasks=self._config.max_number_of_tasks_waiting,
            tables="" if is_service else table_names(self._config),
        )

    # -- the surroundings

    def _observe(self, observed: Sequence[Observed]) -> None:
        """Report events to extensions that the core cannot see."""
        if any(type(each) in self._rooms.changes.taken for each in observed):
            self._step([ShellObserved([*observed])])

    def _told(self, extension: str, document: Any) -> None:
        if not self._is_closed:
            self._observe([Told(extension, document)])

    def _look(self) -> None:
        """Update the wall clock and the keys, now and every `LOOK_SECONDS`."""
        self._follow_clock()
        if self._access.keys is not None and (entries := self._access.keys.entries()) != self._seen_keys:
            self._seen_keys = dict(entries)
            self._observe([KeysRead(self._seen_keys)])
        if self._task_times is not None:
            self._task_times.write(self._scaling.demand.task_times.counts)
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _follow_clock(self) -> None:
        zero = time.time() - time.monotonic()
        if abs(zero - self._unix_at_zero) > CLOCK_TOLERANCE_SECONDS:
            self._unix_at_zero = zero
            self._step([ClockRead(zero)])

    # -- steps

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        questions: list[Received] = []
        for event in arrived:
            if type(event) is Received:
                self._received[type(event.message).__name__] += 1
                if isinstance(event.message, Inquiry) and may_wait(event.message):
                    questions.append(event)
        if questions:
            arrived = [each for each in arrived if type(each) is not Received or not may_wait(each.message)]
        self._step(arrived)
        for each in questions:
            client, question = self._core.state.clients.get(each.peer), each.message
            if client is not None and isinstance(question, Inquiry):
                self._answers.add(Asker(client, self._listener, partial(self._is_here, client)), question)

    def _is_here(self, client: ClientRecord) -> bool:
        return self._core.state.clients.get(client.id) is client

    def _step(self, inputs: Sequence[Input]) -> None:
        now = self._loop.time()
        self._recorder.add(inputs, now)
        try:
            commands = self._core.step(inputs, now)
        except Exception:
            path = absolute(f"scaler-black-box-{os.getpid()}.bin")
            self._recorder.write(path)
            _log.critical("the scheduler's state is impossible; what led to it is in %s", path)
            self._stop.set()
            raise
        done_at = self._loop.time()
        self._longest_step_seconds = max(self._longest_step_seconds, done_at - now)
        if self._durable is None:
            self._perform_all(commands)
        else:
            self._durable.add(inputs, commands)
        self._schedule(self._core.next_step_at(done_at))

    def _perform_all(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._sent[type(command.message).__name__] += 1
                self._listener.send(command.peer, command.message)
            else:
                self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case Expel(peer, reason):
                self._listener.forget(peer, reason)
            case SendToStorage(message):
                self._to_storage.send(message)
            case AskPolicy(view):
                self._ask_policy(view)
            case Publish(changes):
                for change in changes:
                    self._log_change(change)
                self._monitors.add(changes)
            case AddRows(table, rows):
                self._monitors.add_rows(table, rows)
            case Perform(name, work):
                self._perform_work(name, work)
            case Stop(text):
                _log.info("%s", escaped(text))
                self._stop.set()
            case Send() | WriteJournal() | AliasObjects():
                raise AssertionError("done before")
            case _:
                assert_never(command)

    def _perform_work(self, extension: str, work: object) -> None:
        performer = self._performers.get(extension)
        try:
            if performer is not None:
                performer.perform(work)
        except Exception as error:  # noqa: BLE001 (the cluster continues without the extension)
            self._performer_failed(extension, "perform", error)

    def _performer_failed(self, extension: str, hook: str, error: Exception) -> None:
        del self._performers[extension]
        self._perform(Publish([switched_off(extension, hook, error)]))

    def _schedule(self, at: float) -> None:
        """Schedule the next step at this time or earlier, keeping an earlier timer."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._tick), at

    def _tick(self) -> None:
        self._timer = None
        late_seconds = self._loop.time() - self._timer_at
        self._longest_lag_seconds = max(self._longest_lag_seconds, late_seconds)
        self._measured_lag_seconds = max(self._measured_lag_seconds, late_seconds)
        self._step(self._measured() if ProcessMeasured in self._rooms.changes.taken else [])

    def _measured(self) -> list[Input]:
        if self._loop.time() - self._measured_at < MEASURE_SECONDS:
            return []
        self._measured_at = self._loop.time()
        lag_seconds, self._measured_lag_seconds = self._measured_lag_seconds, 0.0
        own = self._own_meter.measure().get(os.getpid(), Load())
        return [ShellObserved([ProcessMeasured(lag_seconds, own.rss_bytes)])]

    def _log_change(self, change: Change) -> None:
        if isinstance(change, Incident) and change.kind == "protocol_error":  # a peer may cause any number of them
            self._dropped.add(f"{escaped(change.subject)}: dropped: {escaped(change.text)}")
        else:
            _log_change(change)

    # -- the scaling policy

    def _ask_policy(self, view: ClusterView) -> None:
        """Ask the policy. A user's policy runs in a daemon thread, since it may take seconds, or forever."""
        if self._is_policy_quick:
            self._loop.call_soon(self._policy_answered, PolicyAnswered(*self._policy.plan(view)))
            return
        try:
            Thread(target=self._ask_in_thread, args=(view,), name="policy", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._loop.call_soon(self._policy_answered, PolicyAnswered(*self._policy.failed(error, view.now)))

    def _ask_in_thread(self, view: ClusterView) -> None:
        answered = PolicyAnswered(*self._policy.plan(view))
        with suppress(RuntimeError):  # the scheduler has ended, and the loop is closed
            self._loop.call_soon_threadsafe(self._policy_answered, answered)

    def _policy_answered(self, answered: PolicyAnswered) -> None:
        if not self._is_closed:
            self._step([answered])

    # -- the object storage

    def _on_storage_events(self, arrived: Sequence[ConnectorEvent]) -> None:
        """Process the object storage's figures, links, and messages about objects."""
        inputs: list[Input] = []
        for event in arrived:
            match event:
                case Received(_, StorageStatus() as found):
                    sizes = found.bytes, found.limit_bytes, found.spilled_bytes, found.state_bytes
                    counts = *sizes, found.hits, found.misses, found.disk_failure
                    latency = self._loop.time() - self._storage_asked_at
                    row = StorageRow(self._storage_row.address, found.objects, *counts, round(latency, 6), time.time())
                    self._storage_row, self._storage_asked = row, False
                    self._monitors.storage_answered()
                    self._answers.storage_answered()
                case Received(_, StorageReply(number, parts=parts)):
                    inputs.append(ShellObserved([ObjectLinked(number, sum(parts))]))
                case Received(_, message):
                    inputs.append(StorageSaid(message))
                case Welcomed():
                    self._storage_asked = False
                    self._ask_storage()
                    inputs.append(StorageConnected())
        if inputs:
            self._step(inputs)

    def _ask_storage(self) -> None:
        if self._to_storage.connected and not self._storage_asked:
            self._storage_asked, self._storage_asked_at = True, self._loop.time()
            self._to_storage.send(StatStorage(0))

    # -- monitors

    def _server_status(self, is_report: bool) -> ServerStatus:
        """Return the part of a report to monitors that the core does not have."""
        longest, late = round(self._longest_step_seconds, 6), round(self._longest_lag_seconds, 6)
        if is_report:
            self._longest_step_seconds = self._longest_lag_seconds = 0.0
        own = self._meter.measure().get(os.getpid(), Load())
        uptime_seconds = round(self._loop.time() - self._began_at, 3)
        is_insecure = self._config.insecure_no_auth
        journal = 0, ""
        if self._durable is not None:
            journal = self._durable.size_bytes, self._core.state.journal.failure or self._durable.complaint
        load = own.cpu_percent, own.rss_bytes, uptime_seconds, longest
        running = " ".join(each.name for each in extensions(self._config.extensions))
        scheduler = SchedulerRow(*load, is_insecure, *journal, late, socket.gethostname(), running)
        at = time.time()
        counts = self._sent, self._received
        zero = at - time.monotonic()
        clock = time.localtime(at)
        today = clock.tm_hour * 3600.0 + clock.tm_min * 60 + clock.tm_sec
        figures = scheduler, self._storage_row, *counts, self._listener.figures, today
        return ServerStatus(at, zero, self._incarnation, *figures, self._rooms)


def journal_directory(config: SchedulerConfig) -> Path:
    return local_path(config.state_directory) / "scheduler"


def _log_change(change: Change) -> None:
    match change:
        case Incident(kind, subject, text, ids):
            level, template = _INCIDENT_LOGS[kind]
            lines = "\n".join(map(escaped, text.splitlines()))
            _log.log(level, template, escaped(subject), lines, extra=about(**ids))
        case ScalingDecided(manager_id, units, draining, reason):
            drains = f"; drains {counted(draining, 'unit')}" if draining else ""
            text = f"the policy wants {counted(units, 'unit')} of {manager_id}: {reason}{drains}"
            _log.info("%s", escaped(text), extra=about(manager=manager_id))
        case _:
            pass


async def _collect_garbage(server: SchedulerServer) -> None:
    """Collect cyclic garbage periodically, instead of whenever many tasks arrive."""
    configure_collector()
    while True:
        await asyncio.sleep(FULL_COLLECTION_SECONDS)
        collect_when_small(server.living_tasks)


async def _main(config: SchedulerConfig, component: Component) -> int:
    server = SchedulerServer(config, component.stop)
    collecting = asyncio.create_task(_collect_garbage(server))
    try:
        component.ready(server.addresses)
        await component.stop.wait()
    finally:
        collecting.cancel()
        server.close()
    return 0


def run(config: SchedulerConfig) -> int:
    """Run a scheduler until it is stopped. Returns the exit code."""
    return run_component("scheduler", config, lambda component: _main(config, component), config.event_loop)
