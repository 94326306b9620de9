"""Peers of a hostile server, and an agent with a processor under a hostile task's control. Pure cores only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from scaler.client.session import TaskSession
from scaler.client.tasks import (
    ClientTask,
    ConnectionReady,
    FunctionReference,
    SchedulerRestarted,
    TasksAdded,
    TaskTemplate,
)
from scaler.errors import ProtocolError
from scaler.extensions.timeline.lanes import timeline_view
from scaler.ids import content_id
from scaler.monitor.messages import Explained, FindTasks, MonitorEvents, MonitorStatus, TaskLog, TasksFound
from scaler.monitor.model import Model
from scaler.monitor.tables import task_view
from scaler.monitor.web.routes import dump, status_view
from scaler.net import transport as t
from scaler.net.connection import LOCAL, Broken, ConnectionRefused, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.questions import Questions
from scaler.net.versions import own_hello
from scaler.object_storage.requests import GetCall, PutCall, Requests, RequestsInput
from scaler.protocol import messages as m
from scaler.protocol.codec import decode
from scaler.protocol.session import SESSION_ID_BYTES, Envelope, OutboxLimits
from scaler.worker.agent.core import ClockOffset
from scaler.worker.agent.events import ProcessorEvent, ProcessorReported, ResultsReceived
from scaler.worker.frames import Results, ToAgent, unpack_note, unpack_results
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.reconcile import Reconciler, UnitsWanted
from tests.fuzz.conversations import Spoken
from tests.fuzz.servers import strictly
from tests.unit.worker.worker_fakes import CoreRig, worker_config

MAX_TASKS = 8
OBJECT = b"goodclie" + bytes(8)


class _Link:
    """A transport that accepts any envelope."""

    passes_descriptors = False
    identity = LOCAL
    is_blocked = False

    def transmit(self, envelopes: Sequence[Envelope]) -> None: ...

    def cut(self) -> None: ...

    def start_session(self, *, compresses: bool) -> None: ...


class Agent:
    """A worker's core, which runs a scheduler's tasks in fake processors."""

    def __init__(self) -> None:
        self.rig = CoreRig(worker_config(2))
        self.rig.step()
        self._clock = ClockOffset()

    def take(self, event: ConnectorEvent) -> None:
        if isinstance(event, Broken | ConnectionRefused):
            return
        if self.rig.ending is not None:
            self.__init__()  # type: ignore[misc]
        if isinstance(event, Received) and isinstance(event.message, m.HeartbeatEcho):
            self._clock.observe(event.message.sent_at, event.message.answered_at, self.rig.now)
        self.rig.step(event)
        self.settle()

    def settle(self) -> None:
        """Make new processors ready."""
        rig = self.rig
        for number, processor in list(rig.pool.processors.items()):
            if not processor.is_ready and not rig.hands[number].killed and rig.ending is None:
                rig.step(ProcessorReported(number, ProcessorEvent.READY))

    def end(self) -> None:
        if self.rig.ending is None:
            self.rig.tick(1.0)


class _Client:
    def __init__(self, ids: Iterable[bytes]) -> None:
        self._session = TaskSession()
        function = FunctionReference(content_id(b"f"), deque(), b"f", None)
        template = TaskTemplate(m.Spec(function.id, name="f"), (function,), None)
        tasks = [ClientTask(each, template, b"\x80") for each in ids]
        self._session.step([TasksAdded(tasks), ConnectionReady(2**30)], 0.0)

    def take(self, event: ConnectorEvent) -> None:
        match event:
            case Received(message=m.Finished() as message):
                self._session.step([message, ConnectionReady(2**30)], 1.0)
            case Welcomed():
                self._session.step([SchedulerRestarted({}), ConnectionReady(2**30)], 1.0)
            case _:
                pass

    def end(self) -> None: ...


class _Manager:
    def __init__(self) -> None:
        self._core = Reconciler(10)
        self._now = 0.0

    def take(self, event: ConnectorEvent) -> None:
        self._now += 1.0
        if isinstance(event, Received) and isinstance(event.message, m.Desired):
            desired = event.message
            units = [Unit("unit", m.UnitState.RUNNING, 1, 1.0)]
            wanted = UnitsWanted(desired.units, desired.drained, desired.joined)
            self._core.step(wanted, units, self._now, 0.5)

    def end(self) -> None: ...


class _Monitor:
    def __init__(self) -> None:
        self._model = Model()
        self._questions = Questions(lambda _: None)

    def take(self, event: ConnectorEvent) -> None:
        match event:
            case Received(message=MonitorStatus() | MonitorEvents() as message):
                with suppress(ProtocolError):
                    self._model.apply(message)
            case Received(message=Explained() | TaskLog() | TasksFound() as answer):
                with self._questions.asking(FindTasks("")):
                    self._questions.answered(answer)
            case _:
                pass

    def end(self) -> None:
        model = self._model
        strictly(dump(status_view(model)))
        strictly(dump([task_view(task) for task in model.tasks()]))
        strictly(dump(timeline_view(model, 60.0, 0.0, 1e10)))
        strictly(dump([part.document() for part in model.parts]))


class _StoragePeer:
    """Requests from a client, worker, or scheduler to the storage."""

    def __init__(self) -> None:
        self._core = Requests("tcp://storage:1", 10.0, 0.0)
        self._now = 0.0

    def take(self, event: ConnectorEvent) -> None:
        self._now += 0.1
        calls: list[RequestsInput] = []
        if isinstance(event, Welcomed | Resumed):
            calls = [PutCall(OBJECT, [memoryview(b"value")]), GetCall(OBJECT), GetCall(OBJECT)]
        self._core.step([event, *calls], self._now)

    def end(self) -> None:
        self._core.step([], self._now + 100.0)


class _Component(Protocol):
    def take(self, event: ConnectorEvent) -> None: ...

    def end(self) -> None:
        """Let time pass, and render all views."""


class _Connection:
    """A connector's core, which passes its events to every component."""

    def __init__(self, session: bytes, components: Sequence[_Component]) -> None:
        self._session = session
        self._components = components
        self._now = 100.0
        self._link = _Link()
        self._core = self._connector()

    def _connector(self) -> ConnectorCore:
        return ConnectorCore(self._session, own_hello(m.Role.CLIENT), OutboxLimits(), self._now)

    def hear(self, envelope: Spoken) -> None:
        if self._core.phase is Phase.STOPPED:
            self._core = self._connector()
        if self._core.phase is Phase.WAITING:
            self._now = max(self._now, self._core.wake_at)
            self._link = _Link()
            self._step([])
            self._step([t.LinkOpened(self._link)])
        attachments = [memoryview(each) for each in envelope.attachments]
        self._step([t.EnvelopeReceived(self._link, envelope.header, envelope.body, attachments)])
        self._now += 0.01

    def _step(self, inputs: list[t.Input]) -> None:
        for command in self._core.step(inputs, self._now):
            if isinstance(command, t.Deliver):
                for event in command.events:
                    for component in self._components:
                        component.take(event)  # type: ignore[arg-type]


def answer(conversation: Sequence[Spoken]) -> None:
    """Send a conversation from a server to each type of peer."""
    if not conversation:
        return
    ids: dict[bytes, None] = {}
    for envelope in conversation:
        with suppress(ProtocolError):
            message = decode(envelope.body)
            if isinstance(message, m.Finished):
                ids |= dict.fromkeys(message.ids[:MAX_TASKS])
    components: list[_Component] = [Agent(), _Client(ids), _Manager(), _Monitor(), _StoragePeer()]
    connection = _Connection(conversation[0].header[8 : 8 + SESSION_ID_BYTES], components)
    for envelope in conversation:
        connection.hear(envelope)
    for component in components:
        component.end()


# -- processors

RUN = m.Run(
    [(content_id(b"f"), b"f")],
    [m.RunGroup(m.Spec(content_id(b"f")), [b"goodclie%08d" % number for number in range(6)], [1] * 6, [b"\x80"] * 6)],
)


def report(datagrams: Sequence[bytes]) -> None:
    """Send datagrams from a hostile task to its agent, while a second processor continues its task."""
    agent = Agent()
    agent.take(Welcomed(m.Welcome(False, 1, 60.0, 2.0)))
    agent.take(Received(b"schedulr", RUN))
    numbers = list(agent.rig.pool.processors)
    if not numbers:
        return
    good = agent.rig.hands[numbers[-1]]
    good.begin(agent.rig.now)
    for datagram in datagrams:
        if agent.rig.ending is not None or agent.rig.hands[numbers[0]].killed:
            break
        if not datagram:
            continue
        try:
            if datagram[0] == ToAgent.RESULTS:
                agent.rig.step(ResultsReceived(numbers[0], unpack_results(datagram)))
                continue
            note = unpack_note(datagram)
            if note.kind.name in ProcessorEvent.__members__:
                text = note.text.decode("utf-8", "replace")
                agent.rig.step(ProcessorReported(numbers[0], ProcessorEvent[note.kind.name], text))
        except ProtocolError as error:
            agent.rig.step(ProcessorReported(numbers[0], ProcessorEvent.INVALID_DATAGRAM, str(error)))
    if agent.rig.ending is None and not good.killed:
        assert good.running is not None
        task = good.running[0]
        good.finish()
        results: Results = good.flush()
        agent.rig.step(ResultsReceived(numbers[-1], results))
        done = [each for each in agent.rig.sent if isinstance(each, m.Done) and task in each.ids]
        assert done, "a hostile task has stopped another task"
