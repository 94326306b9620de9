"""The frame of the scheduler's process. For each batch of events, it steps the core once, performs its commands, and
flushes once. The parts below are loaded by name if the settings need them, and called with the frame or the settings.
They run on the scheduler's event loop, and must not block.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from scaler.component import Component, run_component
from scaler.config.addresses import shared_address
from scaler.config.servers import SchedulerConfig
from scaler.errors import ProtocolError
from scaler.grammar import counted
from scaler.journal.files import FileWriter
from scaler.logs import RateLimitedLog, about
from scaler.net.address import own_address
from scaler.net.connection import Identity, ListenerEvent, Received, TryAgain
from scaler.net.listener import SocketListener
from scaler.net.listener_core import Admission
from scaler.net.server_access import ServerAccess
from scaler.net.versions import check_versions
from scaler.plugins import extensions
from scaler.processes import absolute
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.recorder import ROW_BYTES, Recorder
from scaler.scheduler.core.changes import (
    AdmissionRefused,
    Change,
    Incident,
    Noted,
    Observed,
    ProcessMeasured,
    ScalingDecided,
)
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import (
    AskPolicy,
    Command,
    DurabilitySaid,
    Expel,
    HoldObjects,
    Input,
    Perform,
    Publish,
    Relayed,
    Send,
    SendToStorage,
    ShellObserved,
    Stop,
)
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.rooms import Performers, make_keeper, make_policy, make_rooms, make_scaling, part, table_names
from scaler.scheduler.storage_link import StorageLink
from scaler.scheduler.vitals import Vitals, collect_garbage
from scaler.texts import escaped

EMBEDDED_STORAGE = "scaler.object_storage.server:embed"
MONITORS = "scaler.monitor.reports.port:Monitors"
ALONE = "this scheduler has no journal for another scheduler to follow: set state_directory"
LOOK_SECONDS = 5.0
HEARTBEAT_SECONDS = 2.0
HEARTBEATS_IN_A_LEASE = 4
"""Minimum heartbeats per lease. Also applies to workers and managers, although they set their own report interval."""
ID_BYTES = 128
"""Approximate bytes per id in a recorded message, including its row."""
_INCIDENTS = {
    "joined": (logging.INFO, "%s joined%s"),
    "left": (logging.INFO, "%s left: %s"),
    "lost": (logging.WARNING, "%s was lost: %s"),
    "degraded": (logging.WARNING, "%s is degraded: %s"),
    "retried": (logging.INFO, "%s runs again: %s"),
    "quarantined": (logging.WARNING, "%s gets no more tasks: %s"),
    "packages": (logging.WARNING, "%s has different package versions than a client: %s"),
    "policy": (logging.ERROR, "%.0s%s"),
    "spend_limit": (logging.WARNING, "%s: %s"),
    "extension": (logging.ERROR, "%s is switched off: %s"),
}
"""Levels and texts of incidents in the log, by kind."""
_log = logging.getLogger(__name__)


class SchedulerServer:
    """A scheduler on the running loop. Its parts use its public attributes and methods."""

    def __init__(self, config: SchedulerConfig, stop: asyncio.Event) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.vitals = Vitals(self.loop)
        self.stop = stop
        """Ends the scheduler."""
        self.epoch = 1
        """See `Welcome`. Set by the keeper."""
        self.greet: Callable[[bytes, m.Hello], m.Welcome | m.Refused] = lambda *_: m.Refused(
            m.RefusalReason.ROLE, ALONE
        )
        """Admits other schedulers."""
        self.guests: dict[bytes, Callable[[ListenerEvent], object]] = {}
        """Functions that receive all events of a peer unknown to the core, by peer id."""
        self._policy = make_policy(config, self.step)
        self._kept = make_keeper(self)
        self.rooms = make_rooms(config)
        scaling = make_scaling(getattr(self._policy, "allocation", None), config.extensions)
        self._core = SchedulerCore(config, self.loop.time(), scaling, self.rooms)
        self._recorder = Recorder(config, recorded_bytes)
        self.access = ServerAccess(config, m.Server.SCHEDULER, [config.bind_address, config.monitor_address])
        self.files = FileWriter()
        self.performers = Performers(self.observe, lambda incident: self._publish([incident]))
        self._dropped = RateLimitedLog(_log, logging.WARNING, self.loop)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # a uvloop handle loses its time once it has run
        self._parts: list[Any] = []
        address = config.object_storage_address
        if not address:
            embedded = part(EMBEDDED_STORAGE)(config)
            self._parts.append(embedded)
            address = embedded.address
        public_address = config.advertised_object_storage_address or address
        self.storage = StorageLink(address, public_address, self.access, self.step, self.loop, self.epoch)
        self.listener = self.listen(config.bind_address, self._admit, self._on_events, has_local_listener=True)
        self._monitors = part(MONITORS)(self)
        self.step(self.vitals.read_clock())
        self.performers.start(config, self.loop, self.files)
        self.observe([Noted("started")])
        if self._kept is not None:
            self.step(self._kept.recover())
        self._look()

    @property
    def state(self) -> ClusterState:
        """The core's state, which is read-only."""
        return self._core.state

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "scheduler": self.listener.addresses[0],
            "object_storage": self.storage.address,
            "monitor": self._monitors.address,
        }

    def close(self) -> None:
        if self._policy is not None:
            self._policy.close()
        self._look()
        self._look_timer.cancel()
        self.observe([Noted("ended")])
        self.performers.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._kept is not None:
            self._kept.close()
        self.listener.close()
        self._monitors.close()
        self._dropped.flush()
        self.storage.close()
        for each in self._parts:
            each.close()
        self.files.close()
        self.access.close()

    def listen(
        self,
        address: str,
        admit: Admission,
        on_events: Callable[[list[ListenerEvent]], None],
        *,
        has_local_listener: bool = False,
    ) -> SocketListener:
        """Open a port of the scheduler."""
        listener = self.access.listen(address, admit, on_events, has_local_listener=has_local_listener)
        listener.on_refused = lambda report: self.observe([AdmissionRefused(report.text, report.key, report.origin)])
        return listener

    def journal(self) -> tuple[int, str]:
        """Return the size of the journal in bytes, and why new tasks cannot be written to it (or an empty string)."""
        if self._kept is None:
            return 0, ""
        return self._kept.journal.size_bytes, self.state.rooms.durability.failure or self._kept.complaint

    # -- admission

    def _admit(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused | TryAgain:
        answer = self._admitted(peer, hello, identity)
        if isinstance(answer, m.Refused):  # the listener logs the refusal
            self._monitors.add([Incident("refused", f"{hello.role} {hello.hostname}|{hello.pid}", answer.text, {})])
        return answer

    def _admitted(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused | TryAgain:
        refused: m.Refused | TryAgain | None = check_versions(hello)
        if refused is not None:
            return refused
        if hello.role is m.Role.MONITOR:
            text = f"monitors connect to a different address: {own_address(self._monitors.address)}"
            return m.Refused(m.RefusalReason.ROLE, text)
        if hello.role is m.Role.SCHEDULER:
            return self.greet(peer, hello)
        refused = self._core.refusal(peer, hello, identity, self.loop.time())
        if refused is not None:
            return refused
        welcome = self.welcome(hello.role)
        is_client = hello.role in m.CLIENTS
        return replace(welcome, owner_token=self.access.owner_token(peer)) if is_client else welcome

    def welcome(self, role: m.Role) -> m.Welcome:
        is_service = role in (m.Role.WORKER, m.Role.MANAGER, m.Role.STORE)
        lease = self.config.worker_timeout_seconds if is_service else self.config.client_timeout_seconds
        heartbeat = lease / HEARTBEATS_IN_A_LEASE
        return m.Welcome(
            resumed=False,
            incarnation=self.vitals.incarnation,
            lease_seconds=lease,
            heartbeat_seconds=heartbeat if is_service else min(HEARTBEAT_SECONDS, heartbeat),
            object_storage_address="" if role is m.Role.MONITOR else shared_address(self.storage.public_address),
            max_pending_tasks=self.config.max_number_of_tasks_waiting,
            tables="" if is_service else table_names(self.config),
            epoch=self.epoch,
        )

    # -- steps

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        inputs: list[Input] = []
        questions: list[tuple[bytes, m.Inquiry]] = []
        received = self.vitals.received
        for event in self._without_guests(arrived) if self.guests else arrived:
            if type(event) is not Received:
                inputs.append(event)
                continue
            message = event.message
            received[type(message).__name__] += 1
            if isinstance(message, m.Inquiry) and not message.has_effects:
                questions.append((event.peer, message))
            else:
                inputs.append(unwrapped(event.peer, message) if isinstance(message, m.Relay) else event)
        self.step(inputs)
        for peer, question in questions:
            client = self.state.clients.get(peer)
            if client is not None:
                self._monitors.ask(client, question)

    def _without_guests(self, arrived: Sequence[ListenerEvent]) -> list[ListenerEvent]:
        others = []
        for event in arrived:
            take = self.guests.get(event.peer)
            if take is None:
                others.append(event)
            else:
                take(event)
        return others

    def step(self, inputs: Sequence[Input]) -> None:
        now = self.loop.time()
        self._recorder.latest.append((now, inputs))
        try:
            commands = self._core.step(inputs, now)
        except Exception:
            path = absolute(f"scaler-black-box-{os.getpid()}.bin")
            self._recorder.write(path)
            _log.critical("the scheduler's state is inconsistent; earlier events are in %s", path)
            self.stop.set()
            raise
        done_at = self.loop.time()
        self.vitals.longest_step_seconds = max(self.vitals.longest_step_seconds, done_at - now)
        if self._kept is None:
            self.perform(commands)
        else:
            self._kept.add(inputs, commands)
        at = self._core.next_step_at(done_at)
        if self._timer is None or self._timer_at > at:  # otherwise, the timer is early enough
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self.loop.call_at(at, self._tick), at

    def perform(self, commands: Sequence[Command]) -> None:
        sent = self.vitals.sent
        for command in commands:
            if isinstance(command, Send):
                message = m.Relay(command.nested, encode(command.message)) if command.nested else command.message
                sent[type(message).__name__] += 1
                self.listener.send(command.peer, message)
            else:
                self._perform_one(command)

    def _perform_one(self, command: Command) -> None:
        match command:
            case Expel(peer, reason):
                self.listener.forget(peer, reason)
            case SendToStorage(message):
                self.storage.send(message)
            case AskPolicy(view):
                self._policy.ask(view)
            case Publish(changes):
                self._publish(changes)
            case Perform(extension, work):
                self.performers.perform(extension, work)
            case Stop(text):
                _log.info("%s", escaped(text))
                self.stop.set()
            case Send() | HoldObjects():
                raise AssertionError("done before")
            case _:
                assert_never(command)

    def _publish(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._log_change(change)
        self._monitors.add(changes)

    def _log_change(self, change: Change) -> None:
        match change:
            case Incident("protocol_error", subject, text):  # a peer may cause any number of these events
                self._dropped.add(f"{escaped(subject)}: dropped: {escaped(text)}")
            case Incident(kind, subject, text, ids):
                level, template = _INCIDENTS[kind]
                lines = "\n".join(map(escaped, text.splitlines()))
                _log.log(level, template, escaped(subject), lines, extra=about(**ids))
            case ScalingDecided(manager_id, units, draining, reason):
                drains = f"; drains {counted(draining, 'unit')}" if draining else ""
                text = f"the policy wants {counted(units, 'unit')} of {manager_id}: {reason}{drains}"
                _log.info("%s", escaped(text), extra=about(manager=manager_id))

    def observe(self, observed: Sequence[Observed]) -> None:
        """Report events outside the core to extensions."""
        if any(type(each) in self.rooms.changes.taken for each in observed):
            self.step([ShellObserved([*observed])])

    def _look(self) -> None:
        """Check the wall clock and the keys for changes, now and every `LOOK_SECONDS`."""
        if changed := self.vitals.read_clock():
            self.step(changed)
        self.observe(self.vitals.read_keys(self.access.keys))
        self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)

    def _tick(self) -> None:
        self._timer = None
        self._recorder.trim()
        self.vitals.was_late(self.loop.time() - self._timer_at)
        measured = self.vitals.measure() if ProcessMeasured in self.rooms.changes.taken else []
        self.step([ShellObserved(measured)] if measured else [])


def unwrapped(worker: bytes, relay: m.Relay) -> Relayed:
    """Decode a relayed message from a client inside a task."""
    try:
        return Relayed(worker, relay.client, relay.task, decode(relay.body))
    except ProtocolError as error:
        return Relayed(worker, relay.client, relay.task, None, str(error))


def recorded_bytes(item: Input) -> int:
    """Return the approximate memory that a recorded input keeps alive."""
    match getattr(item, "message", item):
        case m.Submit(functions, groups):
            columns = [*(group.payloads for group in groups), [payload for _, payload in functions]]
            return sum([ROW_BYTES * len(column) + sum(map(len, column)) for column in columns])
        case m.Done(payloads=texts) | m.Printed(texts=texts):
            return ROW_BYTES * len(texts) + sum(map(len, texts))
        case m.Output(text=text):
            return ROW_BYTES + len(text)
        case m.WorkerHeartbeat(processors=rows) | m.ManagerStatus(units=rows):
            return ROW_BYTES * (1 + len(rows))
        case DurabilitySaid(_, size_bytes):
            return ROW_BYTES + size_bytes
        case other:
            return ROW_BYTES + ID_BYTES * len(getattr(other, "ids", ()))


async def _main(config: SchedulerConfig, component: Component) -> int:
    mains = [each.main for each in extensions(config.extensions) if each.main]
    return cast("int", await part(mains[0])(config, component, serve) if mains else await serve(config, component))


async def serve(config: SchedulerConfig, component: Component) -> int:
    """Run a scheduler until `component.stop` is set. Returns the exit code."""
    server = SchedulerServer(config, component.stop)
    collecting = asyncio.create_task(collect_garbage(lambda: server.state.living_tasks))
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
