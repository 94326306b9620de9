"""The agent's core: which attempts are here, and what is reported to the scheduler. Pure.

One agent, two kinds of executor behind it: processors of this host (`pool.py`), or calls to a service (`calls.py`). The
core has what both need: the queue, the lease of the scheduler, drain, recall, and the reports to the scheduler. Laws,
checked by `check`: an attempt is in one place; every attempt that came leaves in exactly one Done or
Returned(started=False), unless the scheduler has forgotten this worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, cast

from scaler.config.worker import WorkerConfig
from scaler.grammar import counted
from scaler.ids import show
from scaler.net.connection import Broken, Received, Resumed, Welcomed
from scaler.protocol import messages as m
from scaler.worker.agent import events as e
from scaler.worker.agent.calls import ServiceCalls
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.state import CANCELLED, RECALLED, Attempt, KillReason

TaskExecutor = ProcessorPool | ServiceCalls
"""What runs attempts. Both have the same methods."""
IDLE_TICK_SECONDS = 0.5
START_NOTHING_AT = 2 / 3
KILL_ONCE_AT = 5 / 6
BROKEN_SECONDS = 2.0
"""How long after its connection broke a worker starts tasks: less than the scheduler waits for it to come back."""
STALL_SECONDS = 1.0
"""An agent that did not check the clock for this long reads what has arrived before it judges the silence."""
DRAIN_ANSWER_SECONDS = 2.0
"""How long the scheduler's answer to Drain is waited for."""


class LeaseStage(IntEnum):
    """What a worker does, by the time since the scheduler was last heard. The times are those of docs/design.md."""

    NORMAL = 0
    START_NOTHING = 1
    """Its queued tasks may soon be given to others, or its connection is broken."""
    KILL_ONCE = 2
    """Running tasks that may not run twice are ended before the scheduler gives them up."""
    DEATH = 3
    """The death timeout: this worker ends."""


class AgentCore:
    """Decides for one agent: `step`, and `wake_at`, when the next `TimeElapsed` is due.

    Drain: once it has begun it never stops. A worker that others than the scheduler ask to end sends the scheduler a
    Drain, and stays until it has answered: what the scheduler had sent before is then here, and given back. Otherwise
    such tasks would be lost with the worker, and charged.
    """

    def __init__(self, config: WorkerConfig, make_executor: type[TaskExecutor], now: float) -> None:
        self._config = config
        self.executor: TaskExecutor = make_executor(config, now)
        self.wake_at = now
        self._unexpected: Counter[str] = Counter()
        self._has_reported = False
        """A scheduler that opened a new session has not answered the report yet: what waits here may be elsewhere."""
        self.incarnation = 0
        """Of the last scheduler that welcomed this agent; 0: none has."""
        self._has_ended = False
        self._store: e.StoreFound | None = e.StoreFound("", b"")
        """Where tasks put results; None before that is known: then none starts."""
        self._object_storage_address = ""
        self._stage = LeaseStage.NORMAL
        self._lease_seconds = float("inf")
        """After this time without contact the scheduler gives this worker's tasks to others."""
        self._heard_at = self._checked_at = now
        self._broken_at = float("inf")
        """When the connection broke; infinite while there is one."""
        self._drain_text = ""
        self._exit_code = 0
        """When it leaves: 1, because it cannot run tasks."""
        self._drain_deadline = float("inf")
        """What runs then is ended."""
        self._drain_answer_until = 0.0
        """Until then an answer to Drain is waited for."""
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            e.TimeElapsed: self._tick,
            Welcomed: self._welcomed,
            e.StopRequested: self._stop,
            Resumed: self._resumed,
            Broken: self._broke,
            e.StoreSought: self._seek_store,
            e.StoreFound: self._found_store,
            m.Run: self._run,
            m.Recall: self._recall,
            m.ReleaseResults: lambda message, _now: self.executor.retained.release(message.numbers),
            m.ForgetFunctions: lambda message, _now: self.executor.forget_functions(set(message.ids)),
            m.Drain: self._drained,
            m.Shutdown: lambda message, _now: self._end(0, message.text or "the cluster was shut down"),
            m.HeartbeatEcho: lambda _message, _now: None,  # the shell's
            m.Named: lambda message, _now: self.executor.log(
                f"the scheduler calls this worker {message.name}", level="info"
            ),
            m.Relay: lambda _message, _now: None,
        }
        """What takes in an event or a message of the scheduler; the executor takes all other inputs."""

    def step(self, inputs: Sequence[e.AgentInput], now: float) -> list[e.Command]:
        """Take in what has happened; return what to do, in order."""
        executor = self.executor
        self._take(inputs, now)
        if executor.broken and not self._exit_code:
            self._exit_code = 1
            self._stop(e.StopRequested(executor.broken), now)
        if self._drain_text and not self._has_ended:
            executor.returned(executor.queue.drain(), started=False)
            if not executor.queue.attempts and now >= self._drain_answer_until:
                self._end(self._exit_code, executor.broken or self._drain_text)
        if not self._has_ended:
            executor.settle(now, self._may_start)
        self.wake_at = executor.wake_at
        return executor.take_commands()

    def close(self, inputs: Sequence[e.AgentInput], now: float) -> list[e.Command]:
        """Take in the last inputs; give back attempts that have not begun and report the others."""
        self._take(inputs, now)
        self.executor.close()
        return self.executor.take_commands()

    def _take(self, inputs: Sequence[e.AgentInput], now: float) -> None:
        handlers = self._handlers
        executor = self.executor
        for item in inputs:
            kind = type(item)
            if kind is Received or kind is Resumed:
                self._heard_at = now
                if self._stage is not LeaseStage.NORMAL:
                    self._stage = self._lease_stage(now)
            if kind is Received:
                message = cast("Received", item).message
                handlers.get(type(message), self._log_unexpected)(message, now)
            elif kind in handlers:
                handlers[kind](item, now)
            else:
                executor.take(item, now)  # type: ignore[arg-type]

    @property
    def _may_start(self) -> bool:
        return self._stage is LeaseStage.NORMAL and self._store is not None and not self._has_reported

    @property
    def queued(self) -> int:
        """Attempts that have not started, as far as is known without asking."""
        return self.executor.queue.waiting + self.executor.unstarted

    def may_be_given_up(self, now: float) -> bool:
        """Return True when the scheduler has been silent long enough to have given this worker up."""
        return now - self._heard_at >= self._lease_seconds * KILL_ONCE_AT

    def check(self) -> None:
        self.executor.check()

    # -- events and messages of the scheduler ----------------------------------------------------------------------

    def _stop(self, event: e.StopRequested, now: float) -> None:
        """Leave for another reason than that the scheduler asked for it."""
        is_draining = bool(self._drain_text)
        self._drain_text = self._drain_text or event.text
        self._drain_deadline = min(self._drain_deadline, now + self._config.stop_grace_seconds)
        self.executor.wake_by(self._drain_deadline)
        if self.incarnation and not is_draining:
            self._request_drain(now)
        self.executor.reclaim()

    def _request_drain(self, now: float) -> None:
        self._drain_answer_until = now + DRAIN_ANSWER_SECONDS
        self.executor.send(m.Drain(self._drain_text))
        self.executor.wake_by(self._drain_answer_until)

    def _drained(self, message: m.Drain, _now: float) -> None:
        """The scheduler sends no more tasks: by itself, or as its answer."""
        self._drain_text = self._drain_text or message.text or "drained"
        self._drain_answer_until = 0.0
        self.executor.reclaim()

    def _log_unexpected(self, message: m.Message, _now: float) -> None:
        kind = type(message).__name__
        self._unexpected[kind] += 1
        count = self._unexpected[kind]
        if not count & (count - 1):  # 1, 2, 4, ...: a log has a line for each doubling
            self.executor.log(f"unexpected message {kind} from the scheduler, {counted(count, 'time')} so far")

    def _welcomed(self, event: Welcomed, now: float) -> None:
        """The scheduler opened a new session: the first, after giving this worker up, or after a restart.

        Tasks of a worker that was given up run elsewhere. After a restart, running tasks go on, and waiting ones start
        once the scheduler has answered which of them others have.
        """
        welcome = event.welcome
        if welcome.incarnation == self.incarnation:
            text = "the scheduler has forgotten this worker"
            why_not = self.executor.forget_all()
            if why_not:
                # It stays until it has given back what the scheduler sends it meanwhile, so that no task is charged.
                self._drain_text = self._drain_text or f"{text}, {why_not}"
                self._drain_deadline = now
            else:
                self.executor.log(f"{text}: it starts afresh")
        if self.incarnation:
            self.executor.reclaim()
            self.executor.report()
            self._has_reported = True
        self.incarnation = welcome.incarnation
        if self._drain_text:
            self._request_drain(now)
        self._lease_seconds = welcome.lease_seconds
        self._heard_at, self._broken_at = now, float("inf")
        self._stage = LeaseStage.NORMAL
        self._object_storage_address = self._config.object_storage_address or welcome.object_storage_address
        self._use_store(is_new_session=True)

    def _seek_store(self, _event: e.StoreSought, _now: float) -> None:
        self._store = None

    def _found_store(self, event: e.StoreFound, _now: float) -> None:
        is_new_session = self._store is None
        self._store = event
        self._use_store(is_new_session=is_new_session)

    def _use_store(self, *, is_new_session: bool) -> None:
        """Tell the scheduler and the processors which store tasks use, as soon as it is known."""
        store = self._store
        if store is None or not self.incarnation:
            return
        executor = self.executor
        addresses = store.address or self._object_storage_address, self._object_storage_address
        has_moved = addresses != (executor.storage_address, executor.object_storage_address)
        if store.peer and (has_moved or is_new_session):
            executor.send(m.UseStore(store.peer))
        elif has_moved and executor.storage_address != executor.object_storage_address:
            executor.send(m.UseStore())
        if has_moved:
            executor.storage_address, executor.object_storage_address = addresses
            executor.storage_moved()

    def _broke(self, _event: Broken, now: float) -> None:
        self._broken_at = now

    def _resumed(self, _event: Resumed, now: float) -> None:
        self._broken_at = float("inf")
        self._stage = self._lease_stage(now)

    def _run(self, message: m.Run, _now: float) -> None:
        executor, queue = self.executor, self.executor.queue
        for function, code in message.functions:
            if m.is_function_id(function, code):
                executor.functions[function] = code
            else:  # its tasks end as lost: no processor unpickles what another function's id stands for
                executor.log(f"the scheduler sent another function under the id {show(function)}")
        attempts = queue.attempts
        limit = self._config.slots * (self._config.per_worker_task_queue_size + 1)
        refused: list[Attempt] = []
        for group in message.groups:
            known = executor.know(group.spec)
            rank = queue.rank(group.spec)
            inputs = group.inputs or [()] * len(group.ids)
            rows = zip(group.ids, group.attempts, group.payloads, inputs, strict=True)
            items = [Attempt(task, number, known, payload, values, rank) for task, number, payload, values in rows]
            for item, devices in zip(items, group.devices, strict=False):
                item.devices = devices
            room = limit - len(attempts)
            if room < len(items):
                room += executor.extra_capacity
            refused += queue.add(items, 0 if self._drain_text else room)
        if message.followers:
            refused += self._attach(message.followers)
        if refused:
            executor.returned(refused, started=False)

    def _attach(self, groups: Sequence[m.Followers]) -> list[Attempt]:
        """Put attempts behind those that they follow. Returns the ones whose time has passed."""
        executor, attempts = self.executor, self.executor.queue.attempts
        attached: dict[bytes, Attempt] = {}
        late: list[Attempt] = []
        for group in groups:
            known, rank = executor.know(group.spec), executor.queue.rank(group.spec)
            rows = zip(group.ids, group.attempts, group.payloads, group.inputs, strict=True)
            items = [Attempt(task, number, known, payload, values, rank) for task, number, payload, values in rows]
            for item, after in zip(items, group.after, strict=True):
                before = attached.get(after) or attempts.get(after)
                if before is None or before.follower is not None:
                    late.append(item)
                else:
                    before.follower = attached[item.id] = item
        return late

    def _recall(self, message: m.Recall, _now: float) -> None:
        """Give back attempts, and end running ones if asked. The first message of a session lets others start."""
        self._has_reported = False
        attempts = self.executor.queue.attempts
        recalled = zip(message.ids, message.attempts, strict=True)
        here = [item for key, number in recalled if (item := attempts.get(key)) is not None and item.attempt == number]
        self.executor.give_back([item for item in here if not item.executor])
        self.executor.end([item for item in here if item.executor], CANCELLED if message.kill else RECALLED)

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self, event: e.TimeElapsed, now: float) -> None:
        self.executor.wake_at = now + IDLE_TICK_SECONDS
        self._check_lease(now)
        self.executor.tick(event.snapshots, now, self._may_start)
        if now >= self._drain_deadline:
            text = f"the worker was told to end ({self._drain_text}) while the task ran"
            self._end_running(KillReason(m.Outcome.NOT_STARTED, text))
        else:
            self.executor.wake_by(self._drain_deadline)

    def _lease_stage(self, now: float) -> LeaseStage:
        has_stalled = now - self._checked_at > STALL_SECONDS
        self._checked_at = now
        limits = {
            LeaseStage.DEATH: self._config.death_timeout_seconds,
            LeaseStage.KILL_ONCE: self._lease_seconds * KILL_ONCE_AT,
            LeaseStage.START_NOTHING: self._lease_seconds * START_NOTHING_AT,
        }
        silent = now - self._heard_at
        stage = next((stage for stage, seconds in limits.items() if silent >= seconds), LeaseStage.NORMAL)
        if now - self._broken_at >= BROKEN_SECONDS:
            stage = max(stage, LeaseStage.START_NOTHING)
        return min(stage, LeaseStage.START_NOTHING) if has_stalled else stage

    def _check_lease(self, now: float) -> None:
        before = self._stage
        stage = self._stage = self._lease_stage(now)
        if stage is before:
            return
        if stage is not LeaseStage.NORMAL:
            self.executor.log(f"no word from the scheduler: {stage.name.lower().replace('_', ' ')}")
            self.executor.reclaim()
        if stage is LeaseStage.KILL_ONCE:
            text = "the worker lost contact with the scheduler and ended the task, which may not run twice"
            self._end_running(KillReason(m.Outcome.WORKER_LOST, text), once_only=True)
        elif stage is LeaseStage.DEATH:
            why = f"no contact with the scheduler for {self._config.death_timeout_seconds:g} s (death_timeout_seconds)"
            self._end(1, why, is_contact_lost=True)

    def _end_running(self, reason: KillReason, *, once_only: bool = False) -> None:
        """End the attempts that run. once_only: only those that may not run twice."""
        dispatched = [item for item in self.executor.queue.attempts.values() if item.executor]
        self.executor.end([item for item in dispatched if not (once_only and item.spec.wire.retries)], reason)

    def _end(self, exit_code: int, text: str, *, is_contact_lost: bool = False) -> None:
        self._has_ended = True
        self.executor.commands.append(e.EndAgent(exit_code, text, is_contact_lost))
